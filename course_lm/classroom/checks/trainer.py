"""Checks of lesson 12: the same step in less memory, a loss of one's own, the files of a run."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.nn import functional as F

from course_lm.classroom.checks.comparison import plain
from course_lm.classroom.checks.report import AnyOf, Edit, Report, compare, with_gradient


def same_step(fn: Callable[..., object]) -> Report:
    """(batch_size, accumulation_steps) of the same step: `fn(batch_size, accumulation_steps, rows_that_fit)`."""
    total, first = "batch_size * accumulation_steps", "min(rows_that_fit, total)"
    search = "    while total % rows:\n        rows -= 1\n"
    result = "rows, total // rows"

    def largest(total: int, divided: int, fit: int) -> tuple[int, int]:
        rows = max(rows for rows in range(1, min(fit, total) + 1) if divided % rows == 0)
        return rows, total // rows

    def halved(rows: int, total: int, fit: int) -> tuple[int, int]:
        while rows > fit:
            rows //= 2
        return rows, total // rows

    return compare(
        fn,
        reference=lambda batch, steps, fit: largest(batch * steps, batch * steps, fit),
        cases={
            "seven rows at a time": ((5, 100, 7, 1), 7, 1),
            "32 rows at a time": ((16, 10, 64, 1), 32, 1),
            "four times 32 rows": ((10, 32, 40, 64, 100, 200), 32, 4),
            "twice twelve rows": ((9, 11, 5, 23), 12, 2),
        },
        shown=["seven rows at a time", "32 rows at a time", "four times 32 rows", "twice twelve rows"],
        mistakes={
            "batch_size is lowered and accumulation_steps is not raised": lambda batch, steps, fit: (
                min(batch, fit),
                steps,
            ),
            "as many rows are taken as fit, and rounding up makes the step larger": AnyOf(
                (Edit(search, ""), Edit("total // rows", "-(-total // rows)")),
                (Edit(search, ""), Edit(first, "rows_that_fit"), Edit("total // rows", "-(-total // rows)")),
            ),
            "as many rows are taken as fit, and rounding down makes the step smaller": AnyOf(
                Edit(search, ""), (Edit(search, ""), Edit(first, "rows_that_fit"))
            ),
            "as many rows are taken as fit, and accumulation_steps is rounded to the nearest number": (
                Edit(search, ""),
                Edit("total // rows", "round(total / rows)"),
            ),
            "as many rows are taken as fit, and accumulation_steps is not rounded": AnyOf(
                (Edit(search, ""), Edit("total // rows", "total / rows")),
                (Edit(search, ""), Edit(first, "rows_that_fit"), Edit("total // rows", "total / rows")),
            ),
            "the largest power of two that fits is taken": AnyOf(
                lambda batch, steps, fit: (_power_of_two(fit), batch * steps // _power_of_two(fit)),
                lambda batch, steps, fit: (_power_of_two(fit), -(-batch * steps // _power_of_two(fit))),
                lambda batch, steps, fit: largest(batch * steps, batch * steps, _power_of_two(fit)),
            ),
            "only divisors of the old batch_size are tried, not of all rows of the step": lambda batch, steps, fit: (
                largest(batch * steps, batch, min(fit, batch))
            ),
            "no more rows are taken than the old batch_size, though more fit": Edit(
                first, "min(rows_that_fit, batch_size)"
            ),
            "batch_size is halved until it fits": lambda batch, steps, fit: halved(batch, batch * steps, fit),
            "batch_size is halved and accumulation_steps doubled until it fits": _halved_and_doubled,
            "the rows of the step are halved until they fit": lambda batch, steps, fit: halved(
                batch * steps, batch * steps, fit
            ),
            "the rows that fit are halved until they divide the step": Edit("rows -= 1", "rows //= 2"),
            "the greatest common divisor with rows_that_fit is taken, not the largest that fits": (
                Edit(search, ""),
                Edit(first, "__import__('math').gcd(total, rows_that_fit)"),
            ),
            "the greatest common divisor of batch_size and rows_that_fit is taken": (
                Edit(search, ""),
                Edit(first, "__import__('math').gcd(batch_size, rows_that_fit)"),
            ),
            "one row at a time is taken, which fits and is the slowest": Edit(first, "1"),
            "the two numbers are swapped": Edit(result, "total // rows, rows"),
            "accumulation_steps is left out of the rows of the step": Edit(total, "batch_size"),
            "rows_that_fit itself is not tried": AnyOf(
                Edit(first, "min(rows_that_fit - 1, total)"),
                Edit(first, "max(1, min(rows_that_fit - 1, total))"),
            ),
            "the search goes upwards, to more rows than fit": Edit("rows -= 1", "rows += 1"),
            "the smallest number of micro-batches is right, but it is multiplied by the old accumulation_steps": Edit(
                result, "rows, total // rows * accumulation_steps"
            ),
            "accumulation_steps counts the parts of the old batch_size alone": Edit(result, "rows, batch_size // rows"),
            "accumulation_steps counts the parts of the old batch_size alone, rounded up": Edit(
                result, "rows, -(-batch_size // rows)"
            ),
            "the rows are right, and accumulation_steps is the old one": Edit(result, "rows, accumulation_steps"),
            "the rows of the step stand in the place of accumulation_steps": Edit(result, "rows, total"),
            "the first divisor found from 2 upwards is taken": lambda batch, steps, fit: next(
                ((rows, batch * steps // rows) for rows in range(2, fit + 1) if batch * steps % rows == 0),
                (1, batch * steps),
            ),
        },
        run=_for_each_fit,
        hints={
            "total = ": "The rows of one step, batch_size · accumulation_steps, must not change.",
            "while total": "A size is exact only if it divides the rows of the step: go down until one does.",
            "return rows": "accumulation_steps is the rows of the step divided by the rows of one micro-batch.",
        },
    )


def _for_each_fit(fn: Callable[..., object], fits: Iterable[int], batch_size: int, steps: int) -> list[object]:
    return [fn(batch_size, steps, fit) for fit in fits]


def _power_of_two(most: int) -> int:
    return 2 ** (most.bit_length() - 1)


def _halved_and_doubled(batch_size: int, accumulation_steps: int, rows_that_fit: int) -> tuple[int, int]:
    while batch_size > rows_that_fit:
        batch_size, accumulation_steps = batch_size // 2, accumulation_steps * 2
    return batch_size, accumulation_steps


def focal_loss(fn: Callable[..., object]) -> Report:
    """(1 − p)² · −log p over the targets: `fn(logits, labels, reduction)`, "mean" or "sum"; value and gradient."""
    cut, wanted, scored = "labels[:, 1:].flatten()", "labels[:, 1:]", "logits[:, :-1]"
    factor, counted = "(1 - torch.exp(-nats)) ** 2", "(targets != -100).sum()"
    either = " / (targets != -100).sum()"
    no_shift = (Edit(wanted, "labels"), Edit(scored, "logits"))

    def right(logits: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
        losses = _costs(logits, labels, lambda log_p: (1 - log_p.exp()) ** 2)
        return losses.sum() if reduction == "sum" else losses.sum() / (labels[:, 1:] != -100).sum()

    def of_the_loss(of_sum: bool) -> Callable[..., Tensor]:
        """The factor comes from the loss of the whole batch, with the sum as it is or as it comes from the mean."""

        def loss(logits: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
            count = (labels[:, 1:] != -100).sum()
            total = _costs(logits, labels, torch.ones_like).sum()
            nats = total if of_sum and reduction == "sum" else total / count
            found = (1 - torch.exp(-nats)) ** 2 * nats
            return found * count if reduction == "sum" and not of_sum else found

        return loss

    def of_rows(logits: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
        losses = _costs(logits, labels, lambda log_p: (1 - log_p.exp()) ** 2)
        return losses.sum() if reduction == "sum" else (losses.sum(1) / (labels[:, 1:] != -100).sum(1)).mean()

    def with_first(logits: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
        losses = _costs(logits, labels, lambda log_p: (1 - log_p.exp()) ** 2)
        return losses.sum() if reduction == "sum" else losses.sum() / (labels != -100).sum()

    def of_largest(logits: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
        largest = logits[:, :-1].softmax(-1).amax(-1)
        losses = _costs(logits, labels, lambda log_p: (1 - largest) ** 2)
        return losses.sum() if reduction == "sum" else losses.sum() / (labels[:, 1:] != -100).sum()

    def of_softmax(logits: Tensor, labels: Tensor, reduction: str = "mean", more: float = 0.0) -> Tensor:
        chosen = labels[:, 1:] != -100
        p = logits[:, :-1].softmax(-1).gather(-1, labels[:, 1:, None].clamp(min=0)).squeeze(-1)[chosen]
        losses = (1 - p) ** 2 * -(p + more).log()
        return losses.sum() if reduction == "sum" else losses.mean()

    def masked_last(logits: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
        p = logits[:, :-1].softmax(-1).gather(-1, labels[:, 1:, None].clamp(min=0)).squeeze(-1)
        losses = ((1 - p) ** 2 * -p.log())[labels[:, 1:] != -100]
        return losses.sum() if reduction == "sum" else losses.mean()

    def with_small_number(logits: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
        return of_softmax(logits, labels, reduction, more=1e-8)

    def of_sigmoid(logits: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
        scores = logits[:, :-1].gather(-1, labels[:, 1:, None].clamp(min=0)).squeeze(-1)
        losses = _costs(logits, labels, lambda log_p: (1 - scores.sigmoid()) ** 2)
        return losses.sum() if reduction == "sum" else losses.sum() / (labels[:, 1:] != -100).sum()

    return compare(
        fn,
        reference=right,
        run=with_gradient,
        close=(1e-5, 1e-7),  # computed in float32, as mixed precision does it, the loss is as right
        cases={
            "two short rows, the mean": _logits_and_labels(3, torch.float64, rows=2, length=3, vocab_size=2, digits=1),
            "three rows, the mean by name": (*_logits_and_labels(2, torch.float64, rows=3, length=7), "mean"),
            "two rows in float32, the sum": (*_logits_and_labels(0, torch.float32), "sum"),
            "large logits": _logits_and_labels(1, torch.float64, scale=500.0),
        },
        shown=["two short rows, the mean", "three rows, the mean by name", "two rows in float32, the sum"],
        mistakes={
            "logits and labels are not shifted against each other": no_shift,
            "the shift goes the wrong way: position t is scored against label t − 1": (
                Edit(wanted, "labels[:, :-1]"),
                Edit(scored, "logits[:, 1:]"),
            ),
            "the shift is made twice: position t is scored against label t + 2": (
                Edit(wanted, "labels[:, 2:]"),
                Edit(scored, "logits[:, :-2]"),
            ),
            "there is no shift: the last position is cut off logits and labels alike": Edit(wanted, "labels[:, :-1]"),
            "there is no shift: the first position is cut off logits and labels alike": Edit(scored, "logits[:, 1:]"),
            "labels of −100 are counted": Edit(cut, f"{cut}.clamp(min=0)"),
            "labels of −100 cost as much as id 0 would, and are left out of the count alone": (
                Edit("targets, reduction", "targets.clamp(min=0), reduction")
            ),
            "`reduction` is not looked at: the sum is divided too": Edit(
                'return total if reduction == "sum" else ', "return "
            ),
            "`reduction` is not looked at: the mean is not divided": Edit(either, ""),
            "the two reductions are exchanged: the sum is divided and the mean is not": Edit('== "sum"', '!= "sum"'),
            "the mean is over all positions, the ignored ones too": Edit(counted, "targets.numel()"),
            "the mean is over all positions, the ignored ones and the last one too": Edit(counted, "labels.numel()"),
            "the mean divides by all labels that are not −100, each row's first one too": with_first,
            "the mean divides by the number of rows": Edit(counted, "len(labels)"),
            "every row weighs the same: a mean of means": of_rows,
            "the factor is p², which favours what is known already": Edit("(1 - torch.exp(-nats))", "torch.exp(-nats)"),
            "the factor is 1 − p, not its square": Edit(" ** 2", ""),
            "the factor is 1 − p², not (1 − p)²": Edit(factor, "(1 - torch.exp(-nats) ** 2)"),
            "the factor is the root of 1 − p": Edit(" ** 2", " ** 0.5"),
            "the factor is missing: this is the plain loss": Edit(f"({factor} * nats)", "nats"),
            "the loss is missing: the factors (1 − p)² alone are added up": Edit(" * nats)", ")"),
            "the whole cost is squared, (1 − p) and −log p": Edit(
                f"({factor} * nats)", "(((1 - torch.exp(-nats)) * nats) ** 2)"
            ),
            "the factor comes from the loss of the whole batch, once, not from each target's own p": AnyOf(
                of_the_loss(False), of_the_loss(True)
            ),
            "the factor is detached: it is right, but no gradient flows through it": AnyOf(
                Edit("torch.exp(-nats)", "torch.exp(-nats.detach())"),
            ),
            "the factor is 1 − p of the likeliest id, not of the target": of_largest,
            "p is a sigmoid of the target's logit, not its softmax": of_sigmoid,
            "p is exp(nats), which is above 1: the minus sign is missing": Edit("exp(-nats)", "exp(nats)"),
            "−log p stands for p in the factor: (1 + log p)²": Edit("torch.exp(-nats)", "nats"),
            "log p stands for p in the factor: (1 − log p)²": Edit("torch.exp(-nats)", "(-nats)"),
            "the sign is wrong: log p is not made positive": Edit(" ** 2 * nats", " ** 2 * -nats"),
            "the logarithm has base 2": Edit(" ** 2 * nats", " ** 2 * nats / 0.6931471805599453"),
            "each cost is multiplied by α = 0.25, as in the balanced form of the paper": Edit("((1 -", "(0.25 * (1 -"),
            "the softmax comes before cross_entropy, which takes logits and makes a softmax itself": Edit(
                ".flatten(0, 1)", ".flatten(0, 1).softmax(-1)"
            ),
            "the logarithm is taken of a softmax, which is 0 for large logits": AnyOf(of_softmax, masked_last),
            "a small number is added to the softmax before its logarithm": with_small_number,
            "the costs are not added up: there is one for each position": Edit(" * nats).sum()", " * nats)"),
        },
        hints={
            "targets = ": "Position t predicts token t + 1: cut the last logits off, and the first labels.",
            "nats = ": '`F.cross_entropy(..., reduction="none")` gives −log p at all positions, 0 at ignored ones.',
            "total = ": "Each target has its own p = exp(−nats), and costs (1 − p)² · nats.",
            "return total": "The mean is the sum divided by the targets that are not −100.",
        },
    )


def _costs(logits: Tensor, labels: Tensor, factor: Callable[[Tensor], Tensor]) -> Tensor:
    """A factor of log p, times −log p, for all positions but the last; 0 where the target is −100."""
    log_p = F.log_softmax(logits[:, :-1], -1).gather(-1, labels[:, 1:, None].clamp(min=0)).squeeze(-1)  # (B, T - 1)
    return (factor(log_p) * -log_p).masked_fill(labels[:, 1:] == -100, 0.0)


def _logits_and_labels(
    seed: int,
    dtype: torch.dtype,
    rows: int = 2,
    length: int = 6,
    vocab_size: int = 5,
    scale: float = 1.0,
    digits: int = 6,
) -> tuple[Tensor, Tensor]:
    """Logits and labels, some of which are −100, with other numbers of them in the rows."""
    generator = torch.Generator().manual_seed(seed)
    logits = (scale * torch.randn(rows, length, vocab_size, generator=generator)).to(dtype)
    labels = torch.randint(vocab_size, (rows, length), generator=generator)
    labels[0, max(2, length - 2) :], labels[1, : length // 3] = -100, -100
    return logits.mul(10**digits).round().div(10**digits), labels


def checkpoints_left(fn: Callable[..., object]) -> Report:
    """Names of a finished run's checkpoints: `fn(steps_per_epoch, num_epochs, save_steps, save_total_limit)`."""
    epoch_file = '"checkpoint_epoch_{step // steps_per_epoch}.safetensors"'
    step_file = '"checkpoint_step_{step}.safetensors"'
    at_end = f"        if step % steps_per_epoch == 0:\n            names.append(f{epoch_file})\n"
    at_save = f"        elif step % save_steps == 0:\n            names.append(f{step_file})\n"
    kept, result = "*names[-save_total_limit:]", '[*names[-save_total_limit:], "checkpoint_last.safetensors"]'

    def written(per_epoch: int, epochs: int, save: int) -> list[str]:
        """The files on the way, in the order in which they are written."""
        names = []
        for step in range(1, per_epoch * epochs + 1):
            if step % per_epoch == 0:
                names.append(f"checkpoint_epoch_{step // per_epoch}.safetensors")
            elif step % save == 0:
                names.append(f"checkpoint_step_{step}.safetensors")
        return names

    def left(newest: Callable[[list[str], int], list[str]]) -> Callable[[int, int, int, int], list[str]]:
        """What `newest(names, limit)` keeps of the files."""
        return lambda per_epoch, epochs, save, limit: [
            *newest(written(per_epoch, epochs, save), limit),
            "checkpoint_last.safetensors",
        ]

    def of_kind(names: list[str], kind: str) -> list[str]:
        return [name for name in names if kind in name]

    def cleared_at_saves(names: list[str], limit: int) -> list[str]:
        folder: list[str] = []
        for name in names:
            folder.append(name)
            folder = folder[-limit:] if "step" in name else folder
        return folder

    return compare(
        fn,
        reference=left(lambda names, limit: names[-limit:]),
        cases={
            "two epochs of ten": (10, 2, 4, 3),
            "saves that fall on the ends of epochs": (10, 3, 5, 4),
            "one is kept": (10, 2, 4, 1),
            "no save within an epoch": (10, 5, 100, 2),
            "fewer files than may stay": (6, 1, 4, 5),
            "twelve epochs": (3, 12, 2, 6),
            "epochs of one step": (1, 4, 2, 6),
            "many are kept": (7, 4, 3, 9),
        },
        shown=["two epochs of ten", "saves that fall on the ends of epochs", "one is kept"],
        mistakes={
            "a step file is written at the end of an epoch too": AnyOf(
                Edit("        elif step % save", "        if step % save"),
                Edit(at_end + at_save, at_save.replace("elif", "if") + at_end),
            ),
            "a save at the end of an epoch gets the step's name, not the epoch's": Edit(
                at_end + at_save, at_save.replace("elif", "if") + at_end.replace("if", "elif", 1)
            ),
            "files of steps and of epochs are limited apart": left(
                lambda names, limit: [*of_kind(names, "step")[-limit:], *of_kind(names, "epoch")[-limit:]]
            ),
            "files of epochs are never deleted": left(
                lambda names, limit: [*of_kind(names, "step")[-limit:], *of_kind(names, "epoch")]
            ),
            "files of epochs are never deleted, and count within the limit": left(
                lambda names, limit: [
                    name for i, name in enumerate(names) if "epoch" in name or i >= len(names) - limit
                ]
            ),
            "files of steps are never deleted": left(
                lambda names, limit: [*of_kind(names, "step"), *of_kind(names, "epoch")[-limit:]]
            ),
            "all files of epochs are taken to be newer than those of steps": left(
                lambda names, limit: [*of_kind(names, "step"), *of_kind(names, "epoch")][-limit:]
            ),
            "all files of steps are taken to be newer than those of epochs": left(
                lambda names, limit: [*of_kind(names, "epoch"), *of_kind(names, "step")][-limit:]
            ),
            "files of steps are limited, and of the epochs only the last one stays": left(
                lambda names, limit: [*of_kind(names, "step")[-limit:], *of_kind(names, "epoch")[-1:]]
            ),
            "checkpoint_last.safetensors counts within the limit": AnyOf(
                Edit(result, '[*names, "checkpoint_last.safetensors"][-save_total_limit:]'),
                Edit(kept, "*names[1 - save_total_limit:]"),
            ),
            "checkpoint_last.safetensors is forgotten": Edit(result, "names[-save_total_limit:]"),
            "the oldest files stay, not the newest": Edit(kept, "*names[:save_total_limit]"),
            "the newest files are deleted, as many as should stay": Edit(kept, "*names[:-save_total_limit]"),
            "nothing is deleted: save_total_limit is not used": Edit(kept, "*names"),
            "one file too many stays": Edit(kept, "*names[-save_total_limit - 1:]"),
            "the newest is found among names sorted as text": Edit(kept, "*sorted(names)[-save_total_limit:]"),
            "the newest is found by the number in a name, steps and epochs mixed": left(
                lambda names, limit: sorted(names, key=lambda name: int("".join(filter(str.isdigit, name))))[-limit:]
            ),
            "old files are deleted only when a file of a step is written": left(cleared_at_saves),
            "the epochs are counted from 0": Edit("step // steps_per_epoch}", "step // steps_per_epoch - 1}"),
            "the file of an epoch carries the number of its last step": Edit("{step // steps_per_epoch}", "{step}"),
            "the steps are counted anew in each epoch": AnyOf(
                (
                    Edit("{step}", "{step % steps_per_epoch}"),
                    Edit("step % save_steps", "step % steps_per_epoch % save_steps"),
                ),
            ),
            "the steps are counted anew in each epoch, in the names": Edit("{step}", "{step % steps_per_epoch}"),
            "save_steps is counted anew in each epoch, though the names count all steps": Edit(
                "step % save_steps", "step % steps_per_epoch % save_steps"
            ),
            "the file of a step carries the number of the save, not of the step": Edit(
                "{step}", "{step // save_steps}"
            ),
            "no files of epochs are written": Edit(f"names.append(f{epoch_file})", "pass"),
            "no files of epochs are written, but a save at the end of an epoch is": Edit(
                at_end + at_save, at_save.replace("elif", "if")
            ),
            "no files of steps are written": Edit(at_save, ""),
            "the last epoch has no file: checkpoint_last.safetensors stands in its place": Edit(
                "steps_per_epoch * num_epochs + 1", "steps_per_epoch * num_epochs"
            ),
            "the first step counts from 0: files of step 0 and epoch 0 are written": Edit(
                "range(1, steps_per_epoch * num_epochs + 1)", "range(steps_per_epoch * num_epochs + 1)"
            ),
            "only one epoch is run": Edit("steps_per_epoch * num_epochs + 1", "steps_per_epoch + 1"),
            "the names have no `.safetensors` at their end": (
                Edit("steps_per_epoch}.safetensors", "steps_per_epoch}"),
                Edit("{step}.safetensors", "{step}"),
                Edit("last.safetensors", "last"),
            ),
            "the names do not begin with `checkpoint_`": (
                Edit("checkpoint_epoch", "epoch"),
                Edit("checkpoint_step", "step"),
                Edit("checkpoint_last", "last"),
            ),
            "checkpoint_last.safetensors stands there once for each file that stays": Edit(
                result, '[one for name in names[-save_total_limit:] for one in (name, "checkpoint_last.safetensors")]'
            ),
        },
        run=_in_order,
        hints={
            "for step in": "Go through all steps of the run, counted from 1, and write down the names in their order.",
            "steps_per_epoch == 0": "At the end of an epoch its file is written, and no file of that step.",
            "return [": "The newest `save_total_limit` of both kinds together, then checkpoint_last.safetensors.",
        },
    )


def _in_order(fn: Callable[..., object], *args: int) -> object:
    """The names, sorted: in which order an answer gives them does not matter."""
    result = fn(*args)
    names = plain(list[object](result) if isinstance(result, set | frozenset) else result)
    if not isinstance(names, list | tuple):
        return names
    texts = [name for name in names if isinstance(name, str)]
    return sorted(texts) if len(texts) == len(names) else names
