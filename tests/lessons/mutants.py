"""Make the stored mutants of the exercises: `python -m tests.lessons.mutants`, `make mutants`.

Every small mistake of an exercise's solution is run in all cases of its check. The lessons are those that are named, by
default all that have a store: `make mutants LESSONS="loss schedules"`.
"""

import importlib
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import nbformat
import torch
from torch import Tensor

from course_lm.classroom import checks
from course_lm.classroom.checks.comparison import plain
from course_lm.classroom.checks.mistakes import store
from course_lm.classroom.checks.mistakes.mutation import small_mistakes
from course_lm.classroom.checks.mistakes.naming import Candidate, by_hand_candidates, candidates, name_mistake
from course_lm.classroom.checks.mistakes.outcomes import Outcome, with_gradient
from course_lm.classroom.checks.mistakes.question import Question
from course_lm.classroom.checks.mistakes.store import Mutants
from course_lm.classroom.checks.report import Report
from tests.lessons.exercises import Exercise, exercises_of, imports_of

NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "notebooks").glob("[0-9][0-9]_*.ipynb"))
Signature = tuple[int, ...]


@lru_cache
def exercises_of_lesson(lesson: str) -> dict[str, tuple[Exercise, list[str]]]:
    """The exercises of a lesson (the name of its module of checks) with the imports that their solutions need."""
    path = next(path for path in NOTEBOOKS if path.stem[3:] == lesson)
    notebook = nbformat.read(path, as_version=4)
    return {one.check: (one, imports_of(notebook, one.solution)) for one in exercises_of(notebook)}


def question_of(lesson: str, check: str, mutants: Mutants | None) -> Question:
    """What a check asks, with `mutants` in place of those that are stored."""
    module = importlib.import_module(f"course_lm.classroom.checks.{lesson}")
    found: list[dict[str, Any]] = []

    def note(fn: object, **settings: Any) -> Report:
        found.append(settings)
        return Report(check, "not written yet", "")

    with patch.object(module, "compare", note):
        getattr(module, check)(print)
    settings = {name: value for name, value in found[0].items() if value}
    return Question(lesson, check, **{**settings, "mistakes": found[0]["mistakes"]}, mutants=mutants)


class Signatures:
    """Numbers for what functions do in each case of a question: equal where it is the same; 0 is what is right."""

    def __init__(self, question: Question) -> None:
        self._question = question
        self._known = {case: [question.expected[case]] for case in question.cases}

    def of(self, outcomes: dict[str, Outcome]) -> Signature:
        """The signature of a function, from what it does in each case."""
        return tuple(self._number(case, outcomes[case]) for case in self._known)

    def _number(self, case: str, outcome: Outcome) -> int:
        known = self._known[case]
        for number, one in enumerate(known):
            if self._question.is_equal(one, outcome):
                return number
        known.append(outcome)
        return len(known) - 1


def outcomes_of(question: Question, fn: Callable[..., object]) -> dict[str, Outcome]:
    """What a function does in each case."""
    return {case: question.ask(fn, case) for case in question.cases}


def make(lesson: str, check: str) -> Mutants:
    """The mutants of one exercise.

    Raises ValueError where the solution is not right, a mistake by hand is right or the same as another one, or a hint
    belongs to nothing.
    """
    exercise, imports = exercises_of_lesson(lesson)[check]
    rounds = _rounds(lesson, check, Mutants(imports, exercise.solution, rounds=1_000_000))
    bare = Mutants(imports, exercise.solution, rounds)
    question = question_of(lesson, check, bare)
    _check_hints(question)
    signatures = Signatures(question)
    seen = _by_hand(question, signatures)
    changes, merged, equal, useless = [], {}, {}, 0
    found = small_mistakes(exercise.solution, is_trained=question.run is with_gradient)
    for change in found:
        outcomes = outcomes_of(question, bare.function([change]))
        signature = signatures.of(outcomes)
        if all(one.fault for one in outcomes.values()):
            useless += 1
        elif not any(signature):
            equal[change.words] = ""
        elif signature in seen:
            merged[change.words] = seen[signature]
        else:
            seen[signature] = change.words
            changes.append(change)
    return Mutants(imports, exercise.solution, rounds, len(found), changes, merged, useless, equal)


def _rounds(lesson: str, check: str, mutants: Mutants) -> int:
    question = question_of(lesson, check, mutants)
    solution = mutants.function()
    for case in question.cases:
        if not question.is_right(case, question.ask(solution, case)):
            raise ValueError(f"the solution of {check} is not right in the case {case!r}")
    return solution.rounds


def _by_hand(question: Question, signatures: Signatures) -> dict[Signature, str]:
    seen: dict[Signature, str] = {}
    problems = []
    for candidate in by_hand_candidates(question):
        words = candidate.words
        signature = signatures.of(outcomes_of(question, candidate.make()))
        if not any(signature):
            problems.append(f"{question.check}: no case tells {words!r} from what is right")
        elif signature in seen:
            problems.append(f"{question.check}: no case tells {words!r} from {seen[signature]!r}")
        seen.setdefault(signature, words)
    if problems:
        raise ValueError("\n".join(problems))
    return seen


def _check_hints(question: Question) -> None:
    assert question.mutants is not None
    for part in question.hints:
        if part not in question.mistakes and part not in question.mutants.solution:
            raise ValueError(
                f"{question.check}: a hint belongs to {part!r}, which is no mistake and not in the solution"
            )


def with_accepted(made: Mutants, stored: Mutants | None) -> Mutants:
    """What was made, with the reasons why edits are equal that a person has written into the store."""
    for words in made.equal:
        made.equal[words] = stored.equal.get(words, "") if stored else ""
    return made


def needed_cases(question: Question, outcomes: Iterable[tuple[Candidate, dict[str, Outcome]]]) -> dict[str, str]:
    """Each case beside what nothing but it tells apart, in words; empty where the case is not needed.

    outcomes: what each mistake that can be named does in each case.
    """
    signatures = Signatures(question)
    known = {tuple(0 for _ in question.cases): "the solution"}
    for one, got in outcomes:
        known.setdefault(signatures.of(got), one.words)
    found = {}
    for place, case in enumerate(question.cases):
        without: dict[Signature, str] = {}
        found[case] = ""
        for signature, words in known.items():
            rest = signature[:place] + signature[place + 1 :]
            if rest in without:
                found[case] = f"{words} / {without[rest]}"
                break
            without[rest] = words
    return found


def seconds_of_check(lesson: str, check: str) -> tuple[float, float]:
    """The processor's seconds for the solution, and for results that no mistake explains, on one thread."""
    question = question_of(lesson, check, store.of_lesson(lesson)[check])
    assert question.mutants is not None
    start = time.process_time()
    assert getattr(checks, check)(question.mutants.function()).passed
    right = time.process_time() - start
    strange = {case: Outcome(_disturbed(one.value)) for case, one in question.expected.items()}
    start = time.process_time()
    name_mistake(question, strange)
    return right, time.process_time() - start


def _disturbed(value: object) -> object:
    value = plain(value)
    if isinstance(value, bool | str | None):
        return value
    if isinstance(value, Tensor) and value.ndim:
        return value * 1.2345 + torch.arange(value.numel()).view(value.shape).to(value.dtype) * 0.345
    if isinstance(value, dict):
        return {key: _disturbed(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_disturbed(one) for one in value]
    return float(value) * 1.2345 + 0.345  # type: ignore[arg-type]


def write(lessons: Iterable[str]) -> None:
    """Make and store the mutants of whole lessons, and print what there is of each exercise."""
    for lesson in lessons:
        stored, made = store.of_lesson(lesson), {}
        for check in exercises_of_lesson(lesson):
            made[check] = with_accepted(make(lesson, check), stored.get(check))
        store.FOLDER.mkdir(exist_ok=True)
        store.path_of(lesson).write_text(store.written(made), encoding="utf-8")
        store.of_lesson.cache_clear()
        for check, one in made.items():
            _print(lesson, check, one)


def _print(lesson: str, check: str, mutants: Mutants) -> None:
    right, wrong = seconds_of_check(lesson, check)
    counts = f"{mutants.made} edits: {len(mutants.told_apart)} told apart, {len(mutants.merged)} merged, "
    counts += f"{mutants.useless} fail everywhere, {len(mutants.equal)} equal"
    print(f"{lesson}.{check}: {counts}; {right:.2f} s right, {wrong:.2f} s wrong")
    for words, why in mutants.equal.items():
        if not why:
            print(f"  no case tells apart: {words}")
    question = question_of(lesson, check, mutants)
    outcomes = ((one, outcomes_of(question, one.make())) for one in candidates(question))
    for case, why in needed_cases(question, outcomes).items():
        if not why and case not in question.shown:
            print(f"  not needed: the case {case!r}")


def main(lessons: Sequence[str]) -> None:
    """Write the stores of the named lessons, by default of all that have one."""
    torch.set_num_threads(1)
    write(lessons or sorted(path.stem for path in store.FOLDER.glob("*.json")))


if __name__ == "__main__":
    main(sys.argv[1:])
