"""What one child process of `peers.py` runs: `python peer_loops.py '{"loop": …}'` prints one JSON object.

Every loop trains the same weights on the same rows with the same optimizer, groups, schedule and clipping, in the same
precision; only what drives the step differs, and for one row the module. A hook of the optimizer reads the clock after
each step, in every loop alike.
"""

import importlib
import json
import logging
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.utils.data import DataLoader
from workloads import SIZES, Size, run_config

from course_lm.corpus import load_corpus
from course_lm.monitoring import peak_memory
from course_lm.optim import parameter_groups
from course_lm.schedules import ScheduleConfig, ScheduleLR, build_schedule
from course_lm.tokenizer import encode_documents, train_tokenizer
from course_lm.trainer import Trainer

LEARNING_RATE, WEIGHT_DECAY, MAX_NORM = 1e-3, 0.1, 1.0
Batch = dict[str, Tensor]


@dataclass
class Task:
    """What every loop is given: rows, the model, its optimizer, the schedule, the precision."""

    batches: list[Batch]
    held_out: Batch
    model: nn.Module
    optimizer: Optimizer
    schedule: Callable[[int], float]
    precision: str

    @property
    def rates(self) -> ScheduleLR:
        return ScheduleLR(self.optimizer, self.schedule)

    @property
    def autocast(self) -> torch.autocast:
        return torch.autocast("cpu", torch.bfloat16, enabled=self.precision == "bf16")

    def loader(self) -> "DataLoader[Batch]":
        """The batches as they are, in their order, from the loader that the other libraries want."""
        return DataLoader(self.batches, batch_size=None)  # type: ignore[arg-type]


def rows_of_text(size: Size, steps: int) -> tuple[list[Batch], Batch]:
    """Full rows of the Python language reference, read again where it ends, and held-out rows of its end."""
    documents = load_corpus("python-docs").documents
    tokenizer = train_tokenizer(documents, size.vocab_size)
    ids = torch.tensor([id for document in encode_documents(tokenizer, documents) for id in document])
    rows = ids[: len(ids) // size.length * size.length].view(-1, size.length)
    held_out, rows = rows[-size.batch_size :], rows[: -size.batch_size]
    rows = rows[torch.arange(steps * size.batch_size) % len(rows)]
    return [batch_of(part) for part in rows.split(size.batch_size)], batch_of(held_out)


def batch_of(rows: Tensor) -> Batch:
    return {"input_ids": rows, "attention_mask": torch.ones_like(rows), "labels": rows.clone()}


def plain(task: Task) -> None:
    """The loop as it is usually written."""
    rates = task.rates
    for batch in task.batches:
        task.optimizer.zero_grad()
        with task.autocast:
            loss = loss_of(task.model, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(task.model.parameters(), MAX_NORM)
        task.optimizer.step()
        rates.step()


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    """The shifted cross-entropy as a plain loop has it; models of transformers give it themselves."""
    if hasattr(model, "generation_config"):
        return model(**batch).loss
    logits = model(batch["input_ids"])
    return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), batch["labels"][:, 1:].flatten())


def shipped(task: Task) -> None:
    """Our `Trainer`."""
    config = run_config(task.precision, len(task.batches[0]["input_ids"]))
    Trainer(task.model, config, optimizer=task.optimizer, schedule=task.schedule).train(task.batches)


def hugging_face(task: Task) -> None:
    """`transformers.Trainer`, which draws its batches from the loader that it is given."""
    from transformers import Trainer as Peer
    from transformers import TrainingArguments

    class Given(Peer):
        def get_train_dataloader(self) -> "DataLoader[Batch]":
            return task.loader()

        def compute_loss(self, model: nn.Module, inputs: Batch, *_: Any, **__: Any) -> Tensor:
            return loss_of(model, inputs)

    with TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=len(task.batches),
            max_grad_norm=MAX_NORM,
            bf16=task.precision == "bf16",
            use_cpu=True,
            save_strategy="no",
            logging_steps=10,
            report_to=[],
            disable_tqdm=True,
        )
        # it would write into `model.config`, which only its own models have for that
        model = task.model if hasattr(task.model, "generation_config") else nn.Sequential(task.model)
        Given(model, arguments, optimizers=(task.optimizer, task.rates)).train()  # pyrefly: ignore[bad-argument-type]


def lightning(task: Task) -> None:
    """`lightning.Trainer` around a module of the usual three methods."""
    from lightning import LightningModule  # pyrefly: ignore[missing-import]
    from lightning import Trainer as Peer  # pyrefly: ignore[missing-import]

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = task.model

        def training_step(self, batch: Batch, _: int) -> Tensor:
            loss = loss_of(self.model, batch)
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return {"optimizer": task.optimizer, "lr_scheduler": {"scheduler": task.rates, "interval": "step"}}

    Peer(
        max_epochs=1,
        accelerator="cpu",
        precision="bf16-mixed" if task.precision == "bf16" else "32-true",
        gradient_clip_val=MAX_NORM,
        log_every_n_steps=10,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(Module(), task.loader())


def fabric(task: Task) -> None:
    """`lightning.Fabric`, which wraps the parts of a plain loop."""
    from lightning import Fabric  # pyrefly: ignore[missing-import]

    peer = Fabric(accelerator="cpu", precision="bf16-mixed" if task.precision == "bf16" else "32-true")
    rates = task.rates
    model, optimizer = peer.setup(task.model, task.optimizer)
    for batch in peer.setup_dataloaders(task.loader()):
        optimizer.zero_grad()
        peer.backward(loss_of(model, batch))
        peer.clip_gradients(model, optimizer, max_norm=MAX_NORM)
        optimizer.step()
        rates.step()


def accelerate(task: Task) -> None:
    """`accelerate.Accelerator`, likewise."""
    from accelerate import Accelerator  # pyrefly: ignore[missing-import]

    peer = Accelerator(mixed_precision="bf16" if task.precision == "bf16" else "no", cpu=True)
    model, optimizer, loader, rates = peer.prepare(task.model, task.optimizer, task.loader(), task.rates)
    for batch in loader:
        optimizer.zero_grad()
        with peer.autocast():
            loss = loss_of(model, batch)
        peer.backward(loss)
        peer.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        rates.step()


def gpt2(size: Size) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_layer": size.n_layer, "n_head": size.n_head, "n_embd": size.d_model, "n_positions": size.length}
    quiet = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "use_cache": False}
    return GPT2LMHeadModel(GPT2Config(vocab_size=size.vocab_size, **sizes, **quiet))


LOOPS: dict[str, Callable[[Task], None]] = {
    loop.__name__: loop for loop in (plain, shipped, hugging_face, lightning, fabric, accelerate)
}
LIBRARIES = {
    "hugging_face": "transformers.trainer",
    "lightning": "lightning",
    "fabric": "lightning",
    "accelerate": "accelerate",
}
MODULES: dict[str, Callable[[Size], nn.Module]] = {"ours": Size.model, "textbook": Size.textbook, "gpt2": gpt2}


def measure(spec: dict[str, Any]) -> dict[str, float]:
    """Train as `spec` says: its loop, module, size, precision, steps, warm-up steps and threads.

    Returns:
        "tokens_per_second" after the warm-up; "first_step", seconds from the call of the loop to the end of its first
        step, its library being imported already; "val_loss" on held-out rows in the end, nats per token; "peak_mib",
        resident memory.
    """
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(spec["threads"])
    torch.manual_seed(0)
    size, steps, warmup = SIZES[spec["size"]], spec["steps"], spec["warmup"]
    batches, held_out = rows_of_text(size, steps)
    model = MODULES[spec["module"]](size)
    # not fused: under bf16 Lightning clips nothing before a fused step, and refuses it
    optimizer = AdamW(parameter_groups(model, WEIGHT_DECAY), lr=LEARNING_RATE)
    schedule = build_schedule(ScheduleConfig(), peak_lr=LEARNING_RATE, total_steps=steps)
    moments: list[float] = []
    optimizer.register_step_post_hook(lambda *_: moments.append(perf_counter()))
    task = Task(batches, held_out, model, optimizer, schedule, spec["precision"])
    importlib.import_module(LIBRARIES.get(spec["loop"], "torch"))
    called = perf_counter()
    LOOPS[spec["loop"]](task)
    if len(moments) != steps:
        raise RuntimeError(f"{spec['loop']} made {len(moments)} optimizer steps of {steps}")
    model.eval()
    with torch.no_grad():
        val_loss = float(loss_of(model, held_out))
    return {
        "tokens_per_second": (steps - warmup) * batches[0]["input_ids"].numel() / (moments[-1] - moments[warmup - 1]),
        "first_step": moments[0] - called,
        "val_loss": val_loss,
        "peak_mib": peak_memory() / 2**20,
    }


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.argv[1]))))
