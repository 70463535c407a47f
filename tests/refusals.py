"""What every refusal keeps: it is one line."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

Kind = type[Exception] | tuple[type[Exception], ...]


@contextmanager
def refused(kind: Kind, match: str | None = None) -> Iterator[pytest.ExceptionInfo[Exception]]:
    """The body is refused in one line, in which the pattern `match` is found."""
    with pytest.raises(kind, match=match) as caught:
        yield caught
    assert str(caught.value) and "\n" not in str(caught.value), str(caught.value)


def refusal(kind: Kind, act: Callable[[], object]) -> str:
    """The one line, and a short one, with which `act` is refused."""
    with refused(kind) as caught:
        act()
    assert len(str(caught.value)) < 300, str(caught.value)
    return str(caught.value)
