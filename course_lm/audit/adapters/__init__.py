"""Loops that the audit can run, made of other people's trainers.

step_functions.py drives a function that makes one step, hugging_face.py the Trainer of transformers, and
lightning_trainer.py that of Lightning; each names no other. parts.py holds what all three need: the optimizer and the
rates of the settings, the textbook loss, and the silence in which a library runs.
"""

from course_lm.audit.adapters.hugging_face import huggingface
from course_lm.audit.adapters.lightning_trainer import lightning
from course_lm.audit.adapters.parts import Loop
from course_lm.audit.adapters.step_functions import step_function

__all__ = ["Loop", "huggingface", "lightning", "step_function"]
