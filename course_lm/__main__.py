"""`python -m course_lm` is the command `course-lm`: so torchrun starts it, as `torchrun -m course_lm train`."""

import os
import sys

# torch reads it when it is imported. Every rank would warn that DistributedDataParallel looks for unused parameters and
# finds none: it is asked to, see `distributed.wrap`.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

from course_lm.cli import main

code = main()
joining = sys.modules.get("course_lm.distributed.joining")
group = None if joining is None else joining.joined_group()
if group is not None and group.failed:
    # Without the interpreter's clean end: threads of a broken connection may abort it, with another exit code.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
sys.exit(code)
