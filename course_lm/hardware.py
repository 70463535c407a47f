"""What a device is fast at."""

import torch


def fast_bf16(device: torch.device) -> bool:
    """Whether this device multiplies bf16 matrices in hardware."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)  # GPUs before Ampere only emulate it
    if device.type == "cpu":
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return False
