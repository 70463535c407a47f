"""Feedback for the lessons: predictions before a surprise, and one check for each exercise."""

from course_lm.checks.batching import allowed_attention, epoch_order, labels_of, padding_share
from course_lm.checks.predict import predict
from course_lm.checks.report import Report
from course_lm.checks.the_whole_loop import floor, linear_schedule, train_steps

__all__ = [
    "Report",
    "allowed_attention",
    "epoch_order",
    "floor",
    "labels_of",
    "linear_schedule",
    "padding_share",
    "predict",
    "train_steps",
]
