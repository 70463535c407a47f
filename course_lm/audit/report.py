"""What an audit found, as text, as HTML and as plain data."""

import math
from dataclasses import dataclass, field
from html import escape
from typing import Any

from course_lm.audit import spec, spec_ranks, spec_resume
from course_lm.audit.runs import Case
from course_lm.display import GREEN, RED, table

FAULTS = {**spec.FAULTS, **spec_ranks.FAULTS, **spec_resume.FAULTS}


@dataclass(frozen=True)
class AuditReport:
    """What an audit found: the loop is sound, its faults are named, or the part that departs is located.

    Attributes:
        sound: equal to the specification in every run, but for features that the loop lacks.
        faults: names of `FAULTS`, the smallest set found that reproduces the loop in every run; () if none does.
        alternatives: other sets as small that do so too.
        part: of the loop, one of `PARTS`: that of the first run that departs. None where none departs.
        case: that run.
        promise: the line of the contract that the loop breaks there; None where what differs does not show which.
        ignored: settings that the loop does not have, which are not held against it.
        undeclared: those of them that it does not declare: it may only seem to have them.
        problem: what is wrong in words, where it is no named fault and no departing run alone.
        compared: False where the problem kept a run from being compared, such as an error that the loop raised.
        numbers: of the run, in rows of (what, loop, specification).
        notes: what else was seen.
        runs: how many were made.
    """

    precision: str
    sound: bool = False
    faults: tuple[str, ...] = ()
    alternatives: tuple[tuple[str, ...], ...] = ()
    part: str | None = None
    case: Case | None = None
    promise: str | None = None
    ignored: tuple[str, ...] = ()
    undeclared: tuple[str, ...] = ()
    problem: str | None = None
    compared: bool = True
    numbers: tuple[tuple[str, str, str], ...] = ()
    notes: tuple[str, ...] = ()
    runs: int = 0
    seconds: float = field(default=math.nan, compare=False)

    @property
    def verdict(self) -> str:
        """One line: sound, the names of the faults, the part that departs, or why the loop could not be compared."""
        if not self.compared:
            return f"could not be compared: {self.problem}"
        if self.sound:
            without = f", without {' and '.join(self.undeclared)}" if self.undeclared else ""
            return f"sound{without}: equal to the specification in {self.runs} runs, {self.precision}"
        if self.faults:
            return f"unsound: {' and '.join(self.faults)}"
        if self.problem:
            return f"unsound: {self.problem}"
        return f"unsound, in the part {self.part}; no set of known faults was found that does the same"

    def __str__(self) -> str:
        """The report in a dozen lines."""
        lines = [self.verdict]
        lines += [f"  {name}: {FAULTS[name]}" for name in self.faults]
        if self.faults:
            these = "this fault" if len(self.faults) == 1 else f"these {len(self.faults)} faults"
            lines.append(f"  the specification with {these} leaves the loop's weights in all {self.runs} runs")
        lines += [f"  the same, and not to be told apart here: {' and '.join(one)}" for one in self.alternatives]
        if self.case is not None:
            shows = "the first run that shows it" if self.compared else "in the run"
            lines.append(f"{shows}: {self.case.name} (part {self.part})")
            lines.append(f"  {self.case.describe()}")
        if self.numbers:
            lines += [f"  {line}" for line in table([("", "this loop", "right"), *self.numbers]).splitlines()]
        lines += [f"  {note}" for note in self.notes]
        if self.promise:
            lines.append(f"it breaks the contract's {self.promise}")
        if self.ignored:
            lines.append(f"settings that the loop does not have, not held against it: {', '.join(self.ignored)}")
        lines.append(f"{self.runs} runs in {self.seconds:.1f} s")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """All that the report says as plain data for JSON."""
        return {
            **vars(self),
            "verdict": self.verdict,
            "case": None if self.case is None else {"name": self.case.name, "run": self.case.describe()},
            "numbers": [dict(zip(("what", "loop", "specification"), row)) for row in self.numbers],
            "seconds": round(self.seconds, 3) if math.isfinite(self.seconds) else None,
        }

    def _repr_html_(self) -> str:
        color = GREEN if self.sound else RED
        head, *rest = str(self).splitlines()
        text = escape("\n".join(rest))
        return f'<div><b style="color:{color}">{escape(head)}</b><pre style="margin:0.4em 0">{text}</pre></div>'
