"""The command `find-lr`: a range test as configured, its picture and a table."""

from argparse import Namespace
from dataclasses import replace

from course_lm.cli.output import check_picture, save_picture
from course_lm.cli.preparation import describe, describe_curriculum, prepare
from course_lm.config import TrainingConfig
from course_lm.display import table
from course_lm.distributed import connect
from course_lm.lr_finder import LRFinderResult, find_lr
from course_lm.lr_finder.range_test import check_sweep
from course_lm.trainer import Trainer


def find_lr_on_text(config: TrainingConfig, options: Namespace) -> int:
    """Run a learning-rate range test as configured, draw it into the file `png` and print how it reads; return 0.

    With `held_out` each point is measured on the validation text.
    """
    check_picture(options.png)
    check_sweep(options.start_lr, options.end_lr, options.num_iter)
    if connect().world > 1:
        raise ValueError("find-lr runs in one process, got several ranks: start it without torchrun")
    # a sweep has a length of its own, and no step of a run is timed for it
    config = replace(config, training=replace(config.training, time_budget=None))
    run = prepare(config)
    trainer = Trainer(run.model, config)
    print(describe(run, trainer))
    if curriculum := describe_curriculum(run, trainer):
        print(curriculum)
    result = find_lr(
        trainer.model,
        run.train_loader,
        trainer.optimizer,
        start_lr=options.start_lr,
        end_lr=options.end_lr,
        num_iter=options.num_iter,
        val_loader=run.val_loader if options.held_out else None,
        accumulation_steps=config.training.gradient_accumulation_steps,
        loss_fn=trainer.options.loss_fn,
        max_grad_norm=config.training.norm_bound,
        clip=trainer.options.clip,
        precision=trainer.precision,
        progress=True,
    )
    print(lr_report(result, config.optimizer.type, options.num_iter))
    save_picture(result.plot(), options.png)
    print(f"the curve is drawn in {options.png}")
    return 0


def lr_report(result: LRFinderResult, optimizer: str, num_iter: int) -> str:
    """A table of the range test, what it says, and the option that makes a run use the suggestion."""
    nothing = "-"
    low_high = "{:.1e} to {:.1e}".format(*result.range) if result.range else nothing
    losses = f"{result.losses[0]:.3f}, {min(result.losses):.3f}" if result.losses else nothing
    rows = [
        ("optimizer", optimizer),
        ("suggested learning rate", f"{result.suggestion:.1e}" if result.suggestion else nothing),
        ("range in which the loss falls", low_high),
        ("steps taken", f"{len(result.lrs)} of {num_iter}"),
        ("loss at first, and lowest", losses),
    ]
    ending = f"\nto train with it: --optimizer.learning_rate {result.suggestion:.1e}" if result.suggestion else ""
    return f"{table(rows)}\n\n{result.message}{ending}"
