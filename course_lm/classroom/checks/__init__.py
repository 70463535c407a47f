"""Feedback for the lessons: predictions before a surprise, and one check for each exercise.

A file is named as the lesson is. report.py compares an answer with what is right; mistakes/ names what is wrong with
it; simulated_ranks.py stands in for many processes; predict.py asks what stands in predictions/. `checks.last` is the
latest report of an answer that failed.
"""

from course_lm.classroom.checks.accumulation import accumulate_gradient, mean_factors, token_windows, tokens_per_step
from course_lm.classroom.checks.batching import allowed_attention, epoch_order, labels_of, padding_share
from course_lm.classroom.checks.bug_hunt import mended_adamw, mended_validation, mended_windows
from course_lm.classroom.checks.checkpoints import (
    newest_intact,
    position_after,
    steps_between_checkpoints,
    survive_power_cut,
)
from course_lm.classroom.checks.clipping import clip_coefficient, first_bad_parameter, global_norm, unscaled_and_clipped
from course_lm.classroom.checks.curriculum import admitted, root_threshold, seeds_needed, word_cost
from course_lm.classroom.checks.distributed import agree_to_skip, loss_to_backward, my_share, norm_of_parts
from course_lm.classroom.checks.loss import (
    corpus_perplexity,
    log_sum_exp,
    logits_gradient,
    loss_from_ids,
    prompt_masked,
)
from course_lm.classroom.checks.lr_finder import group_rates, smoothed_losses, steepest_rate, sweep_rates
from course_lm.classroom.checks.mixed_precision import nearest_bf16, spacing, underflow_share, updated_scale
from course_lm.classroom.checks.monitoring import logged_perplexity, read_records, stopping_point, update_ratios
from course_lm.classroom.checks.optimizers import adamw_step, decay_groups, sgd_step, training_bytes
from course_lm.classroom.checks.predict import predict
from course_lm.classroom.checks.report import Report, last_failed
from course_lm.classroom.checks.schedules import cooldown_rate, optimizer_steps, rate_by_tokens, scheduled_steps
from course_lm.classroom.checks.speed_and_memory import (
    critical_batch,
    fair_seconds,
    peak_by_owner,
    step_flops,
)
from course_lm.classroom.checks.text_to_tokens import bits_per_byte, lost_to_truncation, split_near_copies
from course_lm.classroom.checks.the_whole_loop import floor, linear_schedule, train_steps
from course_lm.classroom.checks.trainer import checkpoints_left, focal_loss, same_step

__all__ = [
    "Report",
    "accumulate_gradient",
    "adamw_step",
    "admitted",
    "agree_to_skip",
    "allowed_attention",
    "bits_per_byte",
    "checkpoints_left",
    "clip_coefficient",
    "cooldown_rate",
    "corpus_perplexity",
    "critical_batch",
    "decay_groups",
    "epoch_order",
    "fair_seconds",
    "first_bad_parameter",
    "floor",
    "focal_loss",
    "global_norm",
    "group_rates",
    "labels_of",
    "linear_schedule",
    "log_sum_exp",
    "logged_perplexity",
    "logits_gradient",
    "loss_from_ids",
    "loss_to_backward",
    "lost_to_truncation",
    "mean_factors",
    "mended_adamw",
    "mended_validation",
    "mended_windows",
    "my_share",
    "nearest_bf16",
    "newest_intact",
    "norm_of_parts",
    "optimizer_steps",
    "padding_share",
    "peak_by_owner",
    "position_after",
    "predict",
    "prompt_masked",
    "rate_by_tokens",
    "read_records",
    "root_threshold",
    "same_step",
    "scheduled_steps",
    "seeds_needed",
    "sgd_step",
    "smoothed_losses",
    "spacing",
    "split_near_copies",
    "steepest_rate",
    "step_flops",
    "steps_between_checkpoints",
    "stopping_point",
    "survive_power_cut",
    "sweep_rates",
    "token_windows",
    "tokens_per_step",
    "train_steps",
    "training_bytes",
    "underflow_share",
    "unscaled_and_clipped",
    "update_ratios",
    "updated_scale",
    "word_cost",
]


def __getattr__(name: str) -> Report:
    if name == "last":  # the latest report of an answer that failed, with its `args`, `expected` and `got`
        return last_failed()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
