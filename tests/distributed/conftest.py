"""The ranks that the tests of this folder share."""

from collections.abc import Iterator

import pytest

from tests.distributed.pool import Pool, Ranks


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    """`ranks(W)` gives W processes that have joined; they stay for the next test."""
    pools: dict[int, Pool] = {}

    def pool_of(world: int) -> Pool:
        if world not in pools:
            pools[world] = Pool(world)
        return pools[world]

    yield pool_of
    for pool in pools.values():
        pool.close()
