"""What lesson 17 draws: `python benchmarks/trainer_tables.py` measures it and stores `data/trainer_tables.json`.

Short runs on the shipped stories in two parts: one over learning rates for models of several widths, one over shares of
warm-up for runs of several lengths. Everything else is the shipped configuration `tiny`, with half its batch.
"""

from dataclasses import replace
from itertools import product

from harness import Results, Runs, Settings, load, measure_missing, without_end

from course_lm.cli.preparation import prepare
from course_lm.config import TrainingConfig
from course_lm.model import count_parameters
from course_lm.monitoring import evaluate
from course_lm.optim import build_optimizer
from course_lm.schedules import build_schedule
from course_lm.step import train_step

FILE = "trainer_tables.json"
WIDTHS, RATES = (32, 64, 128, 256), (5e-4, 1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2)
LENGTHS, SHARES = (40, 80, 160, 320), (0.0, 0.02, 0.05, 0.1, 0.2, 0.4)
STEPS_OF_WIDTHS, WIDTH_OF_LENGTHS, RATE_OF_LENGTHS = 100, 64, 8e-3
SEEDS = (0, 1, 2)
BATCH_SIZE = 8


def settings_of_runs() -> Runs:
    """Every run: its part and its settings, one seed after the other."""
    for seed in SEEDS:
        for length, share in product(LENGTHS, SHARES):
            yield "warm_up", {"steps": length, "warmup_ratio": share, "seed": seed}
        for width, rate in product(WIDTHS, RATES):
            yield "rates", {"d_model": width, "learning_rate": rate, "seed": seed}


def configured(part: str, settings: Settings) -> tuple[TrainingConfig, int]:
    """The configuration of a run, and its optimizer steps."""
    tiny = TrainingConfig.from_yaml("tiny")
    width = settings.get("d_model", WIDTH_OF_LENGTHS)
    rate = settings.get("learning_rate", RATE_OF_LENGTHS)
    schedule = replace(tiny.lr_scheduler, warmup_ratio=settings.get("warmup_ratio", 0.1), min_lr=0.0)
    config = replace(
        tiny,
        model=replace(tiny.model, d_model=width),
        optimizer=replace(tiny.optimizer, learning_rate=rate),
        lr_scheduler=schedule,
        training=replace(tiny.training, batch_size=BATCH_SIZE, seed=settings["seed"]),
    )
    return config, settings.get("steps", STEPS_OF_WIDTHS)


def measure(part: str, settings: Settings) -> Results:
    """Train once; the validation loss at the end, in nats per token."""
    config, steps = configured(part, settings)
    run = prepare(config)
    optimizer = build_optimizer(run.model, config.optimizer)
    schedule = build_schedule(config.lr_scheduler, peak_lr=config.optimizer.learning_rate, total_steps=steps)
    run.model.train()
    for step, batch in zip(range(steps), without_end(run.train_loader)):
        train_step(run.model, [batch], optimizer, lr=schedule(step))
    val_loss = evaluate(run.model, run.val_loader)["val_loss"]
    return settings | {"parameters": count_parameters(run.model), "val_loss": round(val_loss, 3)}


def begin() -> Results:
    """The floor, and no run yet."""
    run = prepare(TrainingConfig.from_yaml("tiny"))
    assert run.validation.neg_log_p is not None
    return {"floor": round(sum(run.validation.neg_log_p) / run.val_loader.num_targets, 4)}


if __name__ == "__main__":
    measure_missing(FILE, load(FILE, begin), settings_of_runs(), measure)
