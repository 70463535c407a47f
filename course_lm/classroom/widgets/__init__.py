"""Explorers for the lessons: turn a knob, see the picture and the numbers follow.

A file is named for its subject, as the lesson is; explorer.py is what they share.
"""

from course_lm.classroom.widgets.accumulation import accumulation_explorer
from course_lm.classroom.widgets.batches import batching_explorer, paint_batch
from course_lm.classroom.widgets.checkpoints import checkpoint_explorer
from course_lm.classroom.widgets.clipping import clipping_explorer
from course_lm.classroom.widgets.curriculum import pacing_explorer
from course_lm.classroom.widgets.explorer import buttons, explorer, number, pick, powers, slider, steps, switch
from course_lm.classroom.widgets.lr_finder import lr_finder_explorer
from course_lm.classroom.widgets.memory import memory_explorer, step_memory_explorer
from course_lm.classroom.widgets.monitoring import monitoring_explorer
from course_lm.classroom.widgets.next_token import temperature_explorer
from course_lm.classroom.widgets.number_formats import draw_number_formats, number_format_explorer
from course_lm.classroom.widgets.ranks import ranks_explorer
from course_lm.classroom.widgets.schedule import schedule_explorer
from course_lm.classroom.widgets.tokens import draw_tokens, token_explorer

__all__ = [
    "accumulation_explorer",
    "batching_explorer",
    "buttons",
    "checkpoint_explorer",
    "clipping_explorer",
    "draw_number_formats",
    "draw_tokens",
    "explorer",
    "lr_finder_explorer",
    "memory_explorer",
    "monitoring_explorer",
    "number",
    "number_format_explorer",
    "pacing_explorer",
    "paint_batch",
    "pick",
    "powers",
    "ranks_explorer",
    "schedule_explorer",
    "slider",
    "step_memory_explorer",
    "steps",
    "switch",
    "temperature_explorer",
    "token_explorer",
]
