"""The distribution of the next token, and the temperature that it is drawn at."""

from functools import partial

from matplotlib.figure import Figure
from torch import Tensor

from course_lm.classroom import plots
from course_lm.classroom.widgets.explorer import Explorer, explorer, slider, steps

_MOST_TOKENS = 12


def draw_next_token(logits: Tensor, tokens: list[str], temperature: float) -> tuple[Figure, str]:
    """Bars of the most probable next tokens at one temperature, and their numbers.

    Args:
        logits: (V,).
        tokens: the V tokens as text.
        temperature: divides the logits, above 0.
    """
    probabilities = (logits.float() / temperature).softmax(dim=-1)  # (V,)
    top = probabilities.topk(min(_MOST_TOKENS, len(tokens)))
    names = [repr(tokens[index])[1:-1].replace(" ", "·") for index in top.indices.tolist()]  # repr shows line ends
    entropy = float(-(probabilities * probabilities.clamp(min=1e-30).log()).sum())  # 0 log 0 is 0, not nan
    figure = Figure()
    axes = figure.subplots()
    axes.barh(names, top.values.tolist(), color=plots.BLUE)
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    axes.tick_params(axis="y", length=0)
    end = plots.round_up(float(top.values[0]))
    axes.set(xlim=(0, end), xlabel="probability of the next token", title=f"temperature {temperature:.2f}")
    text = f"temperature {temperature:.2f}: entropy {entropy:.2f} nats, first choice {names[0]!r} {top.values[0]:.1%}"
    return figure, text


def temperature_explorer(logits: Tensor, tokens: list[str]) -> Explorer:
    """Turn the sampling temperature and see the distribution that the next token is drawn from.

    Args:
        logits: (V,), the model's scores for the next token.
        tokens: the V tokens as text.
    """
    temperature = slider("temperature", 1.0, steps(0.1, 2.0, 0.1), stored=20)
    return explorer(partial(draw_next_token, logits, tokens), {"temperature": temperature})
