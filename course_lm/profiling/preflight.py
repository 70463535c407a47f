"""What would spoil a long run, tried in seconds on its own model and batches before it begins.

Each check is a function that gives a `Check`. All that they change is undone, and what they write lies in a temporary
folder. A check that cannot be tried here says so and why; it never counts as passed.
"""

import io
import math
import os
import shutil
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from copy import deepcopy
from dataclasses import dataclass, replace
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from course_lm.accumulation import count_window_targets, windows
from course_lm.batching.data import kept, read_from_start
from course_lm.checkpoints import check_folder
from course_lm.checkpoints.parts import whole_on_cpu
from course_lm.clipping import clip_gradients
from course_lm.config import TrainingConfig
from course_lm.display import readable_bytes
from course_lm.forward import AnyBatch, forward_logits, move_batch, unwrap
from course_lm.guard import check_window
from course_lm.lr_finder.trial import restored
from course_lm.model import GPT, evaluation_mode
from course_lm.monitoring.utilization import Work, peak_flops
from course_lm.precision import Precision, resolve_precision
from course_lm.profiling.plan import plan_of
from course_lm.reproducibility import resolve_device
from course_lm.schedules import ScheduleConfig
from course_lm.step import StepResult, take_step
from course_lm.trainer import Trainer
from course_lm.trainer.resume import load_newest
from course_lm.trainer.run import count_steps, run_folder
from course_lm.validation import ensure, named

OK, WRONG, NOTE = "ok", "wrong", "note"
FROM_CHANCE = 1.0  # nats per token by which a first loss may lie above log V
HEART_ROWS, HEART_STEPS, HEART_WARM_UP, HEART_SHARE = 4, 60, 10, 0.5  # the share of the first loss that is to be left
TOLERANCE = 1e-3  # of the norm, or of the standard deviation: float32 rounds to a hundredth of it
STOPPED_AFTER, STEPS = 2, 3  # of the run that is stopped and resumed
TIMED_STEPS, SECONDS = 5, 15.0  # seconds that a single check may take; one that would take longer is left out
SHARED, LEAST_PIECE, MOST_TOKENS = 0.01, 16, 2**20  # share of pieces, tokens of one that counts, tokens that are read


@dataclass(frozen=True)
class Check:
    """One thing that was looked at: "ok", "wrong", or a "note", which is a measurement or says what was left out."""

    name: str
    verdict: str
    found: str


ALL_ELSE = Check("all else", NOTE, "left out: nothing is computed where memory is too small")


@dataclass(frozen=True)
class Subject:
    """What is tried: a trainer that writes nothing and the first window of its data.

    Attributes:
        loss: of the first step, nats per token.
        seconds: of a step, the median of a few.
    """

    trainer: Trainer
    loader: Iterable[AnyBatch]
    window: list[AnyBatch]
    loss: float = math.nan
    seconds: float = math.nan

    def step(self, batches: list[AnyBatch], lr: float = 0.0, **changes: Any) -> StepResult:
        """Take a step as the run does, but for `changes` of its options."""
        trainer = self.trainer
        return take_step(trainer.runner, batches, trainer.optimizer, trainer.options._replace(**changes), lr=lr)

    @property
    def steps(self) -> int:
        """Optimizer steps of the run; where minutes decide, as many as fit in at the measured pace."""
        settings = self.trainer.settings
        if settings.must_be_timed:
            return int(60 * (settings.time_budget or 0) / self.seconds)
        return count_steps(self.loader, settings)


def preflight(
    model: nn.Module,
    config: TrainingConfig,
    train_loader: Iterable[AnyBatch],
    val_loader: Iterable[AnyBatch] | None = None,
    started: float | None = None,
) -> list[Check]:
    """Try what a run of `model` as configured needs, in one process, with the optimizer and loss of `config`.

    The model is moved to the configured device and takes the weights of `training.init_from`; all else of it is put
    back. Nothing is computed where the memory would not suffice. The minutes of a time budget count from `started`, on
    `trainer.budget.clock`, or from when they are looked at.

    Raises:
        TypeError, ValueError: what a `Trainer` refuses; or the training loader is an iterator, which this would use up.
    """
    if isinstance(train_loader, Iterator):
        raise ValueError(f"preflight reads the training loader again and again, got a {type(train_loader).__name__}")
    ours = isinstance(unwrap(model), GPT)
    memory = check_memory(config) if ours else Check("memory", NOTE, "left out: plan knows the package's own model")
    if memory.verdict == WRONG:
        return [memory, ALL_ELSE]
    settings = replace(config.training, output_dir=None, compile=False)
    off = {name: replace(vars(config)[name], enabled=False) for name in ("curriculum", "tensorboard", "wandb")}
    trainer = Trainer(model, replace(config, training=settings, **off))
    with restored(trainer.model, trainer.optimizer, train_loader, trainer.options.loss_fn):
        trainer.model.train()
        new = Subject(trainer, train_loader, [])
        checks = [memory, _tried("beginning", lambda _: _check_beginning(new, config, val_loader, started), new)]
        subject = _measured(trainer, train_loader)
        checks += [_check_first_loss(subject), _check_disk(subject, config), *_describe_speed(subject)]
    for name, check in (
        ("causality", _check_causality),
        ("split batch", _check_split),
        ("one batch by heart", _check_by_heart),
        ("stop and resume", _check_resume),
    ):
        checks.append(_tried(name, check, subject))
    if val_loader is None:
        return [*checks, Check("rows in both splits", NOTE, "left out: there is no validation loader")]
    return [*checks, _tried("rows in both splits", lambda _: _check_leak(train_loader, val_loader), subject)]


def check_memory(config: TrainingConfig) -> Check:
    """What the plan predicts for one process, beside the memory of the device; needs no model."""
    device = resolve_device(config.training.device)
    precision = resolve_precision(config.training.precision, device)
    planned = plan_of(config, 1, "ddp", precision, device.type)
    there = _memory_of(device)
    found = f"{readable_bytes(planned.held)} predicted, {readable_bytes(there or 0)} on {device}"
    if there is None:
        return Check("memory", NOTE, f"{found}, where 0 stands for not known")
    return Check("memory", OK if planned.held <= there else WRONG, found)


def _memory_of(device: torch.device) -> int | None:
    """Bytes of the whole device, other programs' included; None where nobody tells."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    names = getattr(os, "sysconf_names", {})  # Windows has none
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if "SC_PHYS_PAGES" in names else None


def _tried(name: str, check: Callable[[Subject], tuple[str, str]], subject: Subject) -> Check:
    """The check, with all undone; whatever it raises, a run would raise too."""
    trainer = subject.trainer
    try:
        with restored(trainer.model, trainer.optimizer, subject.loader, trainer.options.loss_fn):
            return Check(name, *check(subject))
    except Exception as error:
        return Check(name, WRONG, named(error))


def _check_beginning(
    subject: Subject, config: TrainingConfig, val_loader: Iterable[AnyBatch] | None, started: float | None
) -> tuple[str, str]:
    """Begin as the run would, or go on from the newest checkpoint in its folder, and write nothing."""
    folder, newest = run_folder(config), None
    if folder is not None:
        check_folder(folder)
        newest = None if config.training.resume == "never" else load_newest(folder, subject.trainer.group, whole_on_cpu)
    if newest and config.curriculum.enabled and config.training.must_be_timed:
        return NOTE, f"left out: {folder} holds a run whose curriculum has times that follow from its time budget"
    whole = replace(subject.trainer.config, curriculum=config.curriculum)
    trainer = Trainer(deepcopy(subject.trainer.model), whole, started=started)
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the run warns of, it says itself
        if newest:
            trainer.load_state_dict(newest[1])
        trainer.begin(subject.loader, val_loader)
        trainer.log.observers.close()
    how = f"the run in {folder} goes on after step {trainer.step:,}" if newest else "a new run"
    return OK, f"{how}; it ends after step {trainer.total_steps:,}"


def _measured(trainer: Trainer, loader: Iterable[AnyBatch]) -> Subject:
    with read_from_start(loader) as batches:
        window = next(windows(batches, trainer.settings.gradient_accumulation_steps), [])
    ensure(bool(window), "the training loader is empty")
    check_window(trainer.runner, window, None)
    subject, taken = Subject(trainer, loader, window), list[float]()
    loss = float(subject.step(window).loss)  # its time is not typical: memory is allocated
    while len(taken) < TIMED_STEPS and sum(taken) < SECONDS / 2:
        began = time.perf_counter()
        float(subject.step(window).loss)  # waits for the device
        taken.append(time.perf_counter() - began)
    return replace(subject, loss=loss, seconds=statistics.median(taken))


def _check_first_loss(subject: Subject) -> Check:
    loss, chance = subject.loss, math.log(_logits(subject, subject.window[0]).size(-1))
    found = f"{loss:.3f} nats per token, log V is {chance:.3f}"
    if loss < chance - FROM_CHANCE:
        return Check("first loss", NOTE, f"{found}: lower, as weights that were trained before have it")
    return Check("first loss", OK if loss <= chance + FROM_CHANCE else WRONG, found)


@torch.no_grad()
def _logits(subject: Subject, batch: AnyBatch) -> Tensor:
    model = subject.trainer.runner
    with evaluation_mode(model):
        return forward_logits(model, move_batch(batch, subject.trainer.device, subject.trainer.model))


def _check_causality(subject: Subject) -> tuple[str, str]:
    batch = subject.window[0]
    ids, half = batch["input_ids"], batch["input_ids"].size(1) // 2 or 1
    tokens = ids.unique()
    others = tokens[(torch.searchsorted(tokens, ids) + 1) % len(tokens)]  # another token at each place
    changed: Any = {**batch, "input_ids": torch.cat([ids[:, :half], others[:, half:]], dim=1)}
    first, again, after = (_logits(subject, one)[:, :half] for one in (batch, batch, changed))
    if not torch.equal(first, again):
        return NOTE, "left out: in eval mode the model gives the same tokens other logits each time"
    gap = float((after - first).abs().max() / first.std())
    found = f"logits before token {half} change by {gap:.2g} of their standard deviation when later tokens do"
    return OK if gap <= TOLERANCE else WRONG, found


def _check_split(subject: Subject) -> tuple[str, str]:
    batch = subject.window[0]
    if len(batch["input_ids"]) < 2:
        return NOTE, "left out: the batch has one row"

    def gradient(parts: list[AnyBatch]) -> Tensor:
        precision = Precision("fp32", subject.trainer.device)
        subject.step(parts, max_grad_norm=None, clip=clip_gradients, precision=precision)
        found = [one.grad for group in subject.trainer.optimizer.param_groups for one in group["params"]]
        return torch.cat([one.flatten() for one in found if one is not None])

    with evaluation_mode(subject.trainer.runner):
        whole, split = gradient([batch]), gradient([_rows(batch, slice(1)), _rows(batch, slice(1, None))])
    gap = float((whole - split).norm() / whole.norm())
    return OK if gap <= TOLERANCE else WRONG, f"the gradients of one and of two micro-batches differ by {gap:.2g}"


def _rows(batch: AnyBatch, part: slice) -> Any:
    rows = len(batch["input_ids"])
    return {key: one[part] if isinstance(one, Tensor) and len(one) == rows else one for key, one in batch.items()}


def _check_by_heart(subject: Subject) -> tuple[str, str]:
    batch = _rows(subject.window[0], slice(HEART_ROWS))
    share = len(batch["input_ids"]) / sum(len(one["input_ids"]) for one in subject.window)
    if (expected := HEART_STEPS * share * subject.seconds) > SECONDS:
        return NOTE, f"left out: {HEART_STEPS} steps on {HEART_ROWS} rows would take {_readable_seconds(expected)}"
    peak, losses = subject.trainer.config.optimizer.learning_rate, []
    with evaluation_mode(subject.trainer.runner):  # without dropout
        for step in range(HEART_STEPS):
            rate = peak * min(1.0, (step + 1) / HEART_WARM_UP)
            losses.append(float(subject.step([batch], lr=rate).loss))
    bound = HEART_SHARE * losses[0]
    found = f"{losses[0]:.3f} to {losses[-1]:.3f} nats in {HEART_STEPS} steps on {HEART_ROWS} rows, bound {bound:.3f}"
    return OK if losses[-1] < bound else WRONG, found


def _check_resume(subject: Subject) -> tuple[str, str]:
    settings = subject.trainer.settings
    accumulated = min(2, settings.gradient_accumulation_steps)
    expected = 2 * STEPS * subject.seconds * accumulated / settings.gradient_accumulation_steps
    if expected > SECONDS:
        return NOTE, f"left out: {2 * STEPS} steps would take {_readable_seconds(expected)}"

    short = replace(
        settings,
        gradient_accumulation_steps=accumulated,
        time_budget=None,
        lengths=None,
        early_stopping_patience=None,
        restore_best=False,
        resume="auto",
        init_from=None,  # whose weights the model has by now
    )

    def weights_at(stop: int, folder: str) -> dict[str, Tensor]:
        """The weights of a run in the folder, or of one that goes on there, after the step `stop`."""
        loop = replace(short, output_dir=folder, max_steps=stop)
        constant = ScheduleConfig(type="constant", warmup_steps=0)  # a run may go on for longer
        config = replace(subject.trainer.config, training=loop, lr_scheduler=constant)
        trainer = Trainer(deepcopy(subject.trainer.model), config)
        with kept(subject.loader), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            trainer.train(subject.loader)
        if trainer.interrupted is not None:  # it takes Ctrl-C as the wish to be saved
            raise KeyboardInterrupt
        return trainer.model.state_dict()

    with TemporaryDirectory() as folder:
        straight, _ = weights_at(STEPS, f"{folder}/one"), weights_at(STOPPED_AFTER, f"{folder}/other")
        resumed = weights_at(STEPS, f"{folder}/other")
    same = all(torch.equal(straight[name], resumed[name]) for name in straight)
    found = f"after {STEPS} steps, and after {STOPPED_AFTER}, a stop and the rest, the weights " + (
        "have the same bits" if same else "differ"
    )
    if not same and not settings.deterministic:
        return NOTE, f"{found}, as training.deterministic false allows"
    return OK if same else WRONG, found


def _check_disk(subject: Subject, config: TrainingConfig) -> Check:
    folder, trainer = run_folder(config), subject.trainer
    if folder is None:
        return Check("disk", NOTE, "left out: the run writes no files (training.output_dir is null)")
    weights = sum(one.nbytes for one in trainer.model.state_dict().values())
    held = [one for state in trainer.optimizer.state.values() for one in state.values()]
    moments = sum(one.nbytes for one in held if isinstance(one, Tensor))
    averaged = weights * (config.training.average_weights is not None)
    files = min(config.training.save_total_limit or math.inf, subject.steps // config.training.save_steps + 1)
    needed = int((files + 1) * (weights + moments + averaged) + 2 * weights)  # one is being written; best, and exported
    there = next(one for one in (folder.absolute(), *folder.absolute().parents) if one.exists())
    free = shutil.disk_usage(there).free
    found = f"{readable_bytes(needed)} for {files + 1:g} checkpoints, {readable_bytes(free)} free at {folder}"
    return Check("disk", OK if needed <= free else WRONG, found)


def _describe_speed(subject: Subject) -> list[Check]:
    trainer, seconds = subject.trainer, subject.seconds
    tokens, flops = int(count_window_targets(subject.window)), sum(map(Work(trainer.model).of, subject.window))
    peak = peak_flops(trainer.device, trainer.precision.name)
    share = "the MFU is not known" if peak is None else f"MFU {flops / seconds / peak:.1%}"
    speed = f"{tokens / seconds:,.0f} tokens/s, {share}; {trainer.precision.name} on {trainer.device}, not compiled"
    ends = f"{subject.steps:,} steps, {_readable_seconds(subject.steps * seconds)} without validations and saves"
    return [Check("speed", NOTE, speed), Check("to the end", NOTE, ends)]


def _readable_seconds(seconds: float) -> str:
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} seconds"


def _check_leak(train_loader: Iterable[AnyBatch], val_loader: Iterable[AnyBatch]) -> tuple[str, str]:
    training, held_out = _pieces(train_loader), _pieces(val_loader)
    if not training or not held_out:
        return NOTE, f"left out: no document has {LEAST_PIECE} tokens"
    share = len(training & held_out) / len(held_out)
    found = f"{share:.1%} of {len(held_out):,} held-out pieces stand among {len(training):,} training pieces"
    return OK if share < SHARED else WRONG, found


def _pieces(loader: Iterable[AnyBatch]) -> set[bytes]:
    """The pieces of documents in a loader's rows, up to `MOST_TOKENS`."""
    found, read = set[bytes](), 0
    with read_from_start(loader) as batches:
        for batch in batches:
            ids = batch["input_ids"].cpu()
            mask = batch.get("attention_mask", torch.ones_like(ids))
            owners = batch.get("document_ids", mask - 1).cpu().numpy()  # -1 is PAD
            for row, owner in zip(ids.numpy(), owners):
                begins = np.flatnonzero(np.diff(owner)) + 1
                parts = zip(np.split(row, begins), np.split(owner, begins))
                found.update(part.tobytes() for part, of in parts if of[0] >= 0 and len(part) >= LEAST_PIECE)
            read += ids.numel()
            if read >= MOST_TOKENS:
                break
    return found
