"""What is wrong with a text, before a model is trained on it.

measure.py counts; near_duplicates.py compares documents by MinHash; findings.py says which counts ask for a change, and
which change.
"""

from course_lm.inspection.findings import Finding, find
from course_lm.inspection.measure import Measurements, measure

__all__ = ["Finding", "Measurements", "find", "measure"]
