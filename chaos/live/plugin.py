"""Fixtures for pytest: a small cluster of real processes, and faults for it.

    def test_my_model_survives_a_server_kill(chaos_cluster, faults):
        with chaos_cluster.connect() as client:
            model = MyModel(client)
            model.train(clocks=20)
            faults.kill_primary(shard=0)
            model.train(clocks=20)
            assert model.loss() < 0.1

Whoever has resilient-ps installed has them; nothing but pytest is imported before one is used.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from resilient_ps.chaos.live.hurting import Faults
    from resilient_ps.chaos.live.under_test import ClusterUnderTest

OPTION = "chaos_cluster"
NUMBERS = ("servers", "replicas", "min_in_sync", "shards", "etcd", "lease_ttl_s")
TEXTS = ("store",)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`chaos_cluster = servers=3 etcd=1` in pytest's settings."""
    parser.addini(OPTION, "what the fixture chaos_cluster starts: servers=3 replicas=2 ...")


def pytest_configure(config: pytest.Config) -> None:
    """The marker, for one test or module."""
    options = ", ".join((*NUMBERS, *TEXTS))
    config.addinivalue_line(
        "markers", f"{OPTION}({options}): what the fixture chaos_cluster starts"
    )


@pytest.fixture
def chaos_cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ClusterUnderTest]:
    """A cluster of its own for each test: three servers, two replicas, as the marker says."""
    from resilient_ps.chaos.live.under_test import cluster_under_test

    options = from_text(str(request.config.getini(OPTION) or ""))
    for mark in reversed(list(request.node.iter_markers(OPTION))):  # the closest one is the last
        options.update(checked(mark.kwargs, f"the marker {OPTION}"))
    with cluster_under_test(**options, logs=tmp_path / "logs", ends_with_test=True) as cluster:
        yield cluster


@pytest.fixture
def faults(chaos_cluster: ClusterUnderTest) -> Iterator[Faults]:
    """What can be done to `chaos_cluster`. A cluster that outlives the test is healed after it."""
    from resilient_ps.chaos.live.hurting import Faults

    hurting = Faults(chaos_cluster.scene)
    yield hurting
    if not chaos_cluster.ends_with_test:
        hurting.heal()


def from_text(text: str) -> dict[str, Any]:
    """The options that a setting gives. Raises `pytest.UsageError` for what is none."""
    options: dict[str, Any] = {}
    for word in shlex.split(text):
        name, is_given, value = word.partition("=")
        if not is_given:
            raise pytest.UsageError(f"{OPTION} = {text}: write {name}=VALUE")
        options[name] = int(value) if name in NUMBERS and value.isdecimal() else value
    return checked(options, f"{OPTION} in pytest's settings")


def checked(options: dict[str, Any], where: str) -> dict[str, Any]:
    """The same. Raises `pytest.UsageError` naming `where` for an option that there is not."""
    for name, value in options.items():
        if name not in (*NUMBERS, *TEXTS):
            known = ", ".join((*NUMBERS, *TEXTS))
            raise pytest.UsageError(f"{where}: there is no option {name!r}; there are {known}")
        if not isinstance(value, int if name in NUMBERS else str):
            raise pytest.UsageError(f"{where}: {name}={value!r} is not what it should be")
    return options
