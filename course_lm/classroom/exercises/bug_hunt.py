"""Exercises of lesson 16: loops to mend, each one put to the audit of the parts that it has."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, AdamW

from course_lm import audit
from course_lm.audit import spec
from course_lm.audit.runs import ladder
from course_lm.classroom.checks import Exercise, Refused, Report, exercise
from course_lm.loss import count_targets, next_token_loss
from course_lm.optim import parameter_groups


def _audited(
    *, parts: Sequence[str], runs: Sequence[str], needs: Sequence[str], keys: Sequence[str] = ()
) -> Callable[[Callable[..., Any]], Exercise]:
    """First a few runs, for an answer that is not written yet or cannot run; then the audit has the word.

    Args:
        parts: what the audit looks at.
        runs: names of the first runs.
        needs: settings that the answer must heed, though an audit lets a loop be without them.
        keys: of what the answer must return.
    """
    must_return = f"the loop must return a dict with {' and '.join(keys)}, as the one to mend does"
    known = {case.name: case for case in ladder()}

    def run(loop: Callable[..., Any], name: str) -> dict[str, Tensor]:
        case = known[name]
        model = case.model()
        returned = loop(model, case.epochs, case.settings)
        if keys and not (isinstance(returned, Mapping) and all(returned.get(key) is not None for key in keys)):
            raise Refused(must_return)
        return {name: weight.detach() for name, weight in model.named_parameters()}

    def judge(loop: Callable[..., Any], report: Report) -> Report:
        is_refused = report.status == "wrong" and (not report.args or report.message == must_return)
        if report.status in ("not written yet", "raised") or is_refused:
            return report
        found = audit.audit(loop, parts=parts, progress=False)
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

    return exercise(cases={name: (name,) for name in runs}, run=run, close=(1e-9, 1e-12), judge=judge)


@_audited(
    parts=("accumulation",),
    runs=("two equal micro-batches", "a tail in each of two epochs"),
    needs=("accumulation_steps",),
)
def mended_windows(model, epochs, settings):
    """Accumulation: `fn(model, epochs, settings)` makes one step of each window."""
    optimizer = SGD(model.parameters(), lr=settings.schedule(0))
    size = settings.accumulation_steps
    for batches in epochs:
        for first in range(0, len(batches), size):
            window = batches[first : first + size]
            targets = sum(count_targets(batch["labels"]) for batch in window)
            if targets == 0:
                continue
            optimizer.zero_grad()
            for batch in window:
                logits = model(batch["input_ids"], attention_mask=batch["attention_mask"])
                loss = next_token_loss(logits, batch["labels"], reduction="sum")
                (loss / targets).backward()
            optimizer.step()
    return {"ignores": {"momentum", "schedule"}}


@_audited(
    parts=("validation",),
    runs=("validation after each epoch",),
    needs=("validation",),
    keys=("validation_losses", "best_weights"),
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


@_audited(
    parts=("optimizer", "schedule"),
    runs=("AdamW", "decay under rates that move"),
    needs=("weight_decay", "beta1", "beta2", "epsilon", "schedule"),
)
def mended_adamw(model, epochs, settings):
    """AdamW under a schedule: `fn(model, epochs, settings)`."""
    betas = (settings.beta1, settings.beta2)
    groups = parameter_groups(model, settings.weight_decay)
    optimizer = AdamW(groups, lr=1.0, betas=betas, eps=settings.epsilon)
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, settings.schedule)
    for batches in epochs:
        for batch in batches:
            optimizer.zero_grad()
            next_token_loss(model(batch["input_ids"], batch["attention_mask"]), batch["labels"]).backward()
            optimizer.step()
            rates.step()
    return {"ignores": {"optimizer", "accumulation_steps", "max_grad_norm", "validation", "loss_scale"}}
