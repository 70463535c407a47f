"""What the audit's tests share: the specification makes each crafted run once for all of them."""

from collections.abc import Iterator

import pytest

from course_lm.audit import examine
from course_lm.audit.search import Specification


@pytest.fixture(scope="session")
def one_specification() -> Iterator[Specification]:
    """Audits with the seed 0 look up what the specification leaves; only the loop is run anew."""
    shared = Specification()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(examine, "Specification", lambda: shared)
        yield shared
