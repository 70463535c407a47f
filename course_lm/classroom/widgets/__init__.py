"""Explorers for the lessons: turn a knob, see the picture and the numbers follow.

A file is named for its subject, as the lesson is; explorer.py is what they share.
"""

from course_lm.classroom.widgets.accumulation import accumulation_explorer, draw_accumulation, row_gradients
from course_lm.classroom.widgets.batches import batching_explorer, draw_batch, paint_batch
from course_lm.classroom.widgets.checkpoints import checkpoint_explorer, draw_checkpoint_interval
from course_lm.classroom.widgets.clipping import clipping_explorer, draw_clipping
from course_lm.classroom.widgets.curriculum import draw_pacing, pacing_explorer, sentence_difficulty
from course_lm.classroom.widgets.explorer import buttons, explorer, number, pick, powers, slider, steps, switch
from course_lm.classroom.widgets.lr_finder import draw_lr_reading, lr_finder_explorer
from course_lm.classroom.widgets.memory import (
    draw_step_memory,
    draw_training_memory,
    memory_explorer,
    step_memory_explorer,
)
from course_lm.classroom.widgets.monitoring import draw_early_stopping, monitoring_explorer
from course_lm.classroom.widgets.next_token import draw_next_token, temperature_explorer
from course_lm.classroom.widgets.number_formats import draw_number_formats, number_format_explorer
from course_lm.classroom.widgets.ranks import draw_ranks, rank_plan, ranks_explorer
from course_lm.classroom.widgets.schedule import NANOGPT, draw_schedules, schedule_explorer
from course_lm.classroom.widgets.tokens import draw_tokens, token_explorer

__all__ = [
    "NANOGPT",
    "accumulation_explorer",
    "batching_explorer",
    "buttons",
    "checkpoint_explorer",
    "clipping_explorer",
    "draw_accumulation",
    "draw_batch",
    "draw_checkpoint_interval",
    "draw_clipping",
    "draw_early_stopping",
    "draw_lr_reading",
    "draw_next_token",
    "draw_number_formats",
    "draw_pacing",
    "draw_ranks",
    "draw_schedules",
    "draw_step_memory",
    "draw_tokens",
    "draw_training_memory",
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
    "rank_plan",
    "ranks_explorer",
    "row_gradients",
    "schedule_explorer",
    "sentence_difficulty",
    "slider",
    "step_memory_explorer",
    "steps",
    "switch",
    "temperature_explorer",
    "token_explorer",
]
