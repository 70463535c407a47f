"""The command `generate`: text from a trained model, printed as it is drawn."""

import os
import stat
import sys
import warnings
from argparse import Namespace

import torch

from course_lm.generate import Sampling, stream
from course_lm.tokenizer import decode_stream, encode_documents, eos_id
from course_lm.use.finished_run import FinishedRun, device_for, open_run
from course_lm.validation import ensure, require

STANDARD_INPUT = "-"


def generate_text(options: Namespace) -> int:
    """Print `number` texts, divided by blank lines: each the prompt and what the model puts after it; return 0.

    Without a prompt a text is a new document. A reader of the output that ends early ends the command, too.
    """
    sampling = Sampling(options.temperature, options.top_k, options.top_p)
    require(options.max_new_tokens >= 1, "max_new_tokens", "at least 1", options.max_new_tokens)
    require(options.number >= 1, "number", "at least 1", options.number)
    require(0 <= options.seed < 2**63, "seed", "in [0, 2**63)", options.seed)
    opened = open_run(options.run)
    text = read_prompt(options.prompt)
    ids = _encode(opened, text)
    opened.model.to(device_for(opened.config))
    generator = torch.Generator().manual_seed(options.seed)
    for one in range(options.number):
        print("\n" * bool(one) + text, end="", flush=True)
        tokens = stream(opened.model, ids, sampling, options.max_new_tokens, eos_id(opened.tokenizer), generator)
        try:
            for part in decode_stream(opened.tokenizer, tokens):
                print(part, end="", flush=True)
        finally:
            print(flush=True)  # also after Ctrl-C, whose message is a line of its own
    return 0


def read_prompt(given: str | None) -> str:
    """The prompt: as given, or from standard input, without the line end that `echo` puts after it.

    "-" stands for what comes from standard input, and so does None where that is a pipe or a file.
    Raises ValueError for one that is no valid UTF-8.
    """
    if given == STANDARD_INPUT or (given is None and _is_piped()):
        ensure(sys.stdin is not None, "the prompt is to be read from standard input, which is closed")
        content = sys.stdin.buffer.read()
        try:
            return content.decode("utf-8").removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            place = f"byte 0x{content[error.start]:02x} at offset {error.start}"
            raise ValueError(f"the prompt from standard input must be UTF-8, got {place}") from None
    text = given or ""
    try:
        text.encode()
    except UnicodeEncodeError:  # bytes of an argument that are no UTF-8 come as lone surrogates
        raise ValueError("the prompt must be valid UTF-8") from None
    return text


def _is_piped() -> bool:
    """Whether standard input is a pipe or a file: no terminal, and not /dev/null."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # closed, or taken by a notebook or a test
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def _encode(run: FinishedRun, text: str) -> list[int]:
    """`<eos>`, after which every document begins, and the prompt."""
    (ids,) = encode_documents(run.tokenizer, [text])
    ids, longest = ids[:-1], run.config.data.max_length
    if len(ids) > longest:
        warnings.warn(
            f"the prompt has {len(ids):,} tokens, with <eos> before it; the model sees the last {longest:,} only",
            stacklevel=3,
        )
    return ids
