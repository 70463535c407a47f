"""Checks of lesson 04: a step of SGD, the bytes of a training, which weights decay, a step of AdamW."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from course_lm.classroom.checks.comparison import is_number
from course_lm.classroom.checks.report import AnyOf, Edit, Refused, Report, compare
from course_lm.model import GPT, ModelConfig
from course_lm.optim import OptimizerConfig, build_optimizer, parameter_groups

State = dict[str, Any]
Decays = Callable[[str, Tensor], bool]


def sgd_step(fn: Callable[..., object]) -> Report:
    """One step of SGD: `fn(weight, gradient, velocity, lr, momentum, weight_decay)` gives weight and velocity."""
    joined, kept, moved = "gradient + weight_decay * weight", "momentum * velocity + gradient", "weight - lr * velocity"
    first, second = f"    gradient = {joined}\n", f"    velocity = {kept}\n"
    no_decay = Edit(first, "")
    return compare(
        fn,
        reference=_torch_sgd,
        cases={
            "one weight": (torch.tensor([2.0]), torch.tensor([0.5]), torch.tensor([3.0]), 0.1, 0.75, 0.2),
            "the first step: the velocity is zero": (*_tensors(0, velocity=0.0), 0.1, 0.9, 0.0),
            "with a velocity and decay, in float32": (*_tensors(2, dtype=torch.float32), 0.5, 0.5, 0.2),
            "a gradient of zero": (*_tensors(3, gradient=0.0), 0.2, 0.8, 0.1),
        },
        shown=["the first step: the velocity is zero", "with a velocity and decay, in float32", "a gradient of zero"],
        mistakes={
            "the velocity is kept but never used: the weight moves by the gradient": Edit(
                moved, "weight - lr * gradient"
            ),
            "the weight moves by the old velocity, without this step's gradient": (
                Edit(second, f"    new = {kept}\n"),
                Edit(f"{moved}, velocity", f"{moved}, new"),
            ),
            "the gradient enters the velocity times 1 − momentum, as in a moving average": Edit(
                kept, "momentum * velocity + (1 - momentum) * gradient"
            ),
            "momentum and 1 − momentum are swapped in a moving average": Edit(
                kept, "(1 - momentum) * velocity + momentum * gradient"
            ),
            "this is Nesterov's step: the weight moves by gradient + momentum · velocity": Edit(
                moved, "weight - lr * (gradient + momentum * velocity)"
            ),
            "the decay is decoupled: it stays out of the velocity": (
                no_decay,
                Edit(moved, "weight - lr * (velocity + weight_decay * weight)"),
            ),
            "the decay is decoupled, and the weight that it shrinks has moved already": (
                no_decay,
                Edit(moved, f"({moved}) * (1 - lr * weight_decay)"),
            ),
            "the decay is decoupled and not multiplied by the learning rate": (
                no_decay,
                Edit(moved, "weight - lr * velocity - weight_decay * weight"),
            ),
            "the decay joins the velocity after the step: this step does not feel it": (
                no_decay,
                Edit(f"{moved}, velocity", f"{moved}, velocity + weight_decay * weight"),
            ),
            "the decay counts twice: in the gradient, and beside it": Edit(
                moved, "weight - lr * (velocity + weight_decay * weight)"
            ),
            "the decay is left out": no_decay,
            "the decay is multiplied by the learning rate before it joins the gradient": Edit(
                joined, "gradient + lr * weight_decay * weight"
            ),
            "the decay joins after momentum has been applied to the gradient too: momentum · (velocity + gradient)": (
                no_decay,
                Edit(kept, "momentum * (velocity + gradient) + weight_decay * weight"),
            ),
            "the gradient is multiplied by momentum too": Edit(kept, "momentum * (velocity + gradient)"),
            "the decay is 2 · weight_decay · weight": Edit(joined, "gradient + 2 * weight_decay * weight"),
            "the decay is half of weight_decay · weight": Edit(joined, "gradient + 0.5 * weight_decay * weight"),
            "the decay does not depend on the size of the weight: its sign alone counts (L1)": Edit(
                joined, "gradient + weight_decay * weight.sign()"
            ),
            "the decay has the square of the weight": Edit(joined, "gradient + weight_decay * weight**2"),
            "the learning rate is inside the velocity": (
                Edit(kept, "momentum * velocity + lr * gradient"),
                Edit(moved, "weight - velocity"),
            ),
            "the learning rate is inside the velocity, which has the sign of the step: weight + velocity": (
                Edit(kept, "momentum * velocity - lr * gradient"),
                Edit(moved, "weight + velocity"),
            ),
            "the velocity has the sign of the step: weight + lr · velocity": (
                Edit(kept, "momentum * velocity - gradient"),
                Edit(moved, "weight + lr * velocity"),
            ),
            "the learning rate is applied twice: in the velocity, and to the step": Edit(
                kept, "momentum * velocity + lr * gradient"
            ),
            "the step goes uphill: the velocity is added": Edit("weight - lr", "weight + lr"),
            "the decay has the wrong sign and makes weights grow": Edit(
                "gradient + weight_decay", "gradient - weight_decay"
            ),
            "the velocity is returned first and the weight second": Edit(f"{moved}, velocity", f"velocity, {moved}"),
            "the velocity that is returned is multiplied by the learning rate": Edit(
                f"{moved}, velocity", f"{moved}, lr * velocity"
            ),
            "the old velocity is returned, not the new one": (
                Edit(first, f"{first}    old = velocity\n"),
                Edit(f"{moved}, velocity", f"{moved}, old"),
            ),
            "the gradient is returned in place of the velocity": Edit(f"{moved}, velocity", f"{moved}, gradient"),
            "the weight alone is returned, without the velocity": Edit(f"{moved}, velocity", moved),
            "the old weight is returned: it does not move": Edit(moved, "weight"),
            "the step is returned, not the weight after it": Edit(moved, "-lr * velocity"),
            "there is no momentum: the velocity is this step's gradient alone": Edit("momentum * velocity + ", ""),
            "the learning rate and momentum change places": (
                Edit("momentum * velocity", "lr * velocity"),
                Edit(moved, "weight - momentum * velocity"),
            ),
            "momentum and weight_decay change places": (
                Edit("weight_decay * weight", "momentum * weight"),
                Edit("momentum * velocity", "weight_decay * velocity"),
            ),
        },
        hints={
            "weight_decay * weight": "Coupled decay joins the gradient before the velocity sees it.",
            "momentum * velocity": "The gradient enters with its full size: momentum · velocity + gradient.",
            "lr * velocity": "The weight moves by the learning rate times the new velocity, downhill.",
        },
    )


def _tensors(
    seed: int, *, gradient: float = 1.0, velocity: float = 1.0, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor]:
    """A weight, a gradient and a velocity, (2, 3); the numbers scale the last two."""
    drawn = torch.randn(3, 2, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    weight, gradients, velocities = (drawn * torch.tensor([1.0, gradient, velocity]).view(3, 1, 1)).to(dtype)
    return weight, gradients, velocities


def _torch_sgd(
    weight: Tensor, gradient: Tensor, velocity: Tensor, lr: float, momentum: float, weight_decay: float
) -> tuple[Tensor, Tensor]:
    parameter = nn.Parameter(weight.clone())
    optimizer = SGD([parameter], lr=lr, momentum=momentum, weight_decay=weight_decay)
    optimizer.state[parameter]["momentum_buffer"], parameter.grad = velocity.clone(), gradient
    optimizer.step()
    return parameter.detach(), optimizer.state[parameter]["momentum_buffer"]


def training_bytes(fn: Callable[..., object]) -> Report:
    """Bytes of fp32 weights, gradients and moments: `fn(shapes, optimizer)`, "sgd", "adamw" or "adafactor"."""
    size = "torch.Size(shape).numel()"
    factors, copies, end = '"adafactor": sum(shape)', "2 * size + moments", "4 * numbers"
    lists = [[(30, 50)], [(7,)], [(512, 64), (64,), (256, 64), (256,)], [(6, 6), (5, 1), (1,)], [(8, 4), (8, 4), (32,)]]
    return compare(
        fn,
        reference=_measured_bytes,
        cases={"adamw": (lists, "adamw"), "sgd with momentum": (lists, "sgd"), "adafactor": (lists, "adafactor")},
        run=_for_each_model,
        mistakes={
            "one copy of each weight is counted: weights or gradients are left out": Edit(copies, "size + moments"),
            "every optimizer is counted as AdamW": lambda shapes, optimizer: _measured_bytes(shapes, "adamw"),
            "only the optimizer's state is counted": Edit(copies, "moments"),
            "the optimizer's state is left out": Edit(copies, "2 * size"),
            "only the weights are counted": Edit(copies, "size"),
            "three copies are counted beside the moments: weights, gradients and one more": Edit(
                copies, "3 * size + moments"
            ),
            "Adam's second moment is left out": Edit('"adamw": 2 * size', '"adamw": size'),
            "AdamW keeps three numbers for each weight instead of two": Edit('"adamw": 2 * size', '"adamw": 3 * size'),
            "AdamW's step counters are counted too": Edit('"adamw": 2 * size', '"adamw": 2 * size + 1'),
            "SGD keeps nothing, although it has momentum": Edit('"sgd": size', '"sgd": 0'),
            "SGD keeps two numbers for each weight instead of one": Edit('"sgd": size', '"sgd": 2 * size'),
            "Adafactor keeps a whole second moment": Edit(factors, '"adafactor": size'),
            "Adafactor keeps nothing for vectors": Edit(factors, '"adafactor": sum(shape) if len(shape) > 1 else 0'),
            "Adafactor keeps nothing at all": Edit(factors, '"adafactor": 0'),
            "Adafactor keeps one number for a vector": Edit(
                factors, '"adafactor": sum(shape) if len(shape) > 1 else 1'
            ),
            "Adafactor keeps one number more for a vector, as if it were a matrix of one row": Edit(
                factors, '"adafactor": sum(shape) + (len(shape) == 1)'
            ),
            "Adafactor keeps two numbers for each entry of a vector": Edit(
                factors, '"adafactor": sum(shape) * (3 - len(shape))'
            ),
            "Adafactor keeps one number for each row, and none for the columns": Edit(factors, '"adafactor": shape[0]'),
            "Adafactor keeps one number for each column, and none for the rows": Edit(
                factors, '"adafactor": shape[-1]'
            ),
            "Adafactor keeps as many numbers as the longer side of a matrix": Edit(factors, '"adafactor": max(shape)'),
            "Adafactor keeps one number for each tensor": Edit(factors, '"adafactor": 1'),
            "Adafactor keeps a first moment too": Edit(factors, '"adafactor": size + sum(shape)'),
            "Adafactor keeps two numbers for each row and each column": Edit(factors, '"adafactor": 2 * sum(shape)'),
            "Adafactor keeps as much as AdamW": Edit(factors, '"adafactor": 2 * size'),
            "numbers are counted instead of bytes: a float32 has 4": Edit(end, "numbers"),
            "bits are counted instead of bytes": Edit(end, "32 * numbers"),
            "a number is taken to have 2 bytes: a float32 has 4": Edit(end, "2 * numbers"),
            "a number is taken to have 8 bytes: a float32 has 4": Edit(end, "8 * numbers"),
            "kibibytes are returned: bytes divided by 1024": Edit(end, "4 * numbers / 1024"),
            "kilobytes are returned: bytes divided by 1000": Edit(end, "4 * numbers / 1000"),
            "mebibytes are returned: bytes divided by 1024²": Edit(end, "4 * numbers / 2**20"),
            "megabytes are returned: bytes divided by a million": Edit(end, "4 * numbers / 1e6"),
            "the moments are counted in numbers, all else in bytes": (
                Edit(copies, "8 * size + moments"),
                Edit(end, "numbers"),
            ),
            "only the last tensor is counted": Edit("numbers += ", "numbers = "),
            "only the first tensor is counted": Edit("in shapes", "in shapes[:1]"),
            "vectors are left out": Edit("in shapes", "in [one for one in shapes if len(one) > 1]"),
            "the two sizes of a matrix are added, not multiplied": Edit(size, "sum(shape)"),
            "the first size of a shape is taken for its number of entries": Edit(size, "shape[0]"),
        },
        hints={
            size: "A tensor has the product of its sizes as entries.",
            factors: "Adafactor: rows plus columns of a matrix; a vector keeps its whole second moment.",
            '"adamw": 2 * size': "SGD with momentum keeps one number for each weight, AdamW keeps two.",
            "numbers += ": "Each weight has a gradient of its own size, and the moments come on top.",
            "return 4": "An fp32 number has 4 bytes.",
        },
    )


def _for_each_model(fn: Callable[..., object], models: Sequence[Sequence[tuple[int, ...]]], kind: str) -> list[object]:
    return [fn(shapes, kind) for shapes in models]


def _measured_bytes(shapes: Sequence[tuple[int, ...]], kind: Any) -> int:
    model = nn.ParameterList([nn.Parameter(torch.ones(shape)) for shape in shapes])
    optimizer = build_optimizer(model, OptimizerConfig(type=kind))
    weights = list(model.parameters())
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    kept = [value for state in optimizer.state.values() for name, value in state.items() if name != "step"]
    gradients = [weight.grad for weight in weights]
    return sum(tensor.nbytes for tensor in (*weights, *gradients, *kept) if isinstance(tensor, Tensor))


def decay_groups(fn: Callable[..., object]) -> Report:
    """Parameter groups of which only matrices decay: `fn(model, weight_decay)` gives dicts for an optimizer."""

    def wrong(decays: Decays) -> Callable[..., list[State]]:
        return lambda model, weight_decay: _groups(model, weight_decay, decays)

    def is_linear(model: nn.Module) -> set[int]:
        return {id(one.weight) for one in model.modules() if isinstance(one, nn.Linear)}

    matrices, others = "p.ndim >= 2", "p.ndim < 2"
    decayed = '        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": weight_decay},\n'
    spared = '        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},\n'
    tiny = ModelConfig(n_layer=1, n_head=1, d_model=4, dropout=0.0)
    frozen = _TiedModel()
    frozen.linear.requires_grad_(False)
    return compare(
        fn,
        reference=parameter_groups,
        run=_decay_of_each,
        cases={
            "a GPT of the course": (GPT(tiny, vocab_size=5, max_length=3), 0.1),
            "a head tied to the embedding": (_TiedModel(), 0.1),
            "a frozen layer": (frozen, 0.3),
        },
        shown=["a head tied to the embedding"],
        mistakes={
            "everything decays, biases and norm gains too": (Edit(matrices, "True"), Edit(others, "False")),
            "only biases are spared: norm gains decay": wrong(lambda name, weight: not name.endswith("bias")),
            "only norms are spared: biases of other layers decay": wrong(
                lambda name, weight: weight.ndim >= 2 or not ("ln" in name or "norm" in name or "scale" in name)
            ),
            "names decide, and a norm whose name lacks `norm` is missed": wrong(
                lambda name, weight: "norm" not in name and not name.endswith("bias")
            ),
            "embeddings are spared, although they are matrices": AnyOf(
                wrong(lambda name, weight: weight.ndim >= 2 and "embedding" not in name),
                lambda model, weight_decay: _groups(
                    model, weight_decay, lambda name, weight: id(weight) in is_linear(model)
                ),
            ),
            "the two groups are swapped: vectors decay": AnyOf(
                (Edit(matrices, "p.ndim < 2"), Edit(others, "p.ndim >= 2")),
                (Edit(matrices, "p.ndim == 1"), Edit(others, "p.ndim != 1")),
            ),
            "nothing decays": Edit('"weight_decay": weight_decay', '"weight_decay": 0.0'),
            "weight_decay is not used: matrices decay by 0.1 always": Edit(
                '"weight_decay": weight_decay', '"weight_decay": 0.1'
            ),
            "weight_decay is not used: matrices decay by 0.01 always": Edit(
                '"weight_decay": weight_decay', '"weight_decay": 0.01'
            ),
            "a tied weight stands in the groups twice and is moved twice": Edit(
                "model.parameters()", "(p for _, p in model.named_parameters(remove_duplicate=False))"
            ),
            "a tied weight is left out": Edit(
                "if p.requires_grad",
                "if p.requires_grad and sum(q is p for _, q in model.named_parameters(remove_duplicate=False)) < 2",
            ),
            "frozen weights are in the groups too": Edit(" if p.requires_grad", ""),
            "only frozen weights are in the groups": Edit("if p.requires_grad", "if not p.requires_grad"),
            "what must not decay is left out, and so never trained": Edit(spared, ""),
            "matrices are left out, and so never trained": Edit(decayed, ""),
            "the group of vectors has no weight_decay: the optimizer's own applies, 0.01 in AdamW": Edit(
                ', "weight_decay": 0.0', ""
            ),
            "the group of matrices has no weight_decay: the optimizer's own applies": Edit(
                ', "weight_decay": weight_decay', ""
            ),
            "all weights stand in the group without decay, and matrices in the other one as well": Edit(others, "True"),
            "all weights stand in the group that decays, and vectors in the other one as well": Edit(matrices, "True"),
            "a weight without dimensions is in no group": Edit(others, "p.ndim == 1"),
            "a weight without dimensions decays": (Edit(matrices, "p.ndim != 1"), Edit(others, "p.ndim == 1")),
            "the submodules are not entered: only weights of the model itself are found": Edit(
                "model.parameters()", "model.parameters(recurse=False)"
            ),
        },
        hints={
            "trained = ": "`model.parameters()` gives a tied weight once; ask each for `requires_grad`.",
            matrices: "Ask the tensor, not its name: `p.ndim`.",
            others: "What does not decay is trained all the same: a group with a weight_decay of 0.",
        },
    )


class _TiedModel(nn.Module):
    """A head that shares the embedding's weight, a norm whose name does not say that it is one, and a lone number."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.ln = nn.LayerNorm(4)
        self.linear = nn.Linear(4, 4)
        self.gate = nn.Linear(4, 1)  # a matrix of one row
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embedding.weight
        self.scale = nn.Parameter(torch.tensor(1.0))


def _decay_of_each(fn: Callable[..., Any], model: nn.Module, weight_decay: float) -> dict[str, str]:
    """What the groups do with each parameter: its decay, once for each time that it stands there.

    Raises Refused for what no optimizer takes as parameter groups.
    """
    groups = fn(model, weight_decay)
    if isinstance(groups, Optimizer):
        raise Refused("gives an optimizer, not the groups that one is made of: return a list of dicts")
    found: dict[int, list[str]] = {}
    named: set[bool] = set()
    for group in [groups] if isinstance(groups, dict) else groups:
        if not isinstance(group, dict) or "params" not in group:
            got = f"one with the keys {', '.join(map(str, group))}" if isinstance(group, dict) else type(group).__name__
            raise Refused(f'return a list of dicts, each with "params", got {got}')
        if not is_number(group.get("weight_decay", 0.0)):
            raise Refused(f'"weight_decay" is a number, got {group["weight_decay"]!r}')
        decay = f"decay {float(group['weight_decay']):g}" if "weight_decay" in group else "no weight_decay given"
        params = group["params"]
        if isinstance(params, set):
            raise Refused('the "params" of a group are a set, which has no order: optimizers take a list')
        for weight in [params] if isinstance(params, Tensor) else params:
            named.add(isinstance(weight, tuple))
            weight = weight[1] if isinstance(weight, tuple) else weight  # a name may stand before it
            if not isinstance(weight, Tensor):
                raise Refused(f'"params" holds tensors, got a {type(weight).__name__}')
            found.setdefault(id(weight), []).append(decay)
    if len(named) > 1:
        raise Refused("some parameters come with a name and some without: an optimizer takes all or none")
    return {name: " and ".join(found.get(id(weight), ["not there"])) for name, weight in model.named_parameters()}


def _groups(model: nn.Module, weight_decay: float, decays: Decays) -> list[State]:
    named = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    chosen = [weight for name, weight in named if decays(name, weight)]
    rest = [weight for name, weight in named if not decays(name, weight)]
    return [{"params": chosen, "weight_decay": weight_decay}, {"params": rest, "weight_decay": 0.0}]


def adamw_step(fn: Callable[..., object]) -> Report:
    """One step of AdamW: `fn(weight, gradient, state, lr, beta1, beta2, eps, weight_decay)` gives the weight.

    `state` is a dict that is empty at first and handed on from step to step.
    """
    count = 't = state["step"] = state.get("step", 0) + 1'
    of_m, of_v, root = "m / (1 - beta1**t)", "v / (1 - beta2**t)", "(v / (1 - beta2**t)).sqrt() + eps"
    update, moved = f"({of_m}) / ({root})", "(1 - lr * weight_decay) * weight - lr * update"
    start, shrunk = f"    {count}\n", "(1 - lr * weight_decay) * weight"
    numbers = (0.1, 0.5, 0.9, 0.01, 0.2)
    coupled = Edit(start, f"    gradient = gradient + weight_decay * weight\n{start}")
    return compare(
        fn,
        reference=_torch_adamw,
        run=_each_step,
        cases={
            "one weight, two steps": (torch.tensor([2.0]), [torch.tensor([0.5]), torch.tensor([-1.0])], *numbers),
            "tiny gradients, where eps counts": (*_steps(1, 4, scale=1e-3), 0.1, 0.8, 0.99, 1e-3, 0.1),
            "gradients of zero": (*_steps(2, 2, scale=0.0), 0.1, 0.9, 0.999, 1e-8, 0.5),
            "in float32, without decay": (*_steps(3, 3, dtype=torch.float32), 0.01, 0.9, 0.95, 1e-8, 0.0),
        },
        shown=["gradients of zero", "in float32, without decay", "tiny gradients, where eps counts"],
        mistakes={
            "there is no bias correction": (Edit(of_m, "m"), Edit("(v / (1 - beta2**t))", "v")),
            "the first moment is not corrected, only the second": Edit(of_m, "m"),
            "the second moment is not corrected, only the first": Edit("(v / (1 - beta2**t))", "v"),
            "the corrected moments are kept in the state and corrected again": (
                Edit(
                    update,
                    '(state["m"] / (1 - beta1**t)) / ((state["v"] / (1 - beta2**t)).sqrt() + eps)\n    '
                    'state["m"], state["v"] = m / (1 - beta1**t), v / (1 - beta2**t)',
                ),
            ),
            "the bias is corrected by beta · t, not by beta to the power of t": (
                Edit("beta1**t", "beta1 * t"),
                Edit("beta2**t", "beta2 * t"),
            ),
            "both moments are corrected with beta1": Edit("beta2**t", "beta1**t"),
            "both moments are corrected with beta2": Edit("beta1**t", "beta2**t"),
            "the moments are multiplied by the correction, not divided": (
                Edit(of_m, "m * (1 - beta1**t)"),
                Edit(of_v, "v * (1 - beta2**t)"),
            ),
            "the second moment's correction stands outside the square root": Edit(
                root, "v.sqrt() / (1 - beta2**t) + eps"
            ),
            "the decay is coupled: it is added to the gradient": (coupled, Edit(shrunk, "weight")),
            "the decay is there twice: in the gradient, and beside it": coupled,
            "the decay is not multiplied by the learning rate": Edit("lr * weight_decay", "weight_decay"),
            "there is no decay": Edit(shrunk, "weight"),
            "the decay shrinks the weight after it has moved": Edit(
                moved, "(1 - lr * weight_decay) * (weight - lr * update)"
            ),
            "the decay has the wrong sign and makes weights grow": Edit("(1 - lr * w", "(1 + lr * w"),
            "the decay is multiplied by the learning rate twice": Edit("lr * weight_decay", "lr * lr * weight_decay"),
            "the weight is multiplied by 1 − weight_decay, and the step too by the decay": Edit(
                moved, "(1 - lr * weight_decay) * weight - lr * weight_decay * update"
            ),
            "eps stands inside the square root": Edit(root, "(v / (1 - beta2**t) + eps).sqrt()"),
            "eps is added before the bias correction": Edit(root, "(v.sqrt() + eps) / (1 - beta2**t) ** 0.5"),
            "eps is left out": Edit(" + eps", ""),
            "eps is subtracted": Edit("+ eps", "- eps"),
            "the square root is missing: the step divides by the second moment itself": Edit(".sqrt()", ""),
            "the steps are counted from 0": _counted_from_0,
            "the steps are counted from 2": Edit('state.get("step", 0) + 1', 'state.get("step", 1) + 1'),
            "every step is corrected as the first one, with beta¹: no count, or no power": Edit(count, "t = 1"),
            "the moments are forgotten after each step": AnyOf(
                Edit(start, f"    state = {{}}\n{start}"),
                (Edit('m = state["m"] =', "m ="), Edit('v = state["v"] =', "v =")),
            ),
            "the first moment is forgotten after each step": Edit('m = state["m"] =', "m ="),
            "the second moment is forgotten after each step": Edit('v = state["v"] =', "v ="),
            "beta1 and beta2 are swapped": (Edit(start, f"    beta1, beta2 = beta2, beta1\n{start}"),),
            "the second moment averages the gradient, not its square": Edit("gradient**2", "gradient"),
            "the second moment averages the size of the gradient, not its square": Edit(
                "gradient**2", "gradient.abs()"
            ),
            "the second moment averages the square of the first moment, not of the gradient": Edit(
                "gradient**2", "m**2"
            ),
            "beta and 1 − beta are swapped in both moments": (
                Edit('beta1 * state.get("m", 0) + (1 - beta1)', '(1 - beta1) * state.get("m", 0) + beta1'),
                Edit('beta2 * state.get("v", 0) + (1 - beta2)', '(1 - beta2) * state.get("v", 0) + beta2'),
            ),
            "the gradient enters the moments with its full size, as in SGD's velocity": (
                Edit("(1 - beta1) * ", ""),
                Edit("(1 - beta2) * ", ""),
            ),
            "the moments start at the first gradient and its square, not at 0": (
                Edit('state.get("m", 0)', 'state.get("m", gradient)'),
                Edit('state.get("v", 0)', 'state.get("v", gradient**2)'),
            ),
            "the moments start at the first gradient and its square, and are not corrected": (
                Edit('state.get("m", 0)', 'state.get("m", gradient)'),
                Edit('state.get("v", 0)', 'state.get("v", gradient**2)'),
                Edit(of_m, "m"),
                Edit("(v / (1 - beta2**t))", "v"),
            ),
            "the gradient stands where the first moment belongs, as in RMSprop": Edit(of_m, "gradient"),
            "this is Nesterov's variant: the gradient joins the corrected first moment once more": Edit(
                of_m, "(beta1 * m + (1 - beta1) * gradient) / (1 - beta1**t)"
            ),
            "the largest second moment so far divides (AMSGrad)": Edit(
                of_v, '(state.update(top=v.maximum(state.get("top", v))) or state["top"]) / (1 - beta2**t)'
            ),
            "the step goes uphill: the update is added": Edit("- lr * update", "+ lr * update"),
            "the learning rate is missing: the weight moves by the whole update": Edit("- lr * update", "- update"),
            "the update is returned, not the weight": Edit(f"return {moved}", "return update"),
            "the step is returned, not the weight after it": Edit(f"return {moved}", "return -lr * update"),
            "the step is divided by the norm of the whole gradient's second moment, not entry by entry": Edit(
                root, "(v / (1 - beta2**t)).mean().sqrt() + eps"
            ),
        },
        hints={
            "t = state": "Count the steps in the state, and from 1: at the first one 1 − beta¹ must not be 0.",
            'm = state["m"]': "m = beta1 · m + (1 − beta1) · gradient, kept in the state as it is.",
            'v = state["v"]': "v = beta2 · v + (1 − beta2) · gradient², kept in the state as it is.",
            "update = ": "Correct both moments with 1 − betaᵗ, then divide by the root of the second plus eps.",
            "1 - lr * weight_decay": "The decay touches the weight alone, and the learning rate multiplies it.",
        },
    )


def _counted_from_0(
    weight: Tensor, gradient: Tensor, state: State, lr: float, beta1: float, beta2: float, eps: float, decay: float
) -> Tensor:
    t = state["step"] = state.get("step", -1) + 1
    m = state["m"] = beta1 * state.get("m", 0) + (1 - beta1) * gradient
    v = state["v"] = beta2 * state.get("v", 0) + (1 - beta2) * gradient**2
    of_m, of_v = torch.tensor([1 - beta1**t, 1 - beta2**t], dtype=weight.dtype)  # a tensor: dividing by 0 gives inf
    return (1 - lr * decay) * weight - lr * (m / of_m) / ((v / of_v).sqrt() + eps)


def _steps(
    seed: int, count: int, *, scale: float = 1.0, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, list[Tensor]]:
    """A weight (2, 3) and as many gradients."""
    drawn = torch.randn(1 + count, 2, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)
    return drawn[0], list(drawn[1:] * scale)


def _each_step(fn: Callable[..., object], weight: Tensor, gradients: Sequence[Tensor], *numbers: float) -> list[object]:
    state: State = {}
    weights: list[object] = []
    new: object = weight
    for gradient in gradients:
        new = fn(new, gradient, state, *numbers)
        if isinstance(new, tuple | dict):  # it would come back as the weight
            raise Refused(f"gives a {type(new).__name__}: return the weight alone")
        weights.append(new.clone() if isinstance(new, Tensor) else new)
    return weights


def _torch_adamw(
    weight: Tensor, gradient: Tensor, state: State, lr: float, beta1: float, beta2: float, eps: float, decay: float
) -> Tensor:
    if not state:
        state["weight"] = nn.Parameter(weight.clone())
        state["optimizer"] = AdamW([state["weight"]], lr=lr, betas=(beta1, beta2), eps=eps, weight_decay=decay)
    state["weight"].grad = gradient
    state["optimizer"].step()
    return state["weight"].detach().clone()
