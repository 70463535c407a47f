"""What this machine can do: how fast it multiplies matrices and copies memory, measured in sizes like the model's."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from course_lm.profiling.work import Product

SHAPES = 3  # of the products, and of the tensors, that are tried
LEAST_RUNS, SECONDS = 3, 0.1  # each is measured so often, and for so long, at least; the first run is left out


class Clock:
    """Seconds on the device: of the host's clock for a CPU, of events in the stream for CUDA."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.cuda = device, device.type == "cuda"

    def read(self) -> Any:
        """This moment. On CUDA the host does not wait for it."""
        if not self.cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))  # of the model's GPU, which need not be the current one
        return event

    def settle(self) -> None:
        """Wait for the device, so that what was read can be compared."""
        if self.cuda:
            torch.cuda.synchronize(self.device)

    def seconds(self, begin: Any, end: Any) -> float:
        """Between two moments."""
        return begin.elapsed_time(end) / 1e3 if self.cuda else end - begin


@dataclass(frozen=True)
class Machine:
    """Rates of one device, with the threads that torch has now.

    Attributes:
        flops_per_second: of matrix products, by the name of the number format.
        bytes_per_second: of a copy: each byte is read once and written once, and counts twice. Small tensors are copied
            at the rate of a cache.
        threads: of a CPU.
    """

    flops_per_second: dict[str, float]
    bytes_per_second: float
    threads: int

    def seconds(self, flops: float, moved: float, dtype: str | None) -> float:
        """The least that work can take: as long as its products or its traffic need, whichever is more.

        Source: Williams, Waterman & Patterson 2009, "Roofline: an insightful visual performance model".
        """
        computing = flops / self.flops_per_second[dtype] if dtype in self.flops_per_second else 0.0
        return max(computing, moved / self.bytes_per_second)


def measure_machine(
    products: Counter[tuple[torch.dtype, Product]], sizes: Counter[int], device: torch.device
) -> Machine:
    """The best rates over the shapes of products with the most FLOPs, and over the sizes of tensors that moved most.

    Args:
        products: FLOPs by number format and shape. sizes: bytes moved by the bytes of the tensor.
    """
    rates: dict[str, float] = {}
    for dtype in {dtype for dtype, _ in products}:
        own = Counter({product: flops for (one, product), flops in products.items() if one == dtype})
        measured = [_product_rate(product, dtype, device) for product, _ in own.most_common(SHAPES)]
        rates[name_of(dtype)] = max(measured)
    copied = max(_copy_rate(size, device) for size, _ in sizes.most_common(SHAPES))
    return Machine(rates, copied, torch.get_num_threads())


def name_of(dtype: torch.dtype) -> str:
    """The name of a number format, as configurations have it: fp32, bf16, fp16; torch's own for others."""
    names = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
    return names.get(dtype, str(dtype).removeprefix("torch."))


def _product_rate(product: Product, dtype: torch.dtype, device: torch.device) -> float:
    batch, rows, inner, columns = product
    generator = torch.Generator().manual_seed(0)
    left, right = (
        torch.randn(shape, generator=generator).squeeze(0).to(device, dtype)
        for shape in ((batch, rows, inner), (batch, inner, columns))
    )
    out = torch.empty(batch, rows, columns, device=device, dtype=dtype).squeeze(0)
    return product.flops / _least_seconds(lambda: torch.matmul(left, right, out=out), device)


def _copy_rate(size: int, device: torch.device) -> float:
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    return 2 * size / _least_seconds(lambda: target.copy_(source), device)


@torch.no_grad()
def _least_seconds(work: Callable[[], object], device: torch.device) -> float:
    """Of one run: the fastest of several, since what else the machine does can only slow it."""
    clock, ended, taken = Clock(device), time.perf_counter() + SECONDS, []
    while len(taken) < LEAST_RUNS or time.perf_counter() < ended:
        begin = clock.read()
        work()
        end = clock.read()
        clock.settle()
        taken.append(clock.seconds(begin, end))
    return max(min(taken[1:]), 1e-9)
