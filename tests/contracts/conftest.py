"""The stores of the key-value contract, each started once for all its tests."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from kv_stores import ContractKv, Store, open_store

_NUMBERS = itertools.count()


@pytest.fixture(scope="session", params=["model", "embedded", "etcd-1", "etcd-3"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    with open_store(request.param) as opened:
        yield opened


@pytest.fixture
def kv(store: Store) -> ContractKv:
    return store.kv


@pytest.fixture
def here() -> bytes:
    """A prefix that no other test uses."""
    return b"t%d/" % next(_NUMBERS)
