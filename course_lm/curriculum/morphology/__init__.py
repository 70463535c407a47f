"""How much morphology a Hindi text shows.

counts.py says what is counted, and counts a text; sentence.py counts one sentence; verbs.py finds the complexes of
verbs; tables.py holds the words and forms.
"""

from course_lm.curriculum.morphology.counts import MorphologyCounts, count_morphology, words_of

__all__ = ["MorphologyCounts", "count_morphology", "words_of"]
