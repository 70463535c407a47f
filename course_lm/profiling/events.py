"""What torch's own profiler records, as the file that Perfetto and Chrome open."""

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile, record_function

from course_lm.profiling.marks import Marks


class TracedMarks(Marks):
    """Parts of a step that are ranges among the events."""

    _range: record_function | None = None

    def switch(self, part: str) -> None:
        """From now on `part` runs."""
        self.close()
        super().switch(part)
        self._range = record_function(part)
        self._range.__enter__()

    def close(self) -> None:
        """End the range that is open."""
        if self._range is not None:
            self._range.__exit__(None, None, None)


def recorded(work: Callable[[], object], *, cuda: bool = False, memory: bool = False) -> bytes:
    """The events of one call of `work`, as JSON; their `ts` and `dur` are microseconds.

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
    """The single events."""
    return json.loads(events)["traceEvents"]


def operations(events: list[dict[str, Any]]) -> list[tuple[float, float]]:
    """Begin and end of each operation of torch on the host, microseconds; those that another one calls are left out."""
    called = [one for one in events if one.get("cat") == "cpu_op" and _is_operation(one["name"])]
    found: list[tuple[float, float]] = []
    for begin, duration in sorted(((one["ts"], one["dur"]) for one in called), key=lambda span: (span[0], -span[1])):
        if found and begin < found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], begin + duration))
        else:
            found.append((begin, begin + duration))
    return found


def _is_operation(name: str) -> bool:
    """Whether an event is an operation, such as "aten::mm", and no node of autograd's, which calls operations."""
    return "::" in name and not name.startswith(("autograd::", "torch::autograd::"))
