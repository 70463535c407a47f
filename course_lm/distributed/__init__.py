"""Many processes, one run.

plan.py: bytes that a rank holds and sends, from a configuration alone.
"""

from course_lm.distributed.plan import Plan, plan

__all__ = ["Plan", "plan"]
