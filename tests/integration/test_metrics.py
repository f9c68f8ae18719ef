"""The metrics endpoint: what Prometheus reads."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.request import urlopen

import pytest

from resilient_ps.errors import BadInput, Unavailable
from resilient_ps.figures import Figure
from resilient_ps.runtime.metrics import MetricsEndpoint


def figures() -> list[Figure]:
    text = "Requests"
    return [
        Figure("resilient_ps_requests_total", 3, text, "counter", (("kind", "put"),)),
        Figure("resilient_ps_requests_total", 4, text, "counter", (("kind", "get"),)),
        Figure("resilient_ps_age_seconds", 1.5, "Age of the last checkpoint"),
    ]


def broken() -> Iterator[Figure]:
    yield Figure("resilient_ps_broken", 1, "Never seen")
    raise RuntimeError("out of order")


def scraped(endpoint: MetricsEndpoint) -> list[str]:
    with urlopen(f"http://{endpoint.address}/metrics", timeout=20) as answer:
        return answer.read().decode().splitlines()  # type: ignore[no-any-return]


def test_all_sources_are_scraped_and_a_broken_one_disturbs_none() -> None:
    with MetricsEndpoint("127.0.0.1:0", [broken, figures]) as endpoint:
        lines = scraped(endpoint)
    assert 'resilient_ps_requests_total{kind="put"} 3.0' in lines
    assert 'resilient_ps_requests_total{kind="get"} 4.0' in lines
    assert "# TYPE resilient_ps_requests_total counter" in lines
    assert "resilient_ps_age_seconds 1.5" in lines
    assert "# HELP resilient_ps_age_seconds Age of the last checkpoint" in lines
    assert any(line.startswith("process_resident_memory_bytes ") for line in lines)
    assert not any("broken" in line for line in lines)


def test_an_address_in_use_is_a_clear_error() -> None:
    with (
        MetricsEndpoint("127.0.0.1:0", []) as endpoint,
        pytest.raises(Unavailable, match=f"{endpoint.address}.*in use"),
    ):
        MetricsEndpoint(endpoint.address, [])


@pytest.mark.parametrize("address", ["", "9464", "127.0.0.1:", ":1", "127.0.0.1:70000"])
def test_a_wrong_address_is_a_clear_error(address: str) -> None:
    with pytest.raises(BadInput, match="host:port"):
        MetricsEndpoint(address, [])
