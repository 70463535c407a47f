"""What a micro-batch needs besides weights and moments, at each point in time, from its shapes alone.

Source for what a block keeps: Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models",
section 4.1.
"""

from typing import NamedTuple

from course_lm.model import ModelConfig

WORD, HALF, LONG = 4, 2, 8  # bytes of fp32, of bf16 or fp16, of int64


class Stage(NamedTuple):
    """Bytes at one point in time, by the owners that `profile_memory` names.

    Attributes:
        gradients: of weights, that this pass has made so far.
        waiting: gradients that this pass has made, and that are not yet added to those of earlier passes.
        activations: what autograd saves in the model, each storage once and no parameter; autocast's half-precision
            copies of weights among them, which stay from forward to backward when FSDP frees the weights.
        logits: the model's output, while it is there, and what the loss keeps of it.
        temporaries: gradients of activations, and other copies that autocast makes.
    """

    gradients: int
    waiting: int
    activations: int
    logits: int
    temporaries: int


def stages(
    model: ModelConfig, vocab_size: int, max_length: int, batch_size: int, precision: str = "fp32", device: str = "cuda"
) -> list[Stage]:
    """The points in time of one micro-batch (B, T), one of which has the most bytes.

    What one operation needs inside itself is left out. On the CPU, tests measure the sizes; those of other devices
    (dropout, fused attention) are from torch's source.
    """
    tokens = batch_size * max_length  # B T
    wide, scores = tokens * model.d_model, tokens * vocab_size  # B T D, B T V
    table, matrix = vocab_size * model.d_model, 4 * model.d_model**2  # weights: of the head, of a perceptron's layer
    weights = 3 * matrix + 13 * model.d_model  # of a block: four linear layers, their biases, two norms
    half, cpu = precision != "fp32", device == "cpu"
    item = HALF if half else WORD
    dropped = round(model.dropout * 2**16) > 0
    # The package's own dropout keeps factors on a CPU, in its input's type; torch's keeps a byte for each element.
    factor, first_factor = (item, WORD) if cpu else (1, 1)
    statistics = 2 * WORD * tokens  # mean and scale of a norm
    rotary = model.positions == "rotary"

    copies = half * HALF * 3 * matrix  # autocast's, of a block's linear layers
    block = 2 * (WORD * wide + statistics)  # inputs of both norms: the residual stream is fp32
    block += 14 * item * wide  # inputs of 4 linear layers (1 + 1 + 1 + 4), query, key, value (3), input of GELU (4)
    block += 2 * factor * wide * dropped + copies
    if half and cpu:  # plain attention, see `model.prefers_plain_attention`: probabilities (B, H, T, T)
        block += item * model.n_head * tokens * max_length
    else:  # fused attention: the mask as a number (B, T, T), and the scores' normaliser (B, H, T)
        block += item * tokens * max_length + WORD * model.n_head * tokens
        block += rotary * 2 * item * wide  # turned queries and keys; the value keeps what they were, all one storage

    turns = rotary * tokens * WORD * (model.d_model // model.n_head)  # a complex number for two elements of a head
    kept = (2 - rotary) * LONG * tokens + turns + first_factor * wide * dropped  # of the embeddings
    each, again = block, 0  # what stays of each block, and what one block makes anew
    if model.gradient_checkpointing:
        each, again = WORD * wide, block - WORD * wide  # its input, and all else
        kept += tokens * max_length * (HALF * model.n_head if half and cpu else 1)  # mask, for the second forward pass

    full = kept + model.n_layer * each
    head = WORD * wide + statistics + item * wide + half * HALF * table  # last norm, the head's input, autocast's copy
    loss = WORD * scores + LONG * tokens  # log-probabilities and targets
    output = (item + half * WORD) * scores  # logits, and where they are halves their copy in fp32
    # Recomputed blocks save no copies of weights, but autocast itself holds them until the forward pass ends.
    end_of_forward = Stage(0, 0, full + head, loss + output, model.n_layer * copies if again else 0)
    # The logits are gone; the gradients of the log-probabilities and of the logits are there.
    loss_backward = Stage(0, 0, full + head, loss, 2 * WORD * scores)
    # In the last block and in the first, the perceptron's second layer: the gradients of its weights and of its input.
    perceptrons = [
        Stage(
            gradients=passed * WORD * weights,
            waiting=WORD * (table + matrix),
            activations=full - passed * each + again,
            logits=0,
            temporaries=4 * item * wide + WORD * wide,
        )
        for passed in (0, model.n_layer - 1)
    ]
    # All gradients; the embedding's has two parts, the head's and that of the tokens looked up, which are added last.
    positions = 0 if rotary else max_length * model.d_model
    others = positions + model.n_layer * weights + 2 * model.d_model
    end = Stage(WORD * others, WORD * table, 0, 0, 2 * WORD * table)
    return [end_of_forward, loss_backward, *perceptrons, end]
