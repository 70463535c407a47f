"""How much of what a GPU can multiply a run does: model FLOPs utilization (Chowdhery et al. 2022, PaLM, appendix B)."""

from typing import Any

import torch
from torch import nn

from course_lm.forward import AnyBatch, unwrap
from course_lm.model import GPT

# Dense products of bf16 or fp16 with sums in fp32, TFLOP/s, from NVIDIA's data sheets and, for GeForce, its
# architecture white papers. The first of these names counts whose words stand in the device's own.
PEAKS = {
    "B200": 2250,
    "H200": 989,
    "H100 PCIe": 756,
    "H100 NVL": 835,
    "H100": 989,
    "A100": 312,
    "L40S": 362,
    "L4": 121,
    "A10": 125,
    "RTX 4090": 165,
    "RTX 3090": 71,
    "V100": 125,
    "T4": 65,
}
_WITHOUT_BF16 = ("V100", "T4")


def peak_flops(device: torch.device, precision: str) -> float | None:
    """FLOP/s that the device can do at most in this precision; None where no data sheet is known here."""
    if device.type != "cuda" or precision not in ("bf16", "fp16"):
        return None
    name = f" {torch.cuda.get_device_name(device)} ".replace("-", " ")
    known = next((part for part in PEAKS if f" {part} " in name), None)
    return None if known is None or (known in _WITHOUT_BF16 and precision == "bf16") else PEAKS[known] * 1e12


class Work:
    """FLOPs of batches in a forward and a backward pass, as that paper counts them.

    They are 6 for each token, PAD too, and each number of a matrix that it is multiplied with, and 12 L D T for
    attention of L layers of width D over rows of T tokens, of which a causal kernel need not do half. Of models without
    a configuration that tells L and D attention is left out.
    """

    def __init__(self, model: nn.Module) -> None:
        module = unwrap(model)
        matrices = {
            id(weight): weight.numel()
            for part in module.modules()
            if not isinstance(part, nn.Embedding)
            for weight in part.parameters(recurse=False)
            if weight.ndim == 2
        }
        if isinstance(module, GPT):  # whose head is the embedding
            matrices[0] = module.token_embedding.weight.numel()
        config: Any = getattr(module, "config", None)
        layers = getattr(config, "n_layer", getattr(config, "num_hidden_layers", 0))
        self.per_token = 6 * sum(matrices.values())
        self.per_pair = 12 * layers * getattr(config, "d_model", getattr(config, "hidden_size", 0))

    def of(self, batch: AnyBatch) -> int:
        """FLOPs of one batch."""
        ids: Any = batch["input_ids"]
        return ids.numel() * (self.per_token + self.per_pair * ids.size(1))
