"""Feedback for the lessons: predictions before a surprise, and one check for each exercise."""

from course_lm.checks.predict import predict
from course_lm.checks.report import Report
from course_lm.checks.the_whole_loop import floor, linear_schedule, train_steps

__all__ = [
    "Report",
    "floor",
    "linear_schedule",
    "predict",
    "train_steps",
]
