"""Checks of lesson 16: loops to mend, each one put to the audit of the parts that it has."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from course_lm import audit
from course_lm.audit import spec
from course_lm.audit.runs import ladder
from course_lm.classroom.checks.report import Refused, Report, compare

_RETURNED = "the loop must return a dict with {keys}, as the one to mend does"


def mended_windows(fn: Callable[..., object]) -> Report:
    """Accumulation: `fn(model, epochs, settings)` makes one step of each window."""
    runs = ("two equal micro-batches", "a tail in each of two epochs")
    return _audited(fn, ["accumulation"], runs, ["accumulation_steps"])


def mended_validation(fn: Callable[..., object]) -> Report:
    """Validation after each epoch, and a copy of the best weights: `fn(model, epochs, settings)`."""
    keys = ("validation_losses", "best_weights")
    return _audited(fn, ["validation"], ("validation after each epoch",), ["validation"], keys)


def mended_adamw(fn: Callable[..., object]) -> Report:
    """AdamW under a schedule: `fn(model, epochs, settings)`."""
    needs = ("weight_decay", "beta1", "beta2", "epsilon", "schedule")
    return _audited(fn, ["optimizer", "schedule"], ("AdamW", "decay under rates that move"), needs)


def _audited(
    fn: Callable[..., object], parts: Sequence[str], runs: Sequence[str], needs: Sequence[str], keys: Sequence[str] = ()
) -> Report:
    """First a few runs, for an answer that is not written yet or cannot run; then the audit has the word.

    Args:
        needs: settings that the answer must heed, though an audit lets a loop be without them.
        keys: of what the answer must return.
    """
    must_return = _RETURNED.format(keys=" and ".join(keys))
    cases = {case.name: case for case in ladder() if case.name in runs}

    def run(loop: Callable[..., Any], name: str) -> dict[str, Tensor]:
        case = cases[name]
        model = case.model()
        returned = loop(model, case.epochs, case.settings)
        if keys and not (isinstance(returned, Mapping) and all(returned.get(key) is not None for key in keys)):
            raise Refused(must_return)
        return {name: weight.detach() for name, weight in model.named_parameters()}

    asked: dict[str, tuple[Any, ...]] = {name: (name,) for name in cases}
    report = compare(fn, reference=_as_specified, cases=asked, mistakes={}, run=run, close=(1e-9, 1e-12))
    is_refused = report.status == "wrong" and (not report.args or report.message == must_return)
    if report.status in ("not written yet", "raised") or is_refused:
        return report
    found = audit.audit(fn, parts=parts, progress=False)  # type: ignore[arg-type]
    lacking = [f"settings.{name}" for name in needs if name in found.ignored]
    if found.sound and report.status == "wrong" and keys:
        return report  # an audit lets a loop return nothing
    if found.sound and not lacking:
        return replace(report, status="passed", message=found.verdict, details="", folded="")
    message = found.verdict
    if found.sound:
        message = f"the loop does not heed {' and '.join(lacking)}, which the exercise asks for"
    elif found.faults:
        message = f"this is what you get when {'; and '.join(spec.FAULTS[name] for name in found.faults)}"
    elif found.case is not None:
        message = "; ".join([message, *found.notes, f"the first run that shows it: {found.case.name}"])
    return replace(report, status="wrong", message=message, details="", folded=str(found))


def _as_specified(model: nn.Module, epochs: Sequence[Any], settings: spec.Settings) -> dict[str, Any]:
    """Leave the specification's weights in the model, and return what a loop may return."""
    made = spec.train(model, epochs, settings)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(made.weights[name])
    return {"validation_losses": made.validation_losses, "best_weights": made.best_weights}
