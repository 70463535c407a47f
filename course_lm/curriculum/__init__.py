"""Curriculum learning: easy examples first (lesson 13).

difficulty.py scores examples, a class for each strategy; pacing.py says how much is admitted when; manager.py joins the
two over a run, and loader.py makes the batches. settings.py is what can be set. morphology/ counts Hindi grammar.
"""

from course_lm.curriculum.difficulty import (
    CombinedCurriculum,
    DynamicCurriculum,
    FrequencyBasedCurriculum,
    LengthBasedCurriculum,
    MorphologicalComplexityCurriculum,
    RandomCurriculum,
    create_curriculum_strategy,
)
from course_lm.curriculum.loader import CurriculumLoader
from course_lm.curriculum.manager import CurriculumTrainingManager
from course_lm.curriculum.morphology import MorphologyCounts, count_morphology, words_of
from course_lm.curriculum.pacing import (
    FeedbackThreshold,
    build_pacing,
    linear,
    progress_at,
)
from course_lm.curriculum.settings import CurriculumConfig

__all__ = [
    "CombinedCurriculum",
    "CurriculumConfig",
    "CurriculumLoader",
    "CurriculumTrainingManager",
    "DynamicCurriculum",
    "FeedbackThreshold",
    "FrequencyBasedCurriculum",
    "LengthBasedCurriculum",
    "MorphologicalComplexityCurriculum",
    "MorphologyCounts",
    "RandomCurriculum",
    "build_pacing",
    "count_morphology",
    "create_curriculum_strategy",
    "linear",
    "progress_at",
    "words_of",
]
