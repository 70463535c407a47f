"""Mistakes that public issues and pull requests of 2024 to 2026 report of training loops.

Those that are among the specification's faults are in `FAULTS_REPORTED`: the textbook loop makes them. For each other
one there is a loop that is right but for the mistake that its docstring states. `reference` names the repository and
the number of the issue or pull request. The code is this project's own: it makes the mistake where the reported code
made it, and nothing else of that code is here.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lm.audit.spec import Batches, Settings

from .plain import IGNORED, Plain
from .right import AsksWhenAStepIsDue

FAULTS_REPORTED = {
    "pads_counted": "open-jarvis/OpenJarvis#521",
    "eos_masked": "huggingface/open-r1#494",
    "mask_forgotten": "jingyaogong/minimind-v#76",
    "shifted_twice": "allenai/open-instruct#1549",
    "counted_before_shift": "huggingface/transformers#46204",
    "mean_of_means": "pytorch/torchtitan#2206",
    "accumulation_not_divided": "huggingface/transformers#37766",
    "divided_twice": "unslothai/unsloth-zoo#1023",
    "zero_grad_per_micro_batch": "bytetriper/RAE#67",
    "tail_dropped": "NVIDIA-NeMo/Automodel#2257",
    "tail_divided_by_full": "Lightning-AI/pytorch-lightning#19987",
    "clip_per_micro_batch": "facebookresearch/lingua#59",
    "clip_before_unscale": "rwth-i6/returnn#1590",
    "decays_everything": "ServiceNow/Fast-LLM#542",
    "coupled_decay": "nntrainer/nntrainer#3565",
    "no_bias_correction": "ml-explore/mlx#1640",
    "schedule_per_micro_batch": "EvolvingLMMs-Lab/OneVision-Encoder#82",
    "schedule_off_by_one": "lincc-frameworks/hyrax#983",
    "schedule_on_overflow": "huggingface/accelerate#4242",
    "first_rate_is_zero": "huggingface/transformers#34754",
    "bf16_gradients": "linkedin/Liger-Kernel#830",
    "steps_on_nonfinite": "facebookresearch/habitat-lab#2226",
    "validation_in_train_mode": "leap-c/leap-c#119",
    "val_mean_of_means": "pytorch/torchtitan#4167",
    "best_is_a_reference": "WenjieDu/PyPOTS#667",
}


class Reported(Plain):
    """A loop with a reported mistake that is no fault of the specification.

    `part` is the part of a loop that is wrong. `promise` is the line of the contract that it breaks, empty where there
    is none.
    """

    reference = promise = ""

    def __init_subclass__(cls, part: str = "", reference: str = "", promise: str = "") -> None:
        super().__init_subclass__(part)
        cls.reference, cls.promise = reference, promise


def reported() -> Iterator[type[Reported]]:
    """Every loop of this module that has a mistake."""
    kinds = (kind for kind in globals().values() if isinstance(kind, type) and issubclass(kind, Reported))
    return (kind for kind in kinds if kind.reference)


# data


class PositionsRunOn(Reported, part="data", reference="hiyouga/LlamaFactory#7318", promise="C1"):
    """Documents packed into a row do not attend to each other, but their positions count on through the row."""

    def logits(self, batch: Mapping[str, Any]) -> Tensor:
        return super().logits({name: value for name, value in batch.items() if name != "position_ids"})


class MaskOfOnesHidesDocuments(Reported, part="data", reference="huggingface/transformers#46634", promise="C1"):
    """A mask of ones is given too, so the documents of a row are not looked for and attend to each other."""

    def logits(self, batch: Mapping[str, Any]) -> Tensor:
        return super().logits({name: value for name, value in batch.items() if name != "document_ids"})


class PackedAsOneText(Reported, part="data", reference="huggingface/nanoVLM#204", promise="C1"):
    """A packed row is one text to the model: positions run on, and a document attends to those before it."""

    def logits(self, batch: Mapping[str, Any]) -> Tensor:
        packed = ("document_ids", "position_ids")
        return super().logits({name: value for name, value in batch.items() if name not in packed})


class NextDocumentIsPredicted(Reported, part="data", reference="pytorch/torchtitan#4075", promise="C1"):
    """The last token of a packed document is trained to predict the first token of the next one."""

    def targets(self, batch: Mapping[str, Any]) -> Tensor:
        targets = super().targets(batch)
        if "document_ids" not in batch:
            return targets
        documents = batch["document_ids"]
        is_first = (documents[:, 1:] != documents[:, :-1]) & (documents[:, 1:] >= 0)
        return torch.where(is_first, batch["input_ids"][:, 1:], targets)


# loss


class ShiftedFlatOnceMore(Reported, part="loss", reference="huggingface/transformers#47394", promise="C1"):
    """Shifted labels are made flat and shifted again, so a row's last position gets a target of the next row."""

    def targets(self, batch: Mapping[str, Any]) -> Tensor:
        once = super().targets(batch)
        return F.pad(once.flatten(), (0, 1), value=IGNORED)[1:].reshape(once.shape)


class MaskIsNotShifted(Reported, part="loss", reference="OpenRLHF/OpenRLHF#973", promise="C2"):
    """The targets are shifted and their mask is not, so an answer's first token is not learned."""

    def targets(self, batch: Mapping[str, Any]) -> Tensor:
        return batch["input_ids"][:, 1:].masked_fill(batch["labels"][:, :-1] == IGNORED, IGNORED)


class SumOfTokens(Reported, part="loss", reference="thinking-machines-lab/tinker-cookbook#271", promise="C3"):
    """The token losses are added up and not divided."""

    def accumulate(self, window: Batches) -> None:
        for batch in window:
            self.loss_sum(batch).backward()


class SumOverRows(Reported, part="loss", reference="PrimeIntellect-ai/prime-rl#2034", promise="C3"):
    """The sum of the token losses is divided by the number of rows."""

    def accumulate(self, window: Batches) -> None:
        rows = sum(len(batch["labels"]) for batch in window)
        for batch in window:
            (self.loss_sum(batch) / rows).backward()


class MeanOfRows(Reported, part="loss", reference="huggingface/trl#2881", promise="C3"):
    """Each row has a mean of its own, and rows weigh the same; validation is right."""

    def accumulate(self, window: Batches) -> None:
        tokens = [(self.targets(batch) != IGNORED).sum(dim=1) for batch in window]
        rows = sum(int((each > 0).sum()) for each in tokens)
        for batch, each in zip(window, tokens):
            means = self.token_losses(batch).sum(dim=1) / each.clamp(min=1)
            (means.sum() / rows).backward()


class PadsAreDividedBy(Reported, part="loss", reference="NovaSky-AI/SkyRL#462", promise="C3"):
    """The sum is divided by all positions, those of PADs among them; validation is right."""

    def accumulate(self, window: Batches) -> None:
        for batch in window:
            (self.loss_sum(batch) / sum(self.targets(each).numel() for each in window)).backward()


class DividesByOneRow(Reported, part="loss", reference="EleutherAI/bergson#344", promise="C3"):
    """The sum over a batch is divided by the length of one of its rows."""

    def accumulate(self, window: Batches) -> None:
        lengths = sum(batch["labels"].shape[1] - 1 for batch in window)
        for batch in window:
            (self.loss_sum(batch) / lengths).backward()


class TrainsInEvalMode(Reported, part="loss", reference="EleutherAI/bergson#359"):
    """The model is in eval mode from the first step to the last, so nothing is ever dropped."""

    def __init__(self, model: nn.Module, settings: Settings) -> None:
        super().__init__(model.eval(), settings)

    def validate(self) -> None:
        super().validate()
        self.model.eval()


# accumulation


class MaskedRowsCount(Reported, part="accumulation", reference="radixark/miles#2796", promise="C3"):
    """A row without a target counts as one token."""

    def accumulate(self, window: Batches) -> None:
        rows = [(self.targets(batch) != IGNORED).sum(dim=1).clamp(min=1) for batch in window]
        tokens = int(torch.cat(rows).sum())
        for batch in window:
            (self.loss_sum(batch) / tokens).backward()


class TailJoinsAFullWindow(
    Reported, AsksWhenAStepIsDue, part="accumulation", reference="meta-pytorch/torchtune#2745", promise="C4"
):
    """The last, smaller window makes no step; its sums and counts go into the next epoch's first full window."""

    def is_tail_due(self, index: int, batches: int) -> bool:
        return False


class StepsAtTheFirstBatch(
    Reported, AsksWhenAStepIsDue, part="accumulation", reference="rasbt/LLMs-from-scratch#299", promise="C4"
):
    """A step is due at index % accumulation_steps == 0: after the first micro-batch, and never at an epoch's end."""

    def is_due(self, index: int) -> bool:
        return index % self.settings.accumulation_steps == 0

    def is_tail_due(self, index: int, batches: int) -> bool:
        return False


class StopsByMicroBatches(Reported, part="accumulation", reference="karpathy/nanochat#775"):
    """The number of steps is compared with a count of micro-batches, so training ends early."""

    def train(self, epochs: Sequence[Batches]) -> Mapping[str, Any] | None:
        size = self.settings.accumulation_steps
        left = sum(-(-len(batches) // size) for batches in epochs)
        kept: list[Batches] = []
        for batches in epochs:
            kept.append(batches[: max(0, left)])
            left -= len(batches)
        return super().train(kept)


# clipping


class ClipsAfterTheStep(Reported, part="clipping", reference="awslabs/graphstorm#1366", promise="C6"):
    """Gradients are clipped after the optimizer has used them."""

    def clip(self) -> None: ...

    def step(self) -> None:
        super().step()
        super().clip()


class ClipsBeforeBackward(Reported, part="clipping", reference="simchowitzlabpublic/nano-world-model#22", promise="C6"):
    """Gradients are clipped after each forward pass, before the backward pass that adds to them."""

    def accumulate(self, window: Batches) -> None:
        for batch in window:
            loss = self.loss_sum(batch) / self.count(*window)
            super().clip()
            loss.backward()

    def clip(self) -> None: ...


class ClipsEachModelPart(Reported, part="clipping", reference="nvidia-cosmos/cosmos-rl#120", promise="C6"):
    """Each part of the model is clipped by its own norm."""

    def clip(self) -> None:
        if self.settings.max_grad_norm is not None:
            half = len(self.parameters) // 2
            for part in (self.parameters[:half], self.parameters[half:]):
                nn.utils.clip_grad_norm_(part, self.settings.max_grad_norm)


class CountsTiedWeightsTwice(Reported, part="clipping", reference="NVIDIA/Megatron-LM#7228", promise="C6"):
    """A weight that two modules share is counted twice in the gradient's norm."""

    def clip(self) -> None:
        bound = self.settings.max_grad_norm
        if bound is not None:
            named = self.model.named_parameters(remove_duplicate=False)
            norm = nn.utils.get_total_norm([p.grad for _, p in named if p.grad is not None])
            nn.utils.clip_grads_with_norm_(self.parameters, bound, norm)


# optimizer


class DecaysNormGains(Reported, part="optimizer", reference="huggingface/transformers#35927", promise="C9"):
    """Norms are left out of decay by their class, and these are of another one: their gains decay, no bias does."""

    def decay_of(self, weight: Tensor) -> float:
        gains = (module.weight for module in self.model.modules() if isinstance(module, nn.LayerNorm))
        return self.settings.weight_decay if any(weight is one for one in gains) else super().decay_of(weight)


class DecaysTheUpdatedWeight(
    Reported, part="optimizer", reference="stanford-cs336/assignment1-basics#54", promise="C9"
):
    """AdamW's decay shrinks the weight that has just been updated."""

    @torch.no_grad()
    def step(self) -> None:
        if self.settings.optimizer != "adamw":
            return super().step()
        for group in self.optimizer.param_groups:
            decay, group["weight_decay"] = group["weight_decay"], 0.0
            group["decay"] = decay
        super().step()
        for group in self.optimizer.param_groups:
            group["weight_decay"] = group["decay"]
            for p in group["params"]:
                p.mul_(1 - group["lr"] * group["decay"])


class BetasAreNotHandedOn(Reported, part="optimizer", reference="NovaSky-AI/SkyRL#1646"):
    """The optimizer is made without the betas of the configuration, so it has its own."""

    def make_optimizer(self) -> torch.optim.Optimizer:
        optimizer = super().make_optimizer()
        for group in optimizer.param_groups:
            group["betas"] = (0.9, 0.999)
        return optimizer


class AveragesEachMicroBatch(Reported, part="optimizer", reference="SWivid/F5-TTS#631"):
    """The moving average of the weights is updated after each micro-batch instead of each step."""

    def accumulate(self, window: Batches) -> None:
        self.average = getattr(self, "average", self.copy())
        for batch in window:
            (self.loss_sum(batch) / self.count(*window)).backward()
            for average, weight in zip(self.average, self.parameters):
                average.lerp_(weight.detach(), 0.1)


# precision


class WeightsInBfloat16(Reported, part="precision", reference="vllm-project/speculators#765"):
    """The weights are held in bfloat16, without a finer copy: a small update is rounded away."""

    @torch.no_grad()
    def step(self) -> None:
        super().step()
        for p in self.parameters:
            p.copy_(p.bfloat16())


# finite


class UpdatesWithZeros(Reported, part="finite", reference="mlnomadpy/flaxchat#6", promise="C7"):
    """A gradient that is not finite is replaced by zeros, and the optimizer still moves moments, count and decay."""

    def may_step(self, overflow: bool) -> bool:
        if overflow or super().may_step(overflow=True):
            return not overflow
        for gradient in self.gradients():
            gradient.zero_()
        return True


REPORTED: dict[str, type[Reported]] = {kind.__name__: kind for kind in reported()}
