"""The token embedding of a model, whoever has written the model."""

from contextlib import suppress

from torch import nn


def embedded_tokens(module: nn.Module) -> int | None:
    """Rows of the token embedding, None where there is none.

    It is the one that `get_input_embeddings()` names, as in Hugging Face's models, or else the model's largest.
    """
    embeddings = module.modules()
    if hasattr(module, "get_input_embeddings"):
        with suppress(NotImplementedError):  # some of Hugging Face's cannot tell
            embeddings = [module.get_input_embeddings()]  # type: ignore[operator]
    # the largest: embeddings of positions have as a rule fewer rows than the vocabulary
    return max((one.num_embeddings for one in embeddings if isinstance(one, nn.Embedding)), default=None)
