"""Number formats of a training step: fp32, bf16 and fp16 under autocast, with loss scaling where fp16 needs it.

Weights and optimizer state stay in fp32 throughout; autocast chooses the type of each operation (Micikevicius et al.
2018, "Mixed Precision Training").
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch.nn.utils import parametrize

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
PRECISIONS = ("auto", *_DTYPES)


def fast_bf16(device: torch.device) -> bool:
    """Whether this device multiplies bf16 matrices in hardware."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)  # GPUs before Ampere only emulate it
    if device.type == "cpu":
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return False


def resolve_precision(name: str, device: torch.device | str) -> str:
    """Replace "auto" by bf16 where the device is fast at it and by fp32 elsewhere.

    Raises:
        ValueError: `name` is not one of `PRECISIONS`.
    """
    if name not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, got {name!r}")
    if name != "auto":
        return name
    return "bf16" if fast_bf16(torch.device(device)) else "fp32"


class Precision:
    """How one run computes: an autocast context and a gradient scaler, which scales only in fp16.

    Args:
        name: "fp32", "bf16", "fp16", or "auto".
        device: where the model lives.

    Attributes:
        scales: whether the loss is scaled before the backward pass.
        scaler: a `torch.amp.GradScaler`; outside fp16 it is disabled and passes everything through.
        was_at_minimum: whether the last step overflowed though the scale was at `minimum_scale`: no lower one cures it.
    """

    minimum_scale = 1.0
    was_at_minimum = False

    def __init__(self, name: str, device: torch.device | str) -> None:
        self.device = torch.device(device)
        self.name = resolve_precision(name, self.device)
        self.scales = self.name == "fp16"
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.scales)

    @contextmanager
    def autocast(self) -> Iterator[None]:
        """Context for the forward pass and the loss; it computes the same inside an autocast of the caller's own.

        Autocast keeps the copies that it makes of weights until the outermost context ends, as does torch's
        `parametrize.cached` what it computes of them. The caller's may stand around many steps, and each would compute
        with the weights of the first: so they are dropped here.
        """
        torch.clear_autocast_cache()
        parametrize._cache.clear()
        kind, dtype = self.device.type, _DTYPES[self.name]
        with self.alone() if self.name == "fp32" else torch.autocast(kind, dtype=dtype, cache_enabled=True):
            yield
        torch.clear_autocast_cache()

    def alone(self) -> AbstractContextManager:
        """Context for a whole step: an autocast of the caller's own, which would reach its backward pass, is off."""
        kind = self.device.type
        around = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
        return torch.autocast(kind, enabled=False) if around else nullcontext()

    def update_scale(self) -> None:
        """Once per step: halve the scale after an overflow, but not below the minimum; double it now and then."""
        if not self.scales:
            return
        used = self.scaler.get_scale()
        self.scaler.update()
        overflow = self.scaler.get_scale() < used
        self.was_at_minimum = overflow and used <= self.minimum_scale
        if self.scaler.get_scale() < self.minimum_scale:
            self.scaler.update(self.minimum_scale)

    def state_dict(self) -> dict:
        """The scaler's scale and growth counter; empty outside fp16."""
        return self.scaler.state_dict()

    def load_state_dict(self, state: dict) -> None:
        """Continue with a saved scale; a state saved in another precision leaves the scaler fresh."""
        if self.scales and state:
            self.scaler.load_state_dict(state)
