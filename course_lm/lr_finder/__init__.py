"""The learning-rate range test (lesson 06).

range_test.py takes the steps of a sweep. curve.py reads the curve: what it suggests, and when it says nothing. trial.py
puts model, optimizer, data and random generators back to what they were before.
"""

from course_lm.lr_finder.curve import LRFinderResult, Suggestion, suggest
from course_lm.lr_finder.range_test import find_lr
from course_lm.monitoring import smooth

__all__ = ["LRFinderResult", "Suggestion", "find_lr", "smooth", "suggest"]
