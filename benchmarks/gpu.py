"""The loop on a GPU beside others: `PYTHONPATH=. python benchmarks/gpu.py [--nanogpt FOLDER] [--json FILE] [--dry-run]`

Every row is a process of its own, which takes steps on random tokens in bf16 without dropout: median tokens per second
and the share of the GPU's peak (nanoGPT's count of FLOPs), peak memory, seconds of the first step, the last loss. All
rows see the same batches, those of "packed" cut into four documents. The rows that decide most come first: none begins
after `--seconds`, none takes longer than what is left and a minute, and FILE is written after each. `--dry-run` takes a
tiny size, on a CPU too: it shows that every row runs, and its numbers say nothing.

nanoGPT is read from a folder that holds its `model.py`; transformers and lightning are measured where they are
installed. Nothing heavy is imported here.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from harness import Result, in_child, print_columns

Row = dict[str, Any]
SIZES: dict[str, Row] = {
    "124M": {"n_layer": 12, "n_head": 12, "d_model": 768, "vocab": 50304, "length": 1024, "rows": 32, "windows": 4},
    "10M": {"n_layer": 6, "n_head": 6, "d_model": 384, "vocab": 8192, "length": 256, "rows": 128, "windows": 1},
    "tiny": {"n_layer": 1, "n_head": 2, "d_model": 32, "vocab": 128, "length": 64, "rows": 2, "windows": 2},
}
STEPS, WARM_UP = 14, 4
ROWS: dict[str, Row] = {
    "Trainer, compiled": {"job": "course", "compile": True},
    "nanoGPT, compiled": {"job": "nanogpt", "compile": True},
    "Trainer, packed, compiled": {"job": "course", "packed": True, "compile": True},
    "Trainer, compiled, deterministic": {"job": "course", "compile": True, "deterministic": True},
    "Trainer": {"job": "course"},
    "Trainer, deterministic": {"job": "course", "deterministic": True},
    "Trainer, compiled, cuDNN's attention": {"job": "course", "compile": True, "cudnn": True},
    "Trainer, compiled, exact GELU": {"job": "course", "compile": True, "activation": "gelu"},
    "textbook, compiled": {"job": "textbook", "compile": True},
    "textbook": {"job": "textbook"},
    "nanoGPT": {"job": "nanogpt"},
    "HF Trainer, compiled": {"job": "transformers", "compile": True},
    "HF Trainer, its GPT-2": {"job": "transformers"},
    "Lightning, textbook, compiled": {"job": "lightning", "compile": True},
    "Lightning, textbook": {"job": "lightning"},
    "Trainer, packed": {"job": "course", "packed": True},
}


def main() -> None:
    """Measure row after row, and print a table for each size."""
    parser = argparse.ArgumentParser(description="Tokens per second on a GPU, beside other loops.")
    parser.add_argument("--nanogpt", type=Path, metavar="FOLDER", help="that holds nanoGPT's model.py")
    parser.add_argument("--size", choices=[*SIZES], action="append", help="124M and 10M by default")
    parser.add_argument("--rows", type=int, help="rows of a micro-batch, for a smaller GPU")
    parser.add_argument("--only", default="", metavar="WORD", help="the rows whose name holds it")
    parser.add_argument("--seconds", type=float, default=300.0, help="after which no further row begins")
    parser.add_argument("--dry-run", action="store_true", help="a tiny size, on a CPU too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all measurements to FILE")
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    found: Row = {"where": where()}
    print(found["where"], flush=True)
    for size in ["tiny"] if options.dry_run else options.size or ["124M", "10M"]:
        shape = SIZES[size] | ({"rows": options.rows} if options.rows else {})
        results: dict[str, Result] = {}
        for name, row in ROWS.items():
            left, missing = deadline - time.monotonic(), what_is_missing(row["job"], options.nanogpt)
            if options.only not in name:
                continue
            if missing or left < 0:
                print(f"{name}: left out, {missing or 'the time is over'}", flush=True)
                continue
            spec = {"size": shape, "threads": 4, "nanogpt": str(options.nanogpt), "dry": options.dry_run, **row}
            try:
                results[name] = in_child("gpu.py", spec, left + 60)
            except (RuntimeError, subprocess.TimeoutExpired) as error:  # the others are still to be measured
                print(f"{name}: {str(error).splitlines()[-1]}", flush=True)
            else:
                print(f"{name}: {results[name]['tokens_per_second']:,.0f} tokens/s", flush=True)
            found[size] = results
            if options.json is not None:
                options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        if results:
            show(size, results)


def where() -> str:
    """The GPU and its driver, as `nvidia-smi` tells them, torch, and the date."""
    asked = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        gpu = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        gpu = "no GPU that nvidia-smi knows"
    return f"{gpu}, torch {version('torch')}, {datetime.now(UTC):%Y-%m-%d}"


def what_is_missing(job: str, nanogpt: Path | None) -> str:
    """Why a row cannot be measured here; nothing where it can."""
    if job in ("transformers", "lightning") and (find_spec(job) is None or find_spec("accelerate") is None):
        return f"{job} or accelerate is not installed"
    if job == "nanogpt" and (nanogpt is None or not (nanogpt / "model.py").is_file()):
        return "--nanogpt names no folder with its model.py"
    return ""


def show(size: str, results: dict[str, Result]) -> None:
    """Print the table of one size; ratios are to nanoGPT compiled, or to the first row."""
    base = results.get("nanoGPT, compiled", next(iter(results.values())))["tokens_per_second"]
    print(f"\n{size}, {SIZES[size]['length']} tokens a row")
    rows = {}
    for name, one in results.items():
        share = f"{one['mfu']:.1%}" if one["mfu"] else "-"
        speed, memory = one["tokens_per_second"], one["peak_bytes"] / 2**30
        rows[name] = [
            f"{speed:,.0f}", f"{speed / base:.2f}", share, f"{memory:.1f}", f"{one['first']:.1f}", f"{one['loss']:.3f}"
        ]  # fmt: skip
    print_columns(("tokens/s", "ratio", "MFU", "peak GiB", "first step, s", "loss"), rows)


def measure(spec: Row) -> Row:
    """One row, in a process of its own."""
    import torch
    from torch import Tensor
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from course_lm.model import GPT, ModelConfig
    from course_lm.monitoring.utilization import Work, peak_flops

    size, cuda = spec["size"], torch.cuda.is_available()
    if not cuda and not spec["dry"]:
        raise SystemExit("there is no CUDA device: --dry-run shows on a CPU that every row runs")
    device = torch.device("cuda" if cuda else "cpu")
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    rows, length, windows = size["rows"], size["length"], size["windows"]
    drawn = torch.Generator().manual_seed(1)

    def tokens() -> Tensor:
        ids = torch.randint(size["vocab"], (rows, length), generator=drawn)
        return ids.pin_memory() if cuda else ids

    taken: list[float] = []
    losses: list[float] = []

    def after_step(loss: object = None) -> None:
        if cuda:
            torch.cuda.synchronize()
        now = time.perf_counter()
        taken.append(now - after_step.last)  # type: ignore[attr-defined]
        after_step.last = now  # type: ignore[attr-defined]
        if loss is not None:
            losses.append(float(loss))  # type: ignore[arg-type]

    after_step.last = time.perf_counter()  # type: ignore[attr-defined]
    kernels = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]  # in the order of preference
    with sdpa_kernel(kernels, set_priority=True) if spec.get("cudnn") else nullcontext():
        JOBS[spec["job"]](spec, device, tokens, after_step)
    seconds = sorted(taken[WARM_UP:])[(len(taken) - WARM_UP) // 2]
    shape = {key: size[key] for key in ("n_layer", "n_head", "d_model")}
    with torch.device("meta"):
        work = Work(GPT(ModelConfig(dropout=0.0, **shape), size["vocab"], length))
    flops = windows * work.of({"input_ids": torch.empty(rows, length, device="meta")})  # type: ignore[typeddict-item]
    peak = peak_flops(device, "bf16")
    return {
        "tokens_per_second": rows * windows * length / seconds,
        "mfu": None if peak is None else flops / seconds / peak,
        "peak_bytes": torch.cuda.max_memory_allocated() if cuda else 0,
        "first": taken[0],
        "loss": losses[-1] if losses else float("nan"),
        "steps": taken,
    }


def by_hand(
    spec: Row, device: Any, tokens: Callable[[], Any], after_step: Callable[..., None], model: Any, loss_of: Any
) -> None:
    """The plain loop around a model; `loss_of(model, ids)` is the mean loss of a batch."""
    import torch

    model = model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    called = torch.compile(model) if spec.get("compile") else model
    windows = spec["size"]["windows"]
    for _ in range(STEPS):
        for _ in range(windows):
            ids = tokens().to(device, non_blocking=True)
            with torch.autocast(device.type, torch.bfloat16):
                loss = loss_of(called, ids)
            (loss / windows).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        after_step(loss.detach())


def textbook_model(size: Row) -> Any:
    """The textbook's GPT of one size."""
    from textbook_gpt import TextbookGPT

    shape = {key: size[key] for key in ("n_layer", "n_head", "d_model")}
    return TextbookGPT(vocab_size=size["vocab"], max_length=size["length"], **shape)


def shifted_loss(model: Any, ids: Any) -> Any:
    """The mean loss of logits, outside the model."""
    from torch.nn.functional import cross_entropy

    return cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def textbook(spec: Row, device: Any, tokens: Callable[[], Any], after_step: Callable[..., None]) -> None:
    """The textbook's loop and model."""
    by_hand(spec, device, tokens, after_step, textbook_model(spec["size"]), shifted_loss)


def nanogpt(spec: Row, device: Any, tokens: Callable[[], Any], after_step: Callable[..., None]) -> None:
    """NanoGPT's model, whose loss is inside it."""
    sys.path.insert(0, spec["nanogpt"])
    from model import GPT, GPTConfig  # type: ignore[import-not-found]

    size = spec["size"]
    shape = {"n_layer": size["n_layer"], "n_head": size["n_head"], "n_embd": size["d_model"]}
    model = GPT(GPTConfig(block_size=size["length"], vocab_size=size["vocab"], dropout=0.0, bias=True, **shape))

    def loss_of(called: Any, ids: Any) -> Any:
        import torch

        return called(ids, torch.cat([ids[:, 1:], torch.full_like(ids[:, :1], -1)], 1))[1]

    by_hand(spec, device, tokens, after_step, model, loss_of)


def course(spec: Row, device: Any, tokens: Callable[[], Any], after_step: Callable[..., None]) -> None:
    """This package's Trainer, on full rows or on rows of four documents."""
    import torch

    from course_lm.config import DataConfig, LoopConfig, TrainingConfig
    from course_lm.model import GPT, ModelConfig
    from course_lm.optim import OptimizerConfig
    from course_lm.schedules import ScheduleConfig
    from course_lm.trainer import Trainer

    size = spec["size"]
    rows, length, windows = size["rows"], size["length"], size["windows"]

    def batch() -> dict[str, Any]:
        ids = tokens()
        made = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}
        if spec.get("packed"):
            place, part = torch.arange(length), length // 4
            made["document_ids"] = (place // part).repeat(rows, 1)
            made["labels"][:, ::part] = -100
        return {name: value.pin_memory() if device.type == "cuda" else value for name, value in made.items()}

    class Told:
        def start(self, step: int, total_steps: int | None) -> None:
            after_step.last = time.perf_counter()  # type: ignore[attr-defined]

        def log(self, record: dict[str, Any]) -> None:
            if record["event"] == "train" and not record.get("partial"):
                after_step(record["loss"])

        def close(self) -> None: ...

    shape = {key: size[key] for key in ("n_layer", "n_head", "d_model")}
    activation: Any = spec.get("activation", "gelu_tanh")
    model = GPT(ModelConfig(dropout=0.0, activation=activation, **shape), size["vocab"], length)
    asked: dict[str, Any] = {name: bool(spec.get(name)) for name in ("compile", "deterministic")}
    settings = LoopConfig(
        batch_size=rows, gradient_accumulation_steps=windows, max_steps=STEPS, precision="bf16", device=device.type,
        logging_steps=1, output_dir=None, **asked,
    )  # fmt: skip
    optimizer = OptimizerConfig(learning_rate=6e-4, beta1=0.9, beta2=0.95, weight_decay=0.1)
    config = TrainingConfig(
        data=DataConfig(max_length=length), optimizer=optimizer, lr_scheduler=ScheduleConfig(type="constant"),
        training=settings,
    )  # fmt: skip
    Trainer(model, config, observers=[Told()]).train([batch() for _ in range(STEPS * windows)])


def transformers(spec: Row, device: Any, tokens: Callable[[], Any], after_step: Callable[..., None]) -> None:
    """The Trainer of transformers around its own GPT-2."""
    import tempfile

    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

    size = spec["size"]
    shape = {"n_layer": size["n_layer"], "n_head": size["n_head"], "n_embd": size["d_model"]}
    without: dict[str, Any] = dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=size["vocab"], n_positions=size["length"], **shape, **without))
    rows = torch.cat([tokens() for _ in range(STEPS * size["windows"])])

    class Told(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            after_step()

    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=size["rows"], max_steps=STEPS, report_to=[],
        gradient_accumulation_steps=size["windows"], bf16=True, save_strategy="no", learning_rate=6e-4,
        lr_scheduler_type="constant", weight_decay=0.1, max_grad_norm=1.0, torch_compile=bool(spec.get("compile")),
        optim="adamw_torch_fused", disable_tqdm=True, logging_strategy="no", use_cpu=device.type == "cpu",
    )  # fmt: skip
    data: Any = [{"input_ids": row, "labels": row} for row in rows]
    Trainer(model, arguments, train_dataset=data, callbacks=[Told()]).train()


def lightning(spec: Row, device: Any, tokens: Callable[[], Any], after_step: Callable[..., None]) -> None:
    """Lightning's Trainer around the textbook's model."""
    import lightning  # pyrefly: ignore[missing-import]
    import torch

    size, inner = spec["size"], textbook_model(spec["size"])

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.compile(inner) if spec.get("compile") else inner

        def training_step(self, batch: Any, index: int) -> Any:
            return shifted_loss(self.inner, batch)

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

        def on_train_batch_end(self, outputs: Any, batch: Any, index: int) -> None:
            if index % size["windows"] == size["windows"] - 1:
                after_step(outputs["loss"])

    loader: Iterator[Any] | list[Any] = [tokens() for _ in range(STEPS * size["windows"])]
    lightning.Trainer(
        max_steps=STEPS, accumulate_grad_batches=size["windows"], precision="bf16-mixed", gradient_clip_val=1.0,
        logger=False, enable_checkpointing=False, enable_progress_bar=False, devices=1, accelerator=device.type,
    ).fit(Module(), loader)  # fmt: skip


JOBS: dict[str, Callable[..., None]] = {
    job.__name__: job for job in (textbook, nanogpt, course, transformers, lightning)
}

if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].startswith("{"):
        print(json.dumps(measure(json.loads(sys.argv[1]))))
    else:
        main()
