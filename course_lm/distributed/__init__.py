"""One run on many processes (lesson 14): the number of ranks is no part of the run.

joining.py finds the ranks that torchrun started, ranks.py is how they share a window and what they say to each other,
wrapping.py gives a model that averages gradients, settings.py is the configuration's section.
"""

from course_lm.distributed.joining import connect, leave
from course_lm.distributed.ranks import Group, RankError, check_same_batches, share
from course_lm.distributed.settings import DistributedConfig
from course_lm.distributed.wrapping import wrap

__all__ = [
    "DistributedConfig",
    "Group",
    "RankError",
    "check_same_batches",
    "connect",
    "leave",
    "share",
    "wrap",
]
