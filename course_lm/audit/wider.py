"""Specifications of more than one call in one process: of several ranks, and of a run that stops and goes on.

Such a run leaves one vector: the weights of each process, and a 1 or 0 for each thing that weights do not show. So
what was only seen is compared and named as the weights are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from course_lm.audit.locate import PROMISES, numbers
from course_lm.audit.outcome import Outcome
from course_lm.audit.report import AuditReport
from course_lm.audit.runs import Case
from course_lm.audit.search import Explanation, Specification


def joined(weights: Sequence[Tensor], seen: Sequence[bool]) -> Tensor:
    """The weights of each process, and what else was seen, in one vector."""
    return torch.cat([*weights, torch.tensor(seen, dtype=torch.float64)])


class WiderSpecification(Specification):
    """Runs of `processes` processes, of which is compared too what is `seen`: names, and how a 1 is said."""

    processes: int = 1
    seen: Mapping[str, str]

    def start(self, case: Case) -> Tensor:
        """The weights before the run, of each process, and nothing seen."""
        return joined([super().start(case)] * self.processes, [False] * len(self.seen))


def locate_in(
    specification: WiderSpecification, base: AuditReport, case: Case, got: Outcome, explanation: Explanation
) -> AuditReport:
    """The report `base` with the run that departs, and its numbers of the first process that departs most."""
    right = specification.outcome(case, explanation)
    base = replace(base, part=case.part, case=case, promise=f"{case.promise}: {PROMISES[case.promise].rstrip(';')}")
    if got.weights is None or right.weights is None:
        return base
    ones, others, starts = (
        _apart(specification, one) for one in (got.weights, right.weights, specification.start(case))
    )
    notes = [told for told, one, other in zip(specification.seen.values(), ones[-1], others[-1]) if one and not other]
    apart = [float((one - other).norm()) for one, other in zip(ones[:-1], others[:-1])]
    if max(apart) == 0.0:
        return replace(base, notes=(*notes, *base.notes))
    worst = apart.index(max(apart))
    if specification.processes > 1:
        notes.append(f"the numbers are those of rank {worst}")
    mine, its = replace(got, weights=ones[worst], best=None), replace(right, weights=others[worst])
    return replace(base, notes=(*notes, *base.notes), numbers=tuple(numbers(case, mine, its, starts[worst])))


def _apart(specification: WiderSpecification, vector: Tensor) -> list[Tensor]:
    """The weights of each process, and what was seen."""
    size = (len(vector) - len(specification.seen)) // specification.processes
    return list(vector.split([size] * specification.processes + [len(specification.seen)]))
