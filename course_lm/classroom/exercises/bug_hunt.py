"""Exercises of lesson 16: a test of a loop to write, a fault to corner from outside, and a loop to mend."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD

from course_lm import audit
from course_lm.accumulation import windows
from course_lm.audit import spec
from course_lm.audit.model import make_model
from course_lm.audit.runs import Constant, Epochs, Rows, ladder
from course_lm.classroom.checks import Refused, Report, exercise
from course_lm.loss import count_targets, next_token_loss

# The loops on which the test of a short last window is tried: it must refuse these, and accept all others.
SHORT_WINDOW = ("tail_dropped", "tail_leaks", "tail_divided_by_full", "windows_across_epochs")
ACCEPTED = ("the right loop", "mean_of_means", "schedule_per_epoch")


def _says(test: Callable[..., Any], name: str) -> bool | None:
    """What the test says of the specification with the fault of that name; None where it says nothing."""
    faults = (name,) if name in spec.FAULTS else ()

    def weights(epochs: Epochs, **settings: Any) -> Tensor:
        given = replace(spec.Settings(optimizer="sgd", schedule=Constant(0.3)), **settings)
        made = spec.train(make_model(0), epochs, given, faults)
        return torch.cat([weight.flatten() for weight in made.weights.values()])

    try:
        said = test(weights)
    except AssertionError:
        return False
    return None if said is None else bool(said)


def _in_one_line(test: Callable[..., Any], report: Report) -> Report:
    """The faults that a test misses, and the loops that it should have accepted."""
    if report.passed:
        return replace(report, message=f"finds all {len(SHORT_WINDOW)} faults, and accepts what it should")
    said = {name: _says(test, name) for name in (*SHORT_WINDOW, *ACCEPTED)} if report.status == "wrong" else {}
    if not said or None in said.values():
        return report
    missed, refused = [one for one in SHORT_WINDOW if said[one]], [one for one in ACCEPTED if not said[one]]
    words = [f"{verb} {', '.join(names)}" for verb, names in (("misses", missed), ("refuses", refused)) if names]
    return replace(report, message="; ".join(words), details="", folded="")


@exercise(cases={name: (name,) for name in (*SHORT_WINDOW, *ACCEPTED)}, run=_says, judge=_in_one_line)
def short_window(weights):
    """Test of the last, smaller window of an epoch: `fn(weights)` says whether the loop treats it right."""
    six = Rows(seed=0).batch(5, 5, 5, 5, 5, 5)

    def only(*rows):
        return {name: six[name][list(rows)] for name in six}

    short = [[only(0), only(1), only(2)], [only(3), only(4), only(5)]]
    whole = [[only(0, 1), only(2)], [only(3, 4), only(5)]]
    return torch.allclose(weights(short, accumulation_steps=2), weights(whole))


def mystery(model, epochs, settings):
    """A loop with a mistake that the audit has no name for. Corner it from outside before you read on."""
    optimizer = SGD(model.parameters(), lr=settings.schedule(0))
    for batches in epochs:
        for window in windows(batches, settings.accumulation_steps):
            optimizer.zero_grad()
            for batch in window:
                logits = model(batch["input_ids"], batch["attention_mask"])
                total = next_token_loss(logits, batch["labels"], reduction="sum")
                (total / max(1, len(window) * count_targets(window[-1]["labels"]))).backward()
            optimizer.step()
    return {"ignores": {"momentum", "schedule"}}


@exercise(cases={str(targets): (targets,) for targets in ([3], [4, 4], [2, 6], [6, 2], [1, 5, 2], [2, 7, 4, 3])})
def times_as_far(targets):
    """How far `mystery` goes: `fn(targets)`, the target tokens of each micro-batch of one window."""
    return sum(targets) / (len(targets) * targets[-1])


RETURNED = ("validation_losses", "best_weights")
MUST_RETURN = f"the loop must return a dict with {' and '.join(RETURNED)}, as the one to mend does"
_CASES = {case.name: case for case in ladder(parts=("validation",))}


def _weights_after(loop: Callable[..., Any], name: str) -> dict[str, Tensor]:
    case = _CASES[name]
    model = case.model()
    returned = loop(model, case.epochs, case.settings)
    if not (isinstance(returned, Mapping) and all(returned.get(key) is not None for key in RETURNED)):
        raise Refused(MUST_RETURN)
    return {name: weight.detach() for name, weight in model.named_parameters()}


def _audited(loop: Callable[..., Any], report: Report) -> Report:
    """The report of an answer that runs is what the audit says of it."""
    is_refused = report.status == "wrong" and (not report.args or report.message == MUST_RETURN)
    if report.status in ("not written yet", "raised") or is_refused:
        return report
    found = audit.audit(loop, parts=("validation",), progress=False)
    if found.sound and report.status == "wrong":
        return report  # an audit lets a loop return nothing
    if found.sound and "validation" not in found.ignored:
        return replace(report, status="passed", message=found.verdict, details="", folded="")
    message = found.verdict
    if found.sound:
        message = "the loop does not heed settings.validation, which the exercise asks for"
    elif found.faults:
        message = f"this is what you get when {'; and '.join(spec.FAULTS[name] for name in found.faults)}"
    elif found.case is not None:
        message = "; ".join([message, *found.notes, f"the first run that shows it: {found.case.name}"])
    return replace(report, status="wrong", message=message, details="", folded=str(found))


@exercise(
    cases={"validation after each epoch": ("validation after each epoch",)},
    run=_weights_after,
    close=(1e-9, 1e-12),
    judge=_audited,
)
def mended_validation(model, epochs, settings):
    """Validation after each epoch, and a copy of the best weights: `fn(model, epochs, settings)`."""
    optimizer, losses, best = SGD(model.parameters(), lr=1.0), [], None
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, settings.schedule)
    for batches in epochs:
        for batch in batches:
            optimizer.zero_grad()
            next_token_loss(model(batch["input_ids"], batch["attention_mask"]), batch["labels"]).backward()
            optimizer.step()
            rates.step()
        model.eval()
        with torch.no_grad():
            total, targets = 0.0, 0
            for batch in settings.validation:
                logits = model(batch["input_ids"], batch["attention_mask"])
                total += float(next_token_loss(logits, batch["labels"], reduction="sum"))
                targets += int(count_targets(batch["labels"]))
        model.train()
        losses.append(total / targets)
        if losses[-1] == min(losses):
            best = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    return {"validation_losses": losses, "best_weights": best}
