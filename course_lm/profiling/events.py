"""What torch's own profiler records, as the file that Perfetto and Chrome open."""

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile


def recorded(work: Callable[[], object], *, cuda: bool = False, memory: bool = False) -> bytes:
    """The events of one call of `work`, as JSON.

    Args:
        cuda: with the kernels of a GPU.
        memory: with each allocation.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else it writes a line to standard error at each begin and end
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profile(activities=activities, profile_memory=memory) as profiler:
        work()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return path.read_bytes()


def read_events(events: bytes) -> list[dict[str, Any]]:
    """The single events; `ts` and `dur` are microseconds."""
    return json.loads(events)["traceEvents"]
