"""transformers alone: its Trainer with a GPT-2 of two layers and default arguments, but for the rate.

C3: huggingface/transformers#34191 mended it.

C4: a list of rows: the window is divided by `gradient_accumulation_steps`, not by its own number of batches. An
`IterableDataset`: the window makes no step, and its gradient is added to the next epoch's first.

C5: Adam's moments move the weights and `global_step` goes on. No argument skips it; rows without a target have to be
taken out of the data.

C7: `debug="underflow_overflow"` raises in the forward pass where a submodule's output is not finite; it does not see a
loss or a gradient alone that is not. `logging_nan_inf_filter` concerns the log alone.

C11: `eval_loss` weighs a batch by its rows, not by its targets (huggingface/transformers#39241, open); a
`compute_metrics` of the user's can count targets. The adapter hands over each batch as one item, so the audit names
`val_mean_of_means`.
"""

import sys
import tempfile

import tiny
import torch
import transformers
from torch.utils.data import IterableDataset, SequentialSampler

DIMENSIONS = {"n_layer": 2, "n_head": 2, "n_embd": 8, "n_positions": 8, "vocab_size": 5}
CONFIG = transformers.GPT2Config(**DIMENSIONS, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
ROWS = [torch.tensor([0, 1, 2, 3, 2, 1]), torch.tensor([3, 2, 1, 0, 1, 2])]
FULL = {"input_ids": ROWS[0], "labels": ROWS[0]}
EMPTY = {"input_ids": ROWS[1], "labels": torch.full_like(ROWS[1], -100)}
STREAM, GPT2 = ("IterableDataset" in sys.argv[2], "GPT-2" in sys.argv[2])
SHORT = {"input_ids": ROWS[1], "labels": torch.tensor([-100, 2, -100, -100, -100, -100])}


class Stream(IterableDataset):
    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        return iter(self.rows)


class InOrder(transformers.Trainer):
    def _get_train_sampler(self, *_):  # versions before 5 have no argument for it
        return SequentialSampler(self.train_dataset)


def trained(
    *rows,
    accumulate=1,
    batch=1,
    loss=None,
    learning_rate=1e-2,
    optim="adamw_torch",
    max_grad_norm=1.0,
    stream=False,
):
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(CONFIG)
    model.loss_type = None if GPT2 else "ForCausalLM"  # GPT-2's own, Llama's
    arguments = transformers.TrainingArguments(
        tempfile.mkdtemp(),
        num_train_epochs=1,
        max_steps=2 if stream else -1,
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=accumulate,
        per_device_eval_batch_size=1,
        lr_scheduler_type="constant",
        optim=optim,
        max_grad_norm=max_grad_norm,
        learning_rate=learning_rate,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = InOrder(model, arguments, train_dataset=Stream(rows) if stream else rows)
    if loss is not None:
        trainer.compute_loss = loss
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    return trainer


def c3():
    moved = tiny.weights_moved(trained(FULL, SHORT, batch=2).model, trained(FULL, SHORT, accumulate=2).model)
    return "distance from the weights of one batch of the same targets", moved, 0


def c4():
    unclipped = {"optim": "sgd", "accumulate": 2, "max_grad_norm": 0.0}  # clipping hides a gradient that is divided
    if STREAM:
        listed, streamed = (trained(FULL, FULL, SHORT, stream=stream, **unclipped).model for stream in (False, True))
        return "distance from two steps on a list of three batches", tiny.weights_moved(listed, streamed), 0
    moved = tiny.weights_moved(trained(FULL, optim="sgd", max_grad_norm=0.0).model, trained(FULL, **unclipped).model)
    return "distance from the weights of a window of one batch, SGD", moved, 0


def c5():
    moved = tiny.weights_moved(trained(FULL).model, trained(FULL, EMPTY).model)
    return "distance the weights moved in a step on a row without a target", moved, 0


def c7():
    spoiled = trained(FULL, loss=lambda model, inputs, **_: model(**inputs).loss * float("nan"))
    return "weights that are not finite after a loss of NaN", tiny.not_finite(spoiled.model), 0


def c11():
    trainer = trained(FULL, learning_rate=1e-1)
    told, model = trainer.evaluate([FULL, SHORT])["eval_loss"], trainer.model.eval()
    means = [float(model(row["input_ids"][None], labels=row["labels"][None]).loss.detach()) for row in (FULL, SHORT)]
    return "eval_loss of rows of 5 and 1 targets, nats per target", told, (5 * means[0] + means[1]) / 6


if __name__ == "__main__":
    tiny.answer({"c3": c3, "c4": c4, "c5": c5, "c7": c7, "c11": c11})
