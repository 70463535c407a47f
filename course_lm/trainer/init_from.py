"""A new run with the weights of another one: `training.init_from`.

The run begins at step 0, with an optimizer and a schedule of its own. Where its weights come from is a part of what it
is: their digest, not the path that they were read from. On the command line the sizes of the model, the vocabulary and
the tokenizer come from there as well, since the weights are made for them.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from course_lm.checkpoints import latest_checkpoint, load_checkpoint, load_weights, saved_step, weights_for_use
from course_lm.checkpoints.form import bytes_of
from course_lm.config import TrainingConfig
from course_lm.forward import unwrap
from course_lm.model import GPT
from course_lm.run_records import CONFIG, HELD, TOKENIZER
from course_lm.tokenizer import bytes_per_token, load_tokenizer
from course_lm.transformers_export import model_settings, weights_from_transformers
from course_lm.validation import ensure, shown

WEIGHTS = "model.safetensors"
SIZES = (*(f"model.{name}" for name in ("n_layer", "n_head", "d_model", "positions", "activation")), "data.vocab_size")


@dataclass(frozen=True)
class Beginning:
    """The weights that a run begins with.

    Args:
        init_from: as they were named. file: that they stand in.
        step: of the run that they are from, when the file was written, or None where it does not say.
        sha256: of the weights by name, whatever file they stand in.
    """

    init_from: str
    file: str
    step: int | None
    sha256: str

    def __str__(self) -> str:
        step = "" if self.step is None else f"saved at step {self.step:,}, "
        return f"begins with the weights in {self.file} ({step}sha256 {self.sha256[:12]}…)"


def begin_from(model: nn.Module, name: str | None) -> Beginning | None:
    """Load the weights that `training.init_from` names into the model; None where it names none.

    Of a run's folder they are the exported ones, or where there are none, those of its best or its newest checkpoint. A
    file of `torch.save` holds them alone, or under "model_state_dict", "state_dict" or "model". Names may have a
    wrapper's prefix, one of tied weights may be missing, and half precision becomes the model's.

    Raises:
        ValueError: there are no such weights, or they are another model's; one line says what is there instead.
    """
    if name is None:
        return None
    file, model = _find_weights(name), unwrap(model)
    try:
        weights, step = _read(file)
        weights = _as_named_in(model, weights)
        check_made_for(file, model)
        load_weights(model, weights)
    except (SafetensorError, ValueError) as error:
        raise ValueError(f"training.init_from cannot take {file}: {error}") from error
    return Beginning(name, str(file), step, _digest(weights))


def settings_from(name: str) -> dict[str, dict[str, Any]]:
    """The sections `model` and `data` of the source, as far as the weights are made for them.

    Raises:
        ValueError: nothing beside the weights says what model they are of.
    """
    folder = _find_weights(name).parent
    if (folder / CONFIG).is_file():
        config = TrainingConfig.from_yaml(folder / CONFIG)
        model, data = asdict(config.model), asdict(config.data)
    else:
        file = folder / "config.json"
        ensure(file.is_file(), f"training.init_from {name}: neither {CONFIG} nor {file.name} is in {folder}")
        try:
            model, data = model_settings(json.loads(file.read_bytes()))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{file} is not that of a folder which `course-lm export` wrote: {error!r}") from error
    return {"model": model, "data": {key: data[key] for key in ("vocab_size", "max_length")}}


def tokenizer_from(name: str, vocab_size: int) -> Tokenizer:
    """The tokenizer beside the weights; ValueError where there is none of that size: another one gives other ids."""
    file = _find_weights(name).parent / TOKENIZER
    ensure(
        file.is_file(),
        f"training.init_from {name}: no {TOKENIZER}, which a run writes when it ends, is in {file.parent}",
    )
    tokenizer = load_tokenizer(file)
    size = len(bytes_per_token(tokenizer))
    ensure(size == vocab_size, f"{file} has {size} tokens, and data.vocab_size is {vocab_size}")
    return tokenizer


def check_made_for(weights: Path, model: nn.Module) -> None:
    """Refuse a run's exported weights where they are made for what their shapes do not tell.

    That is another number of heads than the model has, or another tokenizer than the one beside them.
    Raises ValueError.
    """
    about, tokenizer = _about(weights), weights.with_name(TOKENIZER)
    if not isinstance(model, GPT) or "corpus" not in about:  # a model of somebody's own, or no file of `train`
        return
    made, mine = json.loads(about["model"])["n_head"], model.config.n_head
    ensure(made == mine, f"its weights are made for n_head {made}, the model has {mine}")
    if "tokenizer" in about and tokenizer.is_file():
        same = hashlib.sha256(tokenizer.read_bytes()).hexdigest() == about["tokenizer"]
        ensure(same, f"its weights are made for another {TOKENIZER} than the one beside it")


def check_sizes(config: TrainingConfig, source: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse a configuration that asks for another model or vocabulary than `settings_from` gave."""
    lengths = ("data.max_length",) if config.model.positions == "learned" else ()  # each has a weight of its own
    for key in (*SIZES, *lengths):
        section, _, name = key.partition(".")
        asked, held = getattr(getattr(config, section), name), source[section][name]
        came = f"the weights of training.init_from {config.training.init_from} are made for {shown(held)}"
        ensure(asked == held, f"{key} is {shown(asked)}, and {came}: leave {key} out")


def _find_weights(name: str) -> Path:
    given, held = Path(name), Path(HELD, name)
    path = held if held.is_dir() and not given.exists() else given
    if path.is_dir():
        best = next((path / one for one in (WEIGHTS, "checkpoint_best.safetensors") if (path / one).is_file()), None)
        path = best or latest_checkpoint(path) or path
    problem = "is a folder without weights" if path.is_dir() else "is not there"
    ensure(path.is_file(), f"training.init_from {name} {problem}: {_ACCEPTED}")
    return path


_ACCEPTED = f"give a run's or an exported folder, its {WEIGHTS}, a checkpoint, or a file of torch.save"


def _read(file: Path) -> tuple[dict[str, Tensor], int | None]:
    step = saved_step(file)
    if step is not None:
        return weights_for_use(load_checkpoint(file)), step
    if file.suffix != ".safetensors":
        return _unpickled(file), None
    about, weights = _about(file), load_file(file)
    weights |= {name: weights[first] for name, first in about.items() if first in weights}  # tied ones are kept once
    return weights, int(about["step"]) if about.get("step", "").isdigit() else None


def _about(file: Path) -> dict[str, str]:
    """What a safetensors file says of itself; nothing where it is of another kind."""
    if file.suffix != ".safetensors":
        return {}
    with safe_open(file, "pt") as opened:
        return opened.metadata() or {}


def _unpickled(file: Path) -> dict[str, Tensor]:
    try:
        held = torch.load(file, map_location="cpu", weights_only=True)  # which runs no code of the file
    except Exception as error:  # torch raises one of many, with advice to switch that off
        raise ValueError("torch.load(weights_only=True) does not read it: save model.state_dict()") from error
    names = list(held)[:5] if isinstance(held, Mapping) else type(held).__name__
    for key in ("model_state_dict", "state_dict", "model"):
        held = held.get(key, held) if isinstance(held, Mapping) else held
    named = isinstance(held, Mapping) and all(isinstance(k, str) and isinstance(v, Tensor) for k, v in held.items())
    ensure(named, f'it must hold model.state_dict(), also under "model_state_dict" or "state_dict", got {names}')
    return dict(held)


def _as_named_in(model: nn.Module, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights under the model's own names, tied ones under each of them, and in its types where no bit is lost."""
    own, bare = model.state_dict(keep_vars=True), weights
    # `module.` of DDP, `_orig_mod.` of torch.compile, or the name of the model within another module
    while not bare.keys() & own.keys() and [dot for _, dot in {name.partition(".")[:2] for name in bare}] == ["."]:
        bare = {name.partition(".")[2]: tensor for name, tensor in bare.items()}
    if isinstance(model, GPT) and any(name.startswith(("transformer.", "gpt_neox.")) for name in weights):
        weights = weights_from_transformers(model, weights)
    elif bare.keys() & own.keys():
        first = {id(tensor): bare[name] for name, tensor in own.items() if name in bare}
        weights = {name: first[id(tensor)] for name, tensor in own.items() if id(tensor) in first} | bare
    for name, tensor in weights.items():
        mine = own.get(name)
        floats = isinstance(mine, Tensor) and isinstance(tensor, Tensor) and tensor.is_floating_point()
        if floats and torch.promote_types(tensor.dtype, mine.dtype) == mine.dtype:
            weights[name] = tensor.to(mine.dtype)
    return weights


def _digest(weights: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode() + bytes_of(tensor))
    return digest.hexdigest()
