"""`python -m course_lm` is the command `course-lm`: so torchrun starts it, as `torchrun -m course_lm train`."""

import os
import sys

# torch reads it when it is imported. Every rank would warn that DistributedDataParallel looks for unused parameters and
# finds none: it is asked to, see `distributed.wrap`.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

# Python looks for modules in the working directory first, where a `torch.py` may be anybody's. This package may lie
# there itself, as in a checkout: it has been found.
own = os.path.dirname(os.path.dirname(__file__))
sys.path[:] = [path for path in sys.path if path == own or os.path.abspath(path) != os.getcwd()]

from course_lm.cli import main  # noqa: E402

code = main()
joining = sys.modules.get("course_lm.distributed.joining")
if joining is not None and joining.joined_group() is not None:
    # Not by the interpreter's own end: it meets threads of torch's connections, which now and then abort the process
    # ("terminate called without an active exception") after all its work is done.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
sys.exit(code)
