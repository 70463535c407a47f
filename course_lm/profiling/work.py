"""What a step has to do: its FLOPs, the bytes that it moves, and the shapes in which it multiplies matrices."""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from course_lm.profiling.marks import Marks

_ATEN = torch.ops.aten
# Where the matrices stand among an operation's arguments.
_PRODUCTS = {_ATEN.mm: (0, 1), _ATEN.bmm: (0, 1), _ATEN.addmm: (1, 2), _ATEN.baddbmm: (1, 2)}
_NO_TRAFFIC = ("empty", "new_empty")  # they give memory that nobody has written to


class Product(NamedTuple):
    """A product of `batch` matrices (rows, inner) with as many (inner, columns)."""

    batch: int
    rows: int
    inner: int
    columns: int

    @property
    def flops(self) -> int:
        """A multiplication and an addition for each element of each inner product."""
        return 2 * self.batch * self.rows * self.inner * self.columns


class WorkCounter(TorchDispatchMode):
    """Counts the FLOPs of each operation, and the bytes that it reads and writes, by the part that runs.

    FLOPs are those of torch's formulas, see `flop_counter`. The estimate of bytes: an operation reads each of its
    tensors once from memory and writes each of its results once, and nothing stays in a cache between two operations. A
    view moves nothing; looking up an embedding reads only the rows that it takes. What an operation needs inside itself
    is not seen.

    Attributes:
        flops: of matrix products and attention, by part.
        bytes: moved, by part.
        products: FLOPs by part, number format and shape of the matrix products that are operations of their own.
        sizes: bytes moved by the size in bytes of the tensors that they belong to.
    """

    def __init__(self, marks: Marks) -> None:
        super().__init__()
        self.marks = marks
        self.formulas = flop_counter().flop_registry
        self.flops: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.products: dict[str, Counter[tuple[torch.dtype, Product]]] = defaultdict(Counter)
        self.sizes: Counter[int] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the operation, and count it."""
        out = func(*args, **(kwargs or {}))
        moved = _moved(func, args, kwargs or {}, out)
        for size in moved:
            self.sizes[size] += size
        self.bytes[self.marks.part] += sum(moved)
        if func.overloadpacket in self.formulas:
            self.flops[self.marks.part] += self.formulas[func.overloadpacket](*args, **(kwargs or {}), out_val=out)
        places = _PRODUCTS.get(func.overloadpacket)
        if places is not None:
            left, right = (args[place] for place in places)
            product = Product(left.size(0) if left.ndim == 3 else 1, left.size(-2), left.size(-1), right.size(-1))
            self.products[self.marks.part][left.dtype, product] += product.flops
        return out


def flop_counter() -> FlopCounterMode:
    """Torch's counter, with a formula for its fused attention on a CPU, which it has none for (torch 2.13)."""
    formulas = {  # of the shapes that the operation is given, as torch has them for other devices
        _ATEN._scaled_dot_product_flash_attention_for_cpu: lambda *shapes, **_: sdpa_flop_count(*shapes[:3]),
        _ATEN._scaled_dot_product_flash_attention_for_cpu_backward: lambda *shapes, **_: sdpa_backward_flop_count(
            *shapes[:4]
        ),
    }
    return FlopCounterMode(display=False, custom_mapping=formulas)


def _moved(func: Any, args: Any, kwargs: Any, out: Any) -> list[int]:
    """The sizes in bytes of all tensors that an operation reads and writes."""
    name = func.overloadpacket.__name__
    if name.startswith(_NO_TRAFFIC):
        return []
    read = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
    written = [one for one in tree_leaves(out) if isinstance(one, Tensor)]
    known = {_place(one) for one in read}
    changed = _changed(func, args, kwargs)
    made = [one for one in written if _place(one) not in known]
    if not changed and not made:  # a view, or a question about a shape
        return []
    if name == "embedding":
        return [_size(args[1]), _size(made[0]), _size(made[0])]
    if name in ("copy_", "fill_", "zero_"):  # these do not read what they write to
        read = read[1:]
    return [_size(one) for one in (*read, *made, *changed)]


def _changed(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """The arguments that an operation changes in place, as its schema says."""
    given: list[Any] = []
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given.append(args[place] if place < len(args) else kwargs.get(argument.name))
    return [one for one in tree_leaves(given) if isinstance(one, Tensor)]


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _size(tensor: Tensor) -> int:
    """Bytes of its elements; those of an expanded tensor lie in memory once."""
    return tensor.itemsize * math.prod(size if stride else 1 for size, stride in zip(tensor.shape, tensor.stride()))
