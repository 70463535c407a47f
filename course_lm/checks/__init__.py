"""Feedback for the lessons: predictions before a surprise, and one check for each exercise."""

from course_lm.checks.batching import allowed_attention, epoch_order, labels_of, padding_share
from course_lm.checks.loss import corpus_perplexity, log_sum_exp, logits_gradient, loss_from_ids
from course_lm.checks.lr_finder import group_rates, smoothed_losses, steepest_rate, sweep_rates
from course_lm.checks.optimizers import adamw_step, decay_groups, sgd_step, training_bytes
from course_lm.checks.predict import predict
from course_lm.checks.report import Report
from course_lm.checks.schedules import cooldown_rate, optimizer_steps, rate_by_tokens, scheduled_steps
from course_lm.checks.text_to_tokens import bits_per_byte, lost_to_truncation, split_near_copies
from course_lm.checks.the_whole_loop import floor, linear_schedule, train_steps

__all__ = [
    "Report",
    "adamw_step",
    "allowed_attention",
    "bits_per_byte",
    "cooldown_rate",
    "corpus_perplexity",
    "decay_groups",
    "epoch_order",
    "floor",
    "group_rates",
    "labels_of",
    "linear_schedule",
    "log_sum_exp",
    "logits_gradient",
    "loss_from_ids",
    "lost_to_truncation",
    "optimizer_steps",
    "padding_share",
    "predict",
    "rate_by_tokens",
    "scheduled_steps",
    "sgd_step",
    "smoothed_losses",
    "split_near_copies",
    "steepest_rate",
    "sweep_rates",
    "train_steps",
    "training_bytes",
]
