"""`python -m course_lm` is the command `course-lm`: so torchrun starts it, as `torchrun -m course_lm train`."""

import os
import sys

# torch reads it when it is imported. Every rank would warn that DistributedDataParallel looks for unused parameters and
# finds none: it is asked to, see `distributed.wrap`.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

from course_lm.cli import main

sys.exit(main())
