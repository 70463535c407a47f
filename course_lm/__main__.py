"""`python -m course_lm` is the command `course-lm`: so torchrun starts it, as `torchrun -m course_lm train`."""

import os
import sys

# torch reads it when it is imported. Every rank would warn that DistributedDataParallel looks for unused parameters and
# finds none: it is asked to, see `distributed.wrap`.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

from course_lm.cli import main

code = main()
joining = sys.modules.get("course_lm.distributed.joining")
if joining is not None and joining.joined_group() is not None:
    # Not by the interpreter's own end: it meets threads of torch's connections, which now and then abort the process
    # ("terminate called without an active exception") after all its work is done.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
sys.exit(code)
