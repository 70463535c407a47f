"""The command `profile`: where the time and the memory of a configured run's step go."""

import json
from argparse import Namespace
from pathlib import Path

from course_lm.checkpoints import atomic_file, check_folder
from course_lm.cli.output import save_picture
from course_lm.cli.preparation import describe, prepare
from course_lm.config import TrainingConfig
from course_lm.distributed import connect
from course_lm.profiling import profile_memory, profile_step
from course_lm.trainer import Trainer
from course_lm.trainer.run import explain_out_of_memory
from course_lm.validation import require

PICTURE, TRACE, NUMBERS = "profile.png", "trace.json", "profile.json"


def profile_run(config: TrainingConfig, options: Namespace) -> int:
    """Profile steps of a run as configured, on its real batches; print both tables, write the files; return 0."""
    folder, repeats = options.output, options.repeats
    # all of this before the measurement, whose result would be lost
    require(repeats >= 1, "--repeats", "at least 1", repeats)
    require(config.training.compile is not True, "training.compile", "false: compiled modules have no parts", True)
    _check_folder(folder)
    if connect().world > 1:
        raise ValueError("profile runs in one process, got several ranks: start it without torchrun")
    run = prepare(config)
    trainer = Trainer(run.model, config)
    print(describe(run, trainer))
    settings = config.training
    with explain_out_of_memory(config):
        step = profile_step(
            trainer.model,
            run.train_loader,
            trainer.optimizer,
            accumulation_steps=settings.gradient_accumulation_steps,
            precision=trainer.precision,
            max_grad_norm=settings.norm_bound,
            clip=trainer.options.clip,
            loss_fn=trainer.options.loss_fn,
            repeats=repeats,
        )
        memory = profile_memory(
            trainer.model,
            run.train_loader,
            trainer.optimizer,
            accumulation_steps=settings.gradient_accumulation_steps,
            precision=trainer.precision,
            max_grad_norm=settings.norm_bound,
            clip=trainer.options.clip,
            loss_fn=trainer.options.loss_fn,
        )
    print(f"\n{step}\n\n{memory}")
    folder.mkdir(parents=True, exist_ok=True)
    step.trace(folder / TRACE)
    with atomic_file(folder / NUMBERS) as file:
        file.write(json.dumps({"step": step.to_dict(), "memory": memory.to_dict()}, indent=1).encode())
    from matplotlib.figure import Figure  # not one of pyplot's, which would stay open

    figure = Figure(figsize=(14.0, 4.4), layout="constrained")
    for axes, profile in zip(figure.subplots(1, 2), (step, memory)):
        profile.draw(axes)
    save_picture(figure, folder / PICTURE)
    print(f"\n{folder} holds {PICTURE}, {NUMBERS}, and {TRACE} for https://ui.perfetto.dev")
    return 0


def _check_folder(folder: Path) -> None:
    """Refuse a folder that cannot be written to, or that holds an earlier profile."""
    check_folder(folder)
    held = next((name for name in (PICTURE, TRACE, NUMBERS) if (folder / name).exists()), None)
    if held is not None:
        raise OSError(f"{folder} holds the {held} of an earlier profile: name another folder with --output")
