"""The loop: next window, one step, then log, validate, checkpoint and stop, always in that order.

`Trainer` keeps the books around `train_step`. What a run has done is in its place in the data, its counts and its
records. All else follows from these and from the configuration: the learning rate, the random numbers of each
micro-batch, the lowest validation loss, the patience that is left. So a run that stops after any step and goes on later
leaves the same weights as one that never stopped, and nothing that observers raise or draw at random changes them.

Started by torchrun, each rank runs this same loop over its share of every window. Their number is no part of the run:
all that decides what happens next is a sum or a maximum over the ranks, or said by rank 0, which alone writes.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from copy import deepcopy
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from course_lm.accumulation import windows
from course_lm.averaging import WeightAverage
from course_lm.batching.data import NEW_RUN, Data, fingerprint_of, length_of, length_of_epoch, read_from_start
from course_lm.checkpoints import (
    FORMAT_VERSION,
    CheckpointError,
    OwnState,
    as_plain,
    load_checkpoint,
    load_optimizer,
    load_weights,
    optimizer_state,
    prune_checkpoints,
    save_checkpoint,
    undone_on_error,
    weights_for_use,
)
from course_lm.clipping import build_clip
from course_lm.config import LoopConfig, TrainingConfig
from course_lm.distributed import RankError, connect, share, wrap
from course_lm.distributed.sharded_checkpoints import save_sharded
from course_lm.forward import AnyBatch, inside_compiled, unwrap
from course_lm.guard import (
    adapt_loss,
    check_optimizer,
    check_peak,
    check_schedule,
    check_weights,
    check_window,
    check_with_data,
    checked_options,
    is_next_token_loss,
)
from course_lm.loss import build_loss, next_token_loss
from course_lm.lr_finder.trial import restored
from course_lm.monitoring import History, Observer, copy_weights, evaluate
from course_lm.monitoring.evaluation import check_validation_loader, sample_of
from course_lm.monitoring.layers import LayerStatistics
from course_lm.monitoring.stopping import is_out_of_patience
from course_lm.monitoring.utilization import Work, peak_flops
from course_lm.optim import build_optimizer, checked_rate, fix_lr_scales
from course_lm.precision import Precision
from course_lm.reproducibility import check_default_device, deterministic_kernels, seed_of
from course_lm.run_records import CONFIG
from course_lm.shards import empty_like_shard, gathered, hold_parts, is_sharded, map_tensors, part_of
from course_lm.step import NonFiniteGradientError, raise_if_nonfinite, take_step
from course_lm.trainer import resume, run
from course_lm.trainer.agreement import (
    BufferWatch,
    check_parameters,
    check_same_run_on_all,
    in_step,
    own_of_rank,
    own_of_ranks,
)
from course_lm.trainer.allocator import tune_allocator
from course_lm.trainer.budget import Budget, schedule_over
from course_lm.trainer.init_from import begin_from
from course_lm.trainer.log import RunLog
from course_lm.trainer.run_state import RunState, checked_run_state
from course_lm.trainer.waiting import share_cores
from course_lm.validation import Explained, shown


class Trainer(Explained):
    """Trains a model as its configuration says.

    Under torchrun every rank makes one, and calls the same methods. The global random generators are seeded for each
    micro-batch by the run's seed and its place in the data, whichever rank computes it.

    Args:
        model: any causal language model that `train_step` takes; it is moved to the configured device. For
            several ranks it is wrapped as `config.distributed` says, unless it comes in `DistributedDataParallel` or
            after `fully_shard`.
        config: see `TrainingConfig`; or keys and values, as in YAML. `training.output_dir` None writes no files.
        loss_fn: called as `loss_fn(logits, labels, reduction="sum")`; by default built from `config.loss`. Validation
            always uses the plain loss.
        optimizer: by default built from `config.optimizer`. One of your own is built with its learning rate, which is
            the peak of the schedule, unless `schedule` is given.
        schedule: learning rate from the number of completed steps; by default built from `config.lr_scheduler`.
        clip: called as `clip(parameters, max_norm)`, changes the gradients in place; by default as
            `training.max_grad_norm` and `training.max_grad_value` say.
        observers: told of every record, before the progress bar and the loggers that the configuration names.
        started: when `training.time_budget` began to count, on `time.perf_counter`; by default when `train` is called.

    Attributes:
        step: completed optimizer steps. history: all records so far.
        epoch, batch: complete passes over the data, and the batches of the running one that steps have taken.
        best_weights: without a folder, a copy of the weights with the lowest validation loss; with one they are in
            `checkpoint_best.safetensors`.
        average: of the weights, where `training.average_weights` asks for one. Validation, early stopping and the best
            weights then are the average's; the model itself has the weights that are trained, until `restore_best`.
        interrupted: the number of the signal that ended the run, `trainer.run.STOPPED` after `stop()`, or None.
        budget: the minutes of the run, where `training.time_budget` decides its length.
        group: the ranks that train together.

    Raises:
        ValueError: the configured device is not on this machine; the ranks, the model, its optimizer or its loss cannot
            be trained together; `loss_fn`, `clip` or `schedule` is given, and the configuration asks for one as well.
        TypeError: other arguments, or model and configuration that are none.
    """

    def __init__(
        self,
        model: nn.Module,
        config: TrainingConfig | Mapping[str, Any],
        *,
        loss_fn: Callable[..., Tensor] | None = None,
        optimizer: Optimizer | None = None,
        schedule: Callable[[int], float] | None = None,
        clip: Callable[..., object] | None = None,
        observers: Sequence[Observer] = (),
        started: float | None = None,
    ) -> None:
        if isinstance(config, Mapping):
            config = TrainingConfig().updated(config, "the config of a Trainer")
        if not isinstance(model, nn.Module) or not isinstance(config, TrainingConfig):
            given = f"{type(model).__name__} and {type(config).__name__}"
            raise TypeError(f"a Trainer takes a torch.nn.Module and a TrainingConfig, in this order, got {given}")
        check_default_device()  # data are read on the CPU
        self.group = connect(config.distributed.timeout_seconds)
        self.device = self.group.device_for(config.training.device)
        check_weights(model)  # before it moves
        self.precision = Precision(config.training.precision, self.device)
        # "auto" may mean another precision on another machine: what is saved says what ran
        self.settings = replace(config.training, precision=self.precision.name)  # pyrefly: ignore[bad-argument-type]
        self.config = replace(config, training=self.settings)
        if self.device.type == "cpu":
            tune_allocator()
            share_cores()
        self._beginning = begin_from(model, self.settings.init_from)
        # only called: weights are saved from `model`, without the prefixes that wrappers give their names
        self.runner: nn.Module = wrap(model.to(self.device), config.distributed, self.group)
        self.model = unwrap(self.runner)
        self.optimizer = build_optimizer(self.model, config.optimizer) if optimizer is None else optimizer
        loss_fn = self._set_up_steps(loss_fn, clip, schedule)
        decay = self.settings.average_weights
        self.average = None if decay is None else WeightAverage(self.model, decay)
        folder = run.run_folder(config)
        self.folder = None if folder is None else folder.absolute()
        self.history = History()
        if not isinstance(observers, Iterable):
            raise TypeError(f"observers must be a list of observers, got {shown(observers)}")
        told = [*observers, *run.default_observers(config, self.history, self._beginning)] if self.group.leads else []
        peak, self.work = peak_flops(self.device, self.precision.name), Work(self.model)
        self.log = RunLog(self.history, told, self.device, plain_loss=loss_fn is next_token_loss, peak_flops=peak)
        self.data = Data((), self.settings.seed, self.group.share_of(self.settings.gradient_accumulation_steps))
        self.layers = LayerStatistics(self.settings.layer_statistics)
        self.step = self.epoch = self.batch = 0
        self.best_weights: dict[str, Tensor] | None = None
        self.total_steps: int | None = None
        self.interrupted: int | None = None
        minutes = self.settings.time_budget if self.settings.must_be_timed else None
        every = self.settings.eval_steps, self.settings.save_steps
        self.budget = None if minutes is None else Budget(minutes, *every, started=started)
        self._signal = 0  # that this rank has got
        self._out_of_patience = False
        self._rest: Iterator[AnyBatch] | None = None  # of the running epoch, before anything of it is read
        self._torn = False  # whether an error has broken an update off half-way
        self._own_moves = False  # whether a step that fails must put back what parts keep
        self._buffers = BufferWatch(self.model, self.group)
        self._loaded: dict[str, Any] | None = None  # a state whose learning rates are still to be compared
        self._own_folder: Path | None = None  # whose checkpoints are of this run
        self.held_out: str | None = None  # fingerprint of what `data.validation` names
        self._held_out: tuple[Any, ...] | None = None  # a validation loader, and what is read of it
        self._rates: list[dict[str, Any]] | None = self._group_rates()  # of the groups, as they were left here

    def _set_up_steps(
        self,
        loss_fn: Callable[..., Tensor] | None,
        clip: Callable[..., object] | None,
        schedule: Callable[[int], float] | None,
    ) -> Callable[..., Tensor]:
        """Complete and look at what a step takes beside model and optimizer; the loss as it will be called."""
        run.check_functions(self.config, loss_fn, clip, schedule)
        loss_fn = build_loss(self.config.loss) if loss_fn is None else adapt_loss(loss_fn)
        clip = build_clip(self.settings.max_grad_value) if clip is None else clip
        self._describe_parts = partial(resume.describe_parts, self.model, loss_fn, clip, schedule, self._beginning)
        self.parts = self._describe_parts()
        self.options = checked_options(
            self.runner,
            self.optimizer,
            loss_fn=loss_fn,
            max_grad_norm=self.settings.norm_bound,
            clip=clip,
            precision=self.precision,
            on_nonfinite=self.settings.on_nonfinite,
        )
        self.own = OwnState(model=self.model, loss_fn=loss_fn, clip=clip, optimizer=self.optimizer)
        self.options = self.options._replace(generators=self.own.generators)
        if self.settings.compile is True:
            self._compile()
        check_parameters(self.optimizer, self.model, self.group)
        fix_lr_scales(self.optimizer)  # now, while the groups have the rates that they were built with
        if schedule is not None:
            check_schedule(schedule)
        else:
            check_peak(self.optimizer, self.config.optimizer.learning_rate)
        self.schedule, self._own_schedule = schedule, schedule is not None
        return loss_fn

    def train(self, train_loader: Iterable[AnyBatch], val_loader: Iterable[AnyBatch] | None = None) -> History:
        """Train to the configured end, or until SIGINT, SIGTERM, SIGHUP or `stop()`; then the run can be resumed.

        What it sets for the whole process (deterministic kernels, signal handlers) is set back when it ends.

        Raises:
            NonFiniteGradientError: a gradient was not finite, see `training.on_nonfinite`; or
                `trainer.log.MAX_SKIPPED_IN_A_ROW` steps in a row were skipped.
            MemoryError: there is not enough of it; says what to lower, and in which order.
            ValueError: the folder holds a run with other settings, the number of steps cannot be told, or
                `training.time_budget` leaves no time for one.
            BlockingIOError: another process is training in the folder, or another thread of this one anywhere.
            RankError, TimeoutError: another rank has failed, or did not answer.
        """
        self.interrupted, self._signal, saved = None, 0, None
        try:
            with (
                ExitStack() as handlers,  # of signals, which torchrun sends until the last rank has ended
                self.group.one_fate(),
                run.sole_trainer(),
                run.sole_writer(self.folder, self.group),
                deterministic_kernels(self.settings.deterministic),
            ):
                with run.explain_out_of_memory(self.config):  # a trial of the model may run out, too
                    self.begin(train_loader, val_loader)
                handlers.enter_context(run.on_interrupt(self.stop, self.group))
                try:
                    with self._saved_on_error(), run.explain_out_of_memory(self.config):
                        if self._owes_validation():
                            self._validate(val_loader)
                        while not self._is_over():
                            self.train_epoch(train_loader, val_loader)
                        self._finish(val_loader)
                    if self.interrupted is None and self.settings.restore_best:  # a run goes on from its last weights
                        self.restore_best()
                finally:
                    self._rest = None
                    self._log_partial()
                    self.log.observers.close()
                    if self.budget is not None:
                        self.budget.stop()
        except (run.Interrupted, RankError) as error:  # within a compile or twice, of this rank or of another
            if error.exit_code - 128 not in (*run.SIGNALS, run.STOPPED):
                raise
            self.interrupted, saved = error.exit_code - 128, "".join(getattr(error, "__notes__", ()))
        finally:
            self._signal = 0
        if self.interrupted is not None:
            stopped = f"{run.stopped_by(self.interrupted)} after step {self.step}"
            self._say(f"{stopped}: {saved or run.how_to_go_on(self.config)}")
        return History(self.history.records)  # which its reader may change

    def begin(self, train_loader: Iterable[AnyBatch], val_loader: Iterable[AnyBatch] | None) -> None:
        """Begin a new run, go on from the newest checkpoint of one in the folder, or from what this trainer holds.

        `train` calls this first; no step is taken. Nothing is written before everything that can be refused was
        looked at. Raises what `train` raises before its first step.
        """
        check_default_device()
        check_validation_loader(val_loader, self.model)
        check_same_run_on_all(self.config, self.model, (train_loader, val_loader), self.group)
        self._check_model()
        self.fit_to_budget(train_loader, val_loader)
        minutes, steps = self.settings.time_budget, self.settings.max_steps
        if minutes is not None and self.budget is None:
            self._say(f"training.max_steps is {steps:,}: nothing is timed for training.time_budget {minutes:g}")
        run.warn_of_unheeded(self.config, train_loader, val_loader)
        self._plan(train_loader)
        self._load_newest()
        # a loader that keeps its own place gives a validation a whole epoch only before it is put there
        self.data = self.data.over(train_loader, self.epoch, self.batch)
        if not (self._owes_validation() and self.data.keeps_place):
            self._open(train_loader)
        if (name := self.config.data.validation) is not None:  # last: another vocabulary changes the training data, too
            saved, self.held_out = self.held_out, fingerprint_of(val_loader)
            resume.check_held_out(name, saved, self.held_out)
        as_plain(map_tensors(self._live_state(), part_of))  # what cannot be saved is found before the first step
        loaded = self._loaded
        if loaded is not None and "path" in loaded:
            self._say(f"resumed {run.run_folder(self.config) / loaded['path'].name} after step {self.step}")
            run.warn_of_unnamed(self.config)
        elif self.step == 0 and self._beginning is not None:
            self._say(f"the run {self._beginning}")
        if loaded is not None and loaded["total_steps"] not in (None, self.total_steps):
            self._say(f"the run goes on to step {self.total_steps}; it was to end after {loaded['total_steps']}")
        if self.finished:
            self._say(run.nothing_left(self.step, self.config))
        if self.folder is not None:
            self.group.leader_does(self._write_config)
        self._loaded, self._own_folder = None, self.folder
        self.log.start(self.step, self.total_steps)

    def train_epoch(self, train_loader: Iterable[AnyBatch], val_loader: Iterable[AnyBatch] | None = None) -> None:
        """Train on what is left of the current epoch, and validate where it ends.

        `train` repeats this. Called by itself it neither seeds nor resumes, and no signal is caught.
        """
        settings = self.settings
        for window in self._rest_of_epoch(train_loader):
            if self._take_step(window):
                self._look_at_budget()
                if self.step % settings.logging_steps == 0:
                    self._log()
                # where the epoch ends with this step, its own checkpoint follows
                if self.step % settings.save_steps == 0 and self.batch != self.data.length(self.epoch):
                    self._save(f"step_{self.step}")
                if settings.eval_steps and self.step % settings.eval_steps == 0:
                    self._validate(val_loader)
            if self._is_over():
                return
        self._end_epoch(val_loader)

    def fit_to_budget(self, train_loader: Iterable[AnyBatch], val_loader: Iterable[AnyBatch] | None = None) -> None:
        """Turn `training.time_budget` into `training.max_steps`, and say so; `train` calls this first.

        A run that goes on has the steps that were decided last. For a new one a few steps are timed and undone:
        weights, optimizer and the data are what they were. While the run takes its steps it looks at what they take,
        and decides again where it must. Where `max_steps` is given, nothing is timed. Rank 0 decides for all.

        Raises:
            ValueError: the budget leaves no time for one step, the run in the folder has another budget, or the
                training loader is an iterator or has no length.
        """
        if self.budget is not None:
            self.budget.start()
            self._compile_where_it_pays()
        if not self.settings.must_be_timed:
            return
        with self.group.one_fate(), run.sole_writer(self.folder, self.group):
            saved, budget = self._saved_length(), self.budget
            self._set_length(saved or self._timed_length(budget, train_loader, val_loader))  # type: ignore[arg-type]

    @property
    def finished(self) -> bool:
        """Whether the run has come to its end, was stopped early, or was interrupted."""
        settings = self.settings
        if self.interrupted is not None or self._out_of_patience:
            return True
        return self.step >= settings.max_steps if settings.max_steps is not None else self.epoch >= settings.num_epochs

    @property
    def best_loss(self) -> float:
        """The lowest validation loss so far; infinite before the first one."""
        return math.inf if self.history.best is None else self.history.best["val_loss"]

    def stop(self, number: int = run.STOPPED) -> None:
        """Let `train` finish the step, save and return, as a signal does; from any thread and rank.

        number: of the signal that is heeded, where it was one.
        """
        self._signal = number

    def evaluate(self, loader: Iterable[AnyBatch], max_tokens: int | None = None) -> dict[str, float]:
        """Loss, perplexity, bits per byte and accuracy over a loader; see `monitoring.evaluate`.

        They are those of the averaged weights, where the run averages.
        """
        with self.own.kept(), self._average_in_place():
            observers, batches = self.log.observers, length_of(loader)

            def on_batch(done: int) -> None:
                observers.show_validation(done, batches)
                if number := self.group.largest(self._signal):
                    raise run.Interrupted(number)

            try:
                return evaluate(
                    self.runner, loader, self.precision, self.group, on_batch=on_batch, max_tokens=max_tokens
                )
            finally:
                observers.end_validation()

    def restore_best(self) -> None:
        """Give the model the weights with the lowest validation loss; without a finite one it keeps the last ones.

        Where the run averages, either are averaged weights, and the average is then that of the model.
        Warns where the best ones are kept in a file and it cannot be read.
        """
        best = self._read_best()
        if not self.group.largest(best is None):  # where one rank cannot read them, none takes them
            assert best is not None
            load_weights(self.model, best)
            if self.average is not None:
                self.average.restart()
        elif self.average is not None and self.step:
            self.average.settle()

    def _read_best(self) -> dict[str, Tensor] | None:
        if self.best_loss == math.inf or self.best_weights is not None or self.folder is None:
            return self.best_weights
        try:
            return weights_for_use(self._read(self.folder / "checkpoint_best.safetensors"))
        except (OSError, CheckpointError) as error:
            warnings.warn(f"the model keeps its last weights, the best ones cannot be read: {error}", stacklevel=3)
            return None

    def _average_in_place(self) -> AbstractContextManager[None]:
        """Lend the model the averaged weights; before the first step there is no average."""
        return nullcontext() if self.average is None or not self.step else self.average.in_place()

    def _is_over(self) -> bool:
        """Whether training ends here; a signal to any rank ends it on all."""
        self.interrupted = self.group.largest(self._signal) or None
        return self.finished

    def _say(self, text: str) -> None:
        if self.group.leads:
            print(text)

    def _take_step(self, window: list[AnyBatch]) -> bool:
        """One optimizer step; whether it was completed rather than skipped."""
        assert self.schedule is not None
        settings = self.settings
        rate = checked_rate(self.schedule(self.step), f"the schedule's rate of step {self.step + 1}")
        self._check_rates()
        self._rates = None  # until the step is over
        self.layers.before_step(self.model, self.step + 1)
        try:
            own, seeds = share(window, self.group), self._seeds(len(window))
            check_window(self.runner, own, self.options.process_group, begins=not self.step)
            with self._own_kept_on_error():
                result = take_step(self.runner, own, self.optimizer, self.options, lr=rate, seeds=seeds)
            self._buffers.check(self.model)
        except NonFiniteGradientError as error:
            raise NonFiniteGradientError(f"step {self.step + 1}: {error}") from None
        # A flag left on an accelerator is not waited for: it is looked at when the results are logged.
        on_host = result.skipped.device.type == "cpu" or settings.on_nonfinite == "skip" or self.precision.scales
        skipped = on_host and bool(result.skipped)
        # a skipped window is taken as well; the batches of a step that raised are not
        self.batch += len(window)
        self.data.take(window)
        if not skipped:
            self.step += 1
            if self.average is not None:
                self.average.update(self.step)
        self._torn, self._rates = False, self._group_rates()
        if self.log.peak_flops is not None:  # else nobody asks for them
            self.log.flops += sum(self.work.of(batch) for batch in own)
        self.log.add(result, skipped, self.step)
        if self.step == 1 or self.step % self.settings.save_steps == 0:  # not always: the search takes milliseconds
            self._own_moves = self.own.moves()
        if self.step == 1 and not skipped:  # an optimizer's state appears with its first step
            as_plain(map_tensors({"optimizer": optimizer_state(self.optimizer, self.model)}, part_of))
        if not skipped:
            self._log_layers()
        return not skipped

    @contextmanager
    def _own_kept_on_error(self) -> Iterator[None]:
        """Where the step in the body fails, leave what parts keep as the last whole one did: that is what is saved."""
        undo = self.own.kept() if self._own_moves else None
        try:
            yield
        except BaseException:
            if undo is not None:
                undo.close()
            elif self.own.moves():  # for the first time: whether it was this step cannot be told
                self._torn = True
            raise

    def _group_rates(self) -> list[dict[str, Any]]:
        """What decides the rate of each group; before the first step an `lr_scale` may be given, or a group added."""
        keys = ("lr", "lr_scale") if self.step else ("lr",)
        return [{key: group[key] for key in keys if key in group} for group in self.optimizer.param_groups]

    def _check_rates(self) -> None:
        """Refuse rates that somebody has changed by hand, once they are put back so that the run can be saved."""
        then, now, groups = self._rates, self._group_rates(), self.optimizer.param_groups
        if then is None or then == (now if self.step else now[: len(then)]):
            return
        del groups[len(then) :]
        for group, one in zip(groups, then):
            if self.step:
                group.pop("lr_scale", None)
            group.update(one)
        raise ValueError(
            f"the optimizer's groups had {shown(then)} and have {shown(now)}: the schedule sets their rates, at every "
            "step; give the Trainer a schedule of your own, or the groups an lr_scale before the first step"
        )

    def _seeds(self, window: int) -> list[int]:
        """The seeds of this rank's micro-batches in a window that begins where the run stands in its data."""
        group = self.group
        # as many as `share` gives micro-batches; those beyond the window have no target, and their seed does not matter
        mine = range(group.rank, group.world * math.ceil(window / group.world), group.world)
        return [seed_of(self.settings.seed, self.epoch, self.batch + index) for index in mine]

    def _log_layers(self) -> None:
        """Make a record of each weight matrix, where this step was one to measure."""
        with self.log.throughput.paused():
            measured = self.layers.after_step(self.model)
            if measured is not None:
                self._raise_if_nonfinite()
                self._record("layers", **measured)

    def _log(self) -> None:
        """Make one record of the steps since the last one."""
        self._raise_if_nonfinite()
        self._record("train", **self.log.take_pending(self._last_rate()))

    def _last_rate(self) -> float:
        """The learning rate of the last completed step; nan before the first one."""
        if self.schedule is None:  # until a loader tells how long the run is
            return self._loaded["last_rate"] if self._loaded else math.nan
        return float(self.schedule(self.step - 1)) if self.step else math.nan

    def _raise_if_nonfinite(self) -> None:
        """Raise for a bad step that an accelerator has skipped by itself; called where the host may wait."""
        if self.settings.on_nonfinite == "raise":
            for result in self.log.pending:
                raise_if_nonfinite(result, self.model, self.optimizer, self.precision)

    def _log_partial(self) -> None:
        """Record the steps since the last record of a stopped run; one that goes on makes one record of them all."""
        with suppress(Exception):  # where the device itself has failed, its own error says more
            if self.log.has_new:
                self._record("train", **self.log.pending_metrics(self._last_rate()), partial=True)

    def _record(self, event: str, **metrics: Any) -> None:
        self.log.record(event, self.step, self.epoch, **metrics)

    def _validate(self, val_loader: Iterable[AnyBatch] | None) -> None:
        """Measure the validation loss, keep the best weights, and look whether patience has run out."""
        if val_loader is None or self._is_validated():  # an epoch may end with an eval step
            return
        check_validation_loader(val_loader)  # `train_epoch` may be called without `train`, which has looked
        try:
            with self.log.throughput.paused(), self._timing("validation"):
                metrics = self.evaluate(*self._sample_of(val_loader))
        except run.Interrupted:
            return  # the run that goes on makes it
        self.data.report_performance(metrics["val_loss"])
        self._rest = None  # an epoch that has not begun may depend on what was reported
        lowest = self.best_loss
        # "tokens" counts the validation text; in a record it would read as the tokens trained on
        self._record("validation", **{name: value for name, value in metrics.items() if name != "tokens"})
        self._out_of_patience = self._patience_is_out()  # here: a step asks for it, and it reads all records
        if metrics["val_loss"] < lowest:  # false for NaN
            if self.folder is None:
                with self._average_in_place():
                    self.best_weights = copy_weights(self.model)
            self._save("best")

    def _sample_of(self, val_loader: Iterable[AnyBatch]) -> tuple[Iterable[AnyBatch], int | None]:
        if self._held_out is None or self._held_out[0] is not val_loader:
            self._held_out = val_loader, *sample_of(val_loader, self.settings.eval_tokens, self.settings.seed)
        return self._held_out[1:]  # type: ignore[return-value]

    def _is_validated(self) -> bool:
        return next((record["step"] == self.step for record in reversed(self.history.validation)), False)

    def _owes_validation(self) -> bool:
        """Whether one was due at this step and is missing: an error has broken it off."""
        every = self.settings.eval_steps
        due = self.step % every == 0 if every else not self.batch
        return self.step > 0 and due and not self._is_validated()

    def _patience_is_out(self) -> bool:
        losses = [record["val_loss"] for record in self.history.validation]
        return is_out_of_patience(losses, self.settings.early_stopping_patience, self.settings.early_stopping_threshold)

    def _save(self, name: str) -> None:
        if self.folder is None:
            return
        folder, limit = self.folder, self.settings.save_total_limit
        with self.log.throughput.paused(), self._timing("save"):
            self.group.leader_does(lambda: (folder / CONFIG).exists() or self._write_config())  # it may be removed
            self.save_checkpoint(folder / f"checkpoint_{name}.safetensors")
            # only now: a disk that is full costs no older checkpoint
            if limit is not None:
                self.group.leader_does(lambda: prune_checkpoints(folder, limit))

    def _end_epoch(self, val_loader: Iterable[AnyBatch] | None) -> None:
        # an epoch of empty windows, or without any: under max_steps such a run would never end
        if self.log.empty_in_a_row * self.settings.gradient_accumulation_steps >= self.batch:
            raise ValueError("the training loader held no target token in a whole epoch")
        self._record("epoch", train_loss=self.log.epoch_loss(), **(self.data.describe_epoch() or {}))
        # first: the records and files that follow belong to the completed epoch
        self.epoch, self.batch = self.epoch + 1, 0
        self._save(f"epoch_{self.epoch}")
        if not self.settings.eval_steps:
            self._validate(val_loader)
        self.log.end_epoch(self.step, self.epoch)
        self.log.begin_epoch(self.step)

    def _finish(self, val_loader: Iterable[AnyBatch] | None) -> None:
        """Close the books of a run that is over, or save one that was interrupted."""
        if self.interrupted is None:
            if self.log.has_new:
                self._log()
            if val_loader is not None and not self._is_validated():
                self._save("last")
                self._validate(val_loader)
            if self.batch:  # max_steps ends the run within an epoch
                self.log.end_epoch(self.step, self.epoch + 1)
            self._is_over()  # a signal may have come meanwhile
        self._save("last")

    def _saved_length(self) -> LoopConfig | None:
        """The settings with the steps of the run in the folder; None where a new run begins."""
        if self.folder is None or self.folder == self._own_folder or self.settings.resume == "never":
            return None
        newest = resume.load_newest(self.folder, self.group, self._target)
        return None if newest is None else resume.with_saved_length(self.settings, newest[1]["config"])

    def _timed_length(
        self, budget: Budget, train_loader: Iterable[AnyBatch], val_loader: Iterable[AnyBatch] | None
    ) -> LoopConfig:
        """The settings with as many steps as fit into the budget by what a few of them take, which are undone."""
        settings, precision = self.settings, deepcopy(self.precision)  # the run's own keeps its loss scale
        run.check_can_be_timed(train_loader)
        check_validation_loader(val_loader)
        with (
            deterministic_kernels(settings.deterministic),
            run.explain_out_of_memory(self.config),
            restored(self.model, self.optimizer, train_loader, self.options.loss_fn, self.options.clip),
            read_from_start(train_loader) as batches,
        ):
            if not self.model.training:  # else layers that the caller keeps in eval mode stay there
                self.model.train()
            tried = windows(batches, settings.gradient_accumulation_steps)
            budget.try_steps(tried, lambda window: self._try_step(window, precision), self.group.tell)
        # a guess, until the first one is over: a pass with its gradients takes three times as long as one without
        passes = math.ceil(settings.gradient_accumulation_steps / self.group.world)
        held_out = None if val_loader is None else length_of(self._sample_of(val_loader)[0])
        budget.takes["validation"] = math.ceil((held_out or 0) / self.group.world) * budget.pace / passes / 3
        budget.epoch_steps = self._steps_of_epoch(train_loader)
        steps, told = self.group.leader_does(budget.first_length)
        self._say(told)
        return replace(settings, max_steps=steps)

    def _try_step(self, window: list[AnyBatch], precision: Precision) -> None:
        """A step whose rate is 0, so that the weights stay."""
        own = share(window, self.group)
        check_window(self.runner, own, self.options.process_group)
        options = self.options._replace(precision=precision, on_nonfinite="skip")
        take_step(self.runner, own, self.optimizer, options, lr=0.0, seeds=self._seeds(len(window)))
        self._wait_for_device()

    def _look_at_budget(self) -> None:
        """Decide anew how many steps the run has, where it would not end in time."""
        settings, total = self.settings, self.settings.max_steps
        if self.budget is None or total is None:
            return
        lengths = settings.lengths or [[0, total]]
        if not self.budget.is_due(self.step, *lengths[-1]):
            return
        self._wait_for_device()
        decided = self.group.tell(self.budget.look(self.step, total))
        if decided is not None:
            lengths = [*(one for one in lengths if one[0] < self.step), [self.step, decided]]
            self._set_length(replace(settings, max_steps=decided, lengths=lengths))
            self.total_steps = decided
            if not self._own_schedule:
                self.schedule = self._make_schedule(decided)
            self._record("length", total_steps=decided)
            if self.folder is not None:
                self.group.leader_does(self._write_config)

    def _timing(self, part: str) -> AbstractContextManager[None]:
        return nullcontext() if self.budget is None else self.budget.timing(part)

    def _wait_for_device(self) -> None:
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)

    def _steps_of_epoch(self, loader: Iterable[AnyBatch]) -> int:
        batches = length_of_epoch(loader, self.epoch) or 1
        return max(1, math.ceil(batches / self.settings.gradient_accumulation_steps))

    def _set_length(self, settings: LoopConfig) -> None:
        self.settings, self.config = settings, replace(self.config, training=settings)

    def _load_newest(self) -> None:
        """Load the newest state in the folder, where it is not this trainer's own."""
        folder = self.folder
        if folder is None or folder == self._own_folder:
            return
        if self.settings.resume == "never":
            self.group.leader_does(lambda: resume.put_aside(folder))
            self._own_folder = folder
        elif self.step:
            if self.group.tell(resume.holds_checkpoints(folder)):
                raise ValueError(f"{folder} holds another run: {NEW_RUN}")
        else:
            newest = resume.load_newest(folder, self.group, self._target)
            if newest is not None:
                path, state = newest
                self.load_state_dict(state)
                self._own_folder = folder
                assert self._loaded is not None
                self._loaded["path"] = path

    def _rest_of_epoch(self, train_loader: Iterable[AnyBatch]) -> Iterator[list[AnyBatch]]:
        """The windows of the running epoch that no step has taken."""
        self._check_model()
        if self.schedule is None or self._loaded is not None:
            self._plan(train_loader)
        if self._rest is None:
            self._open(train_loader)
        if not self.batch and self.log.epoch_step < self.step:  # what follows the end of an epoch was broken off
            self.log.begin_epoch(self.step)
        assert self._rest is not None
        batches, self._rest = self._rest, None
        if self.budget is not None:
            self.budget.begin_epoch(self.step, self._steps_of_epoch(train_loader))
        return in_step(windows(batches, self.settings.gradient_accumulation_steps), self.group)

    def _check_model(self) -> None:
        """Refuse a model that somebody has given other weights since its optimizer and its average were made."""
        hold_parts(self.model)
        check_optimizer(self.optimizer, self.runner)
        if self.average is not None:
            self.average.check()

    def _open(self, train_loader: Iterable[AnyBatch]) -> None:
        """Find the place in this loader where the rest of the epoch begins; ValueError where it is not there."""
        self.data = self.data.over(train_loader, self.epoch, self.batch)
        self._rest = self.data.read_from(self.epoch, self.batch)

    @contextmanager
    def _saved_on_error(self) -> Iterator[None]:
        """Save what was done before an error that ends the run, and say so in a note of it."""

        def tear(*_: object) -> None:
            self._torn = True  # until the step is counted

        hook = self.optimizer.register_step_pre_hook(tear)
        try:
            yield
        except (Exception, run.Interrupted, KeyboardInterrupt, SystemExit) as error:
            note = self._save_alone()
            if note is not None:
                error.add_note(note)
            raise
        finally:
            hook.remove()

    def _save_alone(self) -> str | None:
        """Save without asking the other ranks, which may be gone; say what came of it, or None for nothing to say."""
        folder = self.folder
        if folder is None or not self.step or not self.group.leads:
            return None
        # of a sharded model each rank has a part alone
        if not (self._torn or any(is_sharded(parameter) for parameter in self.model.parameters())):
            with suppress(Exception):  # the error that ends the run says more
                folder.mkdir(parents=True, exist_ok=True)
                state = self._live_state()
                if "own" in state and self.group.world > 1:
                    state["own"] = [state["own"], *[None] * (self.group.world - 1)]
                save_checkpoint(folder / "checkpoint_last.safetensors", state)
                return f"all {self.step} steps are saved: {run.how_to_go_on(self.config)}"
        held, newest = resume.holds_checkpoints(folder), f"the newest checkpoint in {folder} is where it goes on"
        return f"step {self.step} could not be saved: {newest if held else f'no checkpoint is in {folder}'}"

    def _plan(self, train_loader: Iterable[AnyBatch]) -> None:
        """Count the steps of the run, and fix their learning rates; those of a loaded state must be the same."""
        self.total_steps = run.count_steps(train_loader, self.settings)
        if self.schedule is None:
            self.schedule = self._make_schedule(self.total_steps)
        if self._loaded is not None:
            resume.check_rates(self._loaded, self.schedule, self.total_steps, self.settings)
        check_with_data(self.model, train_loader)
        self._compile_where_it_pays(self.total_steps)
        if not self.model.training:  # else layers that the caller keeps in eval mode stay there
            self.model.train()

    def _compile_where_it_pays(self, total_steps: int | None = None) -> None:
        """Choose for `training.compile` "auto"; without a number of steps, for a run whose length is a time budget."""
        compiled = inside_compiled(self.runner) is not None
        if not compiled and run.compiling_pays(self.config, self.model, self.device, total_steps):
            self._compile()
            self._say("the model is compiled, which takes a minute or more at the first steps; training.compile: false")

    def _compile(self) -> None:
        """Compile the model, and the loss, which then reads the logits as they are: no copy in float32 is written."""
        self.runner = torch.compile(self.runner)  # type: ignore[assignment]
        loss_fn: Any = self.options.loss_fn
        if is_next_token_loss(loss_fn):
            compiled = partial(torch.compile(next_token_loss), **getattr(loss_fn, "keywords", {}))
            self.options = self.options._replace(loss_fn=compiled)

    def _make_schedule(self, total_steps: int) -> Callable[[int], float]:
        config, peak = self.config.lr_scheduler, self.config.optimizer.learning_rate
        return schedule_over(self.settings.lengths, config, peak_lr=peak, total_steps=total_steps)

    def _write_config(self) -> None:
        assert self.folder is not None
        self.folder.mkdir(parents=True, exist_ok=True)
        self.config.to_yaml(self.folder / CONFIG)

    def save_checkpoint(self, path: str | Path) -> None:
        """Write the whole state of the run, as `distributed.checkpoint` says; OSError where that cannot be done."""
        if self.config.distributed.checkpoint == "sharded" and self.group.world > 1:
            save_sharded(path, self._state_of_ranks(), self.group)
        else:
            live = self._state_of_ranks()
            state = live if self.group.world == 1 else gathered(live, keep=self.group.leads)
            self.group.leader_does(lambda: save_checkpoint(path, state))

    def load_checkpoint(self, path: str | Path) -> None:
        """Go on from a saved state; CheckpointError for a damaged file, ValueError for another run's."""
        self.load_state_dict(self._read(Path(path)))
        self._own_folder = Path(path).parent

    def _read(self, path: Path) -> dict[str, Any]:
        return load_checkpoint(path, target=self._target)

    def _target(self, keys: Sequence[str], shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Memory for a tensor of a state, cut as this trainer's own is: `keys` names the parameter."""
        own = next(
            (p for name, p in self.model.named_parameters() if name in keys and p.shape == torch.Size(shape)), None
        )
        return empty_like_shard(own, shape, dtype)

    def state_dict(self) -> dict[str, Any]:
        """A copy of everything that the rest of the run depends on, as tensors and plain data."""
        return deepcopy(as_plain(gathered(self._live_state())))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned.

        Raises:
            ValueError: it belongs to a run with other settings, weights or parameters, or is not the state of a run;
                then the trainer is as it was.
        """
        saved = checked_run_state(as_plain(state))
        others = [self.precision, self.own, *([] if self.average is None else [self.average])]
        with undone_on_error("this is not the state of such a run", self.model, self.optimizer, *others):
            resume.check_same_run(self.config, saved["config"])
            settings = resume.with_saved_length(self.settings, saved["config"])
            resume.check_length(settings, saved["step"], saved["epoch"])
            if self.schedule is not None and self.total_steps is not None:  # else when these are known, see `_plan`
                resume.check_rates(saved, self.schedule, self.total_steps, settings)
            load_weights(self.model, saved["model"])
            parts = resume.compare_parts(self.parts, saved["parts"], saved.get("parts_now"))
            # before the optimizer, whose numbers are compared
            self.own.load_state_dict(own_of_rank(saved.get("own", {}), self.group))
            resume.warn_of_unsaved(self._describe_parts(), saved)
            fix_lr_scales(self.optimizer)  # as before the first step of the saved run
            load_optimizer(saved["optimizer"], self.optimizer, self.model)
            if (self.average is None) == ("average" in saved):
                raise ValueError("the state must have an average exactly where training.average_weights is a number")
            if self.average is not None:
                self.average.load_state_dict(saved.get("average", {}))
            self.precision.load_state_dict(saved["scaler"])
            resume.warn_of_machine(resume.machine_of(self.device), saved["machine"])
            if self.budget is not None and "budget" in saved:
                self.budget.load_state_dict(saved["budget"])
            self.log.load_state_dict(saved)  # last: it takes all or nothing, and what follows cannot fail
        if "budget" not in saved:  # the saved run repeats another one, whose length it keeps
            self.budget = None
        self.parts = parts
        self._set_length(settings)
        self.step, self.epoch, self.batch = saved["step"], saved["epoch"], saved["batch"]
        self._own_moves, self.held_out = self.own.moves(), saved.get("held_out")
        seed, share = self.settings.seed, self.data.share
        self.data = Data(self.data.loader, seed, share, state=deepcopy(saved["data"]), resumed=True)
        self._loaded = {key: saved[key] for key in ("step", "last_rate", "own_schedule", "total_steps", "config")}
        if self.schedule is None:  # else they are those of the schedule at hand
            self.total_steps = saved["total_steps"]
        self.best_weights, self._rates = deepcopy(saved["best_weights"]), self._group_rates()
        self._out_of_patience = self._patience_is_out()

    def _state_of_ranks(self) -> RunState:
        """The live state; a collective call."""
        live = self._live_state()
        kept: Any = live.get("own", {})
        own = own_of_ranks(kept, self.group)
        return {**live, "own": own} if own else live

    def _live_state(self) -> RunState:
        """What `state_dict` copies, with the live tensors: a file that is written from it needs no second copy."""
        self._check_rates()
        return {
            "format_version": FORMAT_VERSION,
            "step": self.step,
            "epoch": self.epoch,
            "batch": self.batch,
            "data": self.data.state_dict(self.epoch, self.batch),
            **({} if self.held_out is None else {"held_out": self.held_out}),
            **self.log.state_dict(),
            "model": self.model.state_dict(),
            **({} if self.average is None else {"average": self.average.state_dict()}),
            "best_weights": self.best_weights,
            "optimizer": optimizer_state(self.optimizer, self.model),
            **({"own": own} if (own := self.own.state_dict()) else {}),
            "scaler": self.precision.state_dict(),
            "total_steps": self.total_steps,
            "last_rate": self._last_rate(),
            "own_schedule": self._own_schedule or (self._loaded or {}).get("own_schedule", False),
            **({} if self.budget is None else {"budget": self.budget.state_dict()}),
            "config": asdict(self.config),
            "parts": self.parts,
            **({} if (now := self._describe_parts()) == self.parts else {"parts_now": now}),
            "machine": resume.machine_of(self.device),  # now: threads may be set at any time
        }
