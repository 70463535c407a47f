"""Answers to the exercises of lesson 04: wrong ones, each with the mistake that must be named, and right ones."""

import math

import torch
from torch import nn

from course_lm import optim

# The modules that the lesson teaches, and a fault in the package that must turn it red: file, right, wrong.
TAUGHT = ("optim",)
SABOTAGE = (
    "optim.py",
    '{"params": vectors, "weight_decay": 0.0}',
    '{"params": vectors, "weight_decay": weight_decay}',
)


def sgd_without_velocity(weight, gradient, velocity, lr, momentum, weight_decay):
    total = gradient.add(weight, alpha=weight_decay)
    return weight.sub(total, alpha=lr), velocity.mul(momentum).add(total)


def sgd_too_early(weight, gradient, velocity, lr, momentum, weight_decay):
    moved = weight - velocity * lr
    return moved, velocity * momentum + gradient + weight * weight_decay


def sgd_by_lerp(weight, gradient, velocity, lr, momentum, weight_decay):
    velocity = torch.lerp(gradient + weight_decay * weight, velocity, momentum)
    return weight - lr * velocity, velocity


def sgd_with_decoupled_decay(weight, gradient, velocity, lr, momentum, weight_decay):
    velocity = velocity * momentum + gradient
    return weight - lr * (velocity + weight_decay * weight), velocity


def sgd_with_decay_beside_the_rate(weight, gradient, velocity, lr, momentum, weight_decay):
    velocity = torch.add(gradient, velocity, alpha=momentum)
    return weight - lr * velocity - weight_decay * weight, velocity


def sgd_the_other_way_round(weight, gradient, velocity, lr, momentum, weight_decay):
    velocity = velocity.mul(momentum) + gradient.add(weight, alpha=weight_decay)
    return velocity, weight.sub(velocity, alpha=lr)


def sgd_without_decay(weight, gradient, velocity, lr, momentum, weight_decay):
    velocity = velocity.mul(momentum) + gradient
    return weight.add(velocity, alpha=-lr), velocity


def sgd_with_the_rate_inside(weight, gradient, velocity, lr, momentum, weight_decay):
    velocity = velocity.mul(momentum).add(gradient + weight_decay * weight, alpha=lr)
    return weight - velocity, velocity


def sgd_uphill(weight, gradient, velocity, lr, momentum, weight_decay):
    velocity = torch.add(gradient + weight * weight_decay, velocity, alpha=momentum)
    return torch.add(weight, velocity, alpha=lr), velocity


def sgd_with_growing_weights(weight, gradient, velocity, lr, momentum, weight_decay):
    velocity = momentum * velocity + gradient - weight_decay * weight
    return weight - lr * velocity, velocity


def sgd_by_nesterov(weight, gradient, velocity, lr, momentum, weight_decay):
    gradient = gradient.add(weight, alpha=weight_decay)
    velocity = velocity.mul(momentum).add(gradient)
    return weight.sub(gradient.add(velocity, alpha=momentum), alpha=lr), velocity


def sgd_with_the_old_velocity_returned(weight, gradient, velocity, lr, momentum, weight_decay):
    return sgd_in_one_tensor(weight, gradient, velocity, lr, momentum, weight_decay)[0], velocity


def sgd_by_numpy(weight, gradient, velocity, lr, momentum, weight_decay):
    weight, gradient, velocity = weight.numpy(), gradient.numpy(), velocity.numpy()
    velocity = momentum * velocity + (gradient + weight_decay * weight)
    return weight - lr * velocity, velocity


def sgd_in_one_tensor(weight, gradient, velocity, lr, momentum, weight_decay):
    velocity = torch.stack([velocity * momentum, gradient, weight * weight_decay]).sum(0)
    return [weight - lr * velocity, velocity]


def counted(*, per_weight=2, moments=(2, 1), rows=True, vectors=True, width=4):
    """Bytes, counted tensor by tensor; right unless told otherwise."""

    def training_bytes(shapes, optimizer):
        total = 0
        for shape in shapes:
            numbers = torch.empty(shape, device="meta").numel()
            total += per_weight * numbers
            if optimizer != "adafactor":
                total += moments[0 if optimizer == "adamw" else 1] * numbers
            elif len(shape) == 1:
                total += numbers if vectors else 0
            else:
                total += shape[0] + shape[1] if rows else numbers
        return total * width

    return training_bytes


def bytes_without_factors(shapes, optimizer):
    return 4 * {"sgd": 3, "adamw": 4, "adafactor": 2}[optimizer] * sum(map(math.prod, shapes))


def bytes_in_bits(shapes, optimizer):
    return 8 * counted()(shapes, optimizer)


def bytes_as_float(shapes, optimizer):
    copies = {"sgd": 3, "adamw": 4, "adafactor": 2}[optimizer]
    factors = 4.0 * sum(map(sum, shapes)) if optimizer == "adafactor" else 0.0
    return copies * 4.0 * sum(map(math.prod, shapes)) + factors


def grouped(rule):
    """Groups by a rule that says of (module, name, weight) whether it decays."""

    def decay_groups(model, weight_decay):
        groups = {True: [], False: []}
        for module in model.modules():
            for name, weight in module.named_parameters(recurse=False):
                known = [id(other) for members in groups.values() for other in members]
                if weight.requires_grad and id(weight) not in known:
                    groups[rule(module, name, weight)].append(weight)
        return [
            {"params": groups[True], "weight_decay": weight_decay},
            {"params": groups[False], "weight_decay": 0.0},
        ]

    return decay_groups


def one_group(model, weight_decay):
    return [{"params": [p for p in model.parameters() if p.requires_grad], "weight_decay": weight_decay}]


def groups_by_name(model, weight_decay):
    spared = ("bias", "norm.weight")
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    return [
        {"params": [p for name, p in named if not name.endswith(spared)], "weight_decay": weight_decay},
        {"params": [p for name, p in named if name.endswith(spared)], "weight_decay": 0.0},
    ]


def groups_with_the_tied_weight_twice(model, weight_decay):
    decayed, spared = [], []
    for module in model.modules():
        for p in module.parameters(recurse=False):
            if p.requires_grad:
                (decayed if p.dim() > 1 else spared).append(p)
    return [{"params": spared, "weight_decay": 0}, {"params": decayed, "weight_decay": weight_decay}]


def groups_with_frozen_weights(model, weight_decay):
    return [
        {"params": [p for p in model.parameters() if p.ndim == 2], "weight_decay": weight_decay},
        {"params": [p for p in model.parameters() if p.ndim != 2], "weight_decay": 0.0},
    ]


def groups_of_matrices_alone(model, weight_decay):
    matrices = filter(lambda p: p.requires_grad and p.ndim == 2, model.parameters())
    return [{"params": list(matrices), "weight_decay": weight_decay}]


def groups_that_leave_the_default(model, weight_decay):
    decayed, spared = grouped(lambda module, name, p: p.ndim > 1)(model, weight_decay)
    return [decayed, {"params": spared["params"]}]


def groups_of_ndim_1_and_2(model, weight_decay):
    trained = [p for p in model.parameters() if p.requires_grad]
    decays = {2: weight_decay, 1: 0.0}
    return [{"params": [p for p in trained if p.ndim == n], "weight_decay": decays[n]} for n in decays]


def groups_with_names(model, weight_decay):
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    for decays in (False, True):
        members = [(name, p) for name, p in named if (p.ndim == 2) == decays]
        yield {"params": members, "weight_decay": torch.tensor(weight_decay) if decays else 0}


def one_group_for_each_weight(model, weight_decay):
    trained = [p for p in model.parameters() if p.requires_grad]
    return [{"params": [p], "weight_decay": weight_decay if p.ndim > 1 else 0.0} for p in trained]


def adamw(
    *,
    correct=True,
    of_mean=True,
    of_square=True,
    couple=False,
    rate=True,
    eps_in="sum",
    root=True,
    start=1,
    keep=True,
    swap=False,
    decay=True,
):
    """AdamW with in-place updates, right unless told otherwise."""

    def adamw_step(weight, gradient, state, lr, beta1, beta2, eps, weight_decay):
        if swap:
            beta1, beta2 = beta2, beta1
        if couple:
            gradient = torch.add(gradient, weight, alpha=weight_decay)
        if not state or not keep:
            state.update(t=start, mean=torch.zeros_like(weight), square=torch.zeros_like(weight))
        state["mean"].mul_(beta1).add_(gradient, alpha=1 - beta1)
        state["square"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        mean, square = state["mean"].clone(), state["square"].clone()
        unbiased = torch.tensor(1 - beta2 ** state["t"], dtype=weight.dtype)
        if correct:
            mean /= torch.tensor(1 - beta1 ** state["t"], dtype=weight.dtype) if of_mean else 1.0
            square /= unbiased if of_square else 1.0
        if eps_in == "root":
            square += eps
        below = square.sqrt() if root else square
        if eps_in == "sum":
            below = below + eps
        if eps_in == "early":
            below = below + eps / unbiased.sqrt()
        state["t"] += 1
        shrink = 0.0 if couple or not decay else (lr if rate else 1.0) * weight_decay
        return weight - lr * mean / below - shrink * weight

    return adamw_step


def adamw_that_keeps_corrected_moments(weight, gradient, state, lr, beta1, beta2, eps, weight_decay):
    t, mean, square = state.get("all", (0, torch.zeros_like(weight), torch.zeros_like(weight)))
    mean = torch.lerp(gradient, mean, beta1) / (1 - beta1 ** (t + 1))
    square = torch.lerp(gradient**2, square, beta2) / (1 - beta2 ** (t + 1))
    state["all"] = (t + 1, mean, square)
    return weight.mul(1 - lr * weight_decay).addcdiv(mean, square.sqrt() + eps, value=-lr)


def adamw_that_decays_last(weight, gradient, state, lr, beta1, beta2, eps, weight_decay):
    return adamw()(weight, gradient, state, lr, beta1, beta2, eps, 0.0).mul(1 - lr * weight_decay)


def adamw_in_double(weight, gradient, state, lr, beta1, beta2, eps, weight_decay):
    new = adamw_by_the_paper(weight.double(), gradient.double(), state, lr, beta1, beta2, eps, weight_decay)
    return new.to(weight.dtype)


def adamw_by_the_paper(weight, gradient, state, lr, beta1, beta2, eps, weight_decay):
    state["gradients"] = [*state.get("gradients", []), gradient]
    t = len(state["gradients"])
    mean = sum(beta1 ** (t - 1 - i) * g for i, g in enumerate(state["gradients"])) * (1 - beta1) / (1 - beta1**t)
    square = sum(beta2 ** (t - 1 - i) * g**2 for i, g in enumerate(state["gradients"])) * (1 - beta2) / (1 - beta2**t)
    return weight - lr * (mean / (square.sqrt() + eps) + weight_decay * weight)


WRONG_ANSWERS = {
    "sgd_step": [
        (sgd_without_velocity, "the velocity is kept but never used: the weight moves by the gradient"),
        (sgd_too_early, "the weight moves by the old velocity, without this step's gradient"),
        (sgd_by_lerp, "the gradient enters the velocity times 1 − momentum, as in a moving average"),
        (sgd_with_decoupled_decay, "the decay is decoupled: it stays out of the velocity"),
        (sgd_with_decay_beside_the_rate, "the decay is decoupled and not multiplied by the learning rate"),
        (sgd_the_other_way_round, "the velocity is returned first and the weight second"),
        (sgd_without_decay, "the decay is left out"),
        (sgd_with_the_rate_inside, "the learning rate is inside the velocity"),
        (sgd_uphill, "the step goes uphill: the velocity is added"),
        (sgd_with_growing_weights, "the decay has the wrong sign and makes weights grow"),
        (sgd_by_nesterov, "this is Nesterov's step: the weight moves by gradient + momentum · velocity"),
        (sgd_with_the_old_velocity_returned, "the old velocity is returned, not the new one"),
    ],
    "training_bytes": [
        (counted(per_weight=1), "one copy of each weight is counted: weights or gradients are left out"),
        (counted(per_weight=0), "only the optimizer's state is counted"),
        (counted(moments=(1, 1)), "Adam's second moment is left out"),
        (counted(moments=(2, 0)), "SGD keeps nothing, although it has momentum"),
        (counted(rows=False), "Adafactor keeps a whole second moment"),
        (counted(vectors=False), "Adafactor keeps nothing for vectors"),
        (bytes_without_factors, "Adafactor keeps nothing at all"),
        (counted(width=1), "numbers are counted instead of bytes: a float32 has 4"),
        (bytes_in_bits, "bits are counted instead of bytes"),
        (counted(width=2), "a number is taken to have 2 bytes: a float32 has 4"),
        (counted(moments=(2, 2)), "SGD keeps two numbers for each weight instead of one"),
        (counted(moments=(3, 1)), "AdamW keeps three numbers for each weight instead of two"),
    ],
    "decay_groups": [
        (one_group, "everything decays, biases and norm gains too"),
        (grouped(lambda module, name, p: name != "bias"), "only biases are spared: norm gains decay"),
        (groups_by_name, "names decide, and a norm whose name lacks `norm` is missed"),
        (
            grouped(lambda module, name, p: p.ndim > 1 and not isinstance(module, nn.Embedding)),
            "embeddings are spared, although they are matrices",
        ),
        (grouped(lambda module, name, p: p.dim() == 1), "the two groups are swapped: vectors decay"),
        (groups_with_the_tied_weight_twice, "a tied weight stands in the groups twice and is moved twice"),
        (groups_with_frozen_weights, "frozen weights are in the groups too"),
        (groups_of_matrices_alone, "what must not decay is left out, and so never trained"),
        (
            groups_that_leave_the_default,
            "the group of vectors has no weight_decay: the optimizer's own applies, 0.01 in AdamW",
        ),
        (groups_of_ndim_1_and_2, "a weight without dimensions is in no group"),
    ],
    "adamw_step": [
        (adamw(correct=False), "there is no bias correction"),
        (adamw_that_keeps_corrected_moments, "the corrected moments are kept in the state and corrected again"),
        (adamw(couple=True), "the decay is coupled: it is added to the gradient"),
        (adamw(rate=False), "the decay is not multiplied by the learning rate"),
        (adamw(eps_in="root"), "eps stands inside the square root"),
        (adamw(eps_in="early"), "eps is added before the bias correction"),
        (adamw(root=False), "the square root is missing: the step divides by the second moment itself"),
        (adamw(start=0), "the steps are counted from 0"),
        (adamw(keep=False), "the moments are forgotten after each step"),
        (adamw(swap=True), "beta1 and beta2 are swapped"),
        (adamw(decay=False), "there is no decay"),
        (adamw(of_mean=False), "the first moment is not corrected, only the second"),
        (adamw(of_square=False), "the second moment is not corrected, only the first"),
        (adamw_that_decays_last, "the decay shrinks the weight after it has moved"),
    ],
}

EQUIVALENT = {
    "sgd_step": [sgd_in_one_tensor, sgd_by_numpy],
    "training_bytes": [counted(), bytes_as_float],
    "decay_groups": [
        optim.parameter_groups,
        one_group_for_each_weight,
        groups_with_names,
        grouped(lambda module, name, p: p.ndim >= 2),
    ],
    "adamw_step": [adamw(), adamw_by_the_paper, adamw_in_double],
}
