"""Explorers for the lessons: turn a knob, see the picture and the numbers follow."""

from course_lm.widgets.batches import batching_explorer, draw_batch, paint_batch
from course_lm.widgets.explorer import explorer
from course_lm.widgets.lr_finder import draw_lr_reading, lr_finder_explorer
from course_lm.widgets.next_token import draw_next_token, temperature_explorer
from course_lm.widgets.schedule import draw_schedules, schedule_explorer

__all__ = [
    "batching_explorer",
    "draw_batch",
    "draw_lr_reading",
    "draw_next_token",
    "draw_schedules",
    "explorer",
    "lr_finder_explorer",
    "paint_batch",
    "schedule_explorer",
    "temperature_explorer",
]
