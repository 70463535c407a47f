"""`python -m course_lm` is the command `course-lm`: so torchrun starts it, as `torchrun -m course_lm train`."""

import os
import sys
from contextlib import suppress

# torch reads it when it is imported. Every rank would warn that DistributedDataParallel looks for unused parameters and
# finds none: it is asked to, see `distributed.wrap`.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

# Python looks for modules in the working directory first, where a `torch.py` may be anybody's. This package may lie
# there itself, as in a checkout: it has been found.
with suppress(OSError):  # of a working directory that was removed
    if sys.path[0] == os.getcwd() != os.path.dirname(os.path.dirname(__file__)) and not sys.flags.safe_path:
        del sys.path[0]

from course_lm.cli import run

run()
