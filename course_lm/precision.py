"""Number formats of a training step: fp32, bf16 and fp16 under autocast, with loss scaling where fp16 needs it.

Weights and optimizer state stay in fp32 throughout; autocast chooses the type of each operation (Micikevicius et al.
2018, "Mixed Precision Training").
"""

from contextlib import AbstractContextManager, nullcontext

import torch

from course_lm.hardware import fast_bf16 as fast_bf16  # re-exported: a public name

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
PRECISIONS = ("auto", *_DTYPES)


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
        scaler: a `torch.amp.GradScaler`; outside fp16 it is disabled and passes everything through.
        was_at_minimum: whether the last step overflowed though the scale was at `minimum_scale`: no lower one cures it.
    """

    minimum_scale = 1.0
    was_at_minimum = False

    def __init__(self, name: str, device: torch.device | str) -> None:
        self.device = torch.device(device)
        self.name = resolve_precision(name, self.device)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.name == "fp16")

    @property
    def scales(self) -> bool:
        """Whether the loss is scaled before the backward pass."""
        return self.scaler.is_enabled()

    def autocast(self) -> AbstractContextManager:
        """Context for the forward pass and the loss."""
        if self.name == "fp32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=_DTYPES[self.name])

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
