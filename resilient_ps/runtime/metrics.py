"""Figures for Prometheus: an HTTP endpoint, in a thread of its own.

    with MetricsEndpoint("127.0.0.1:9464", [store.metrics.figures]):
        ...

`GET /metrics` asks all sources, in the endpoint's thread: a source is safe to call from there. With
them come the process's memory, CPU time and open files. A source that fails leaves its figures out
and does not disturb the others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Self
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from resilient_ps.errors import BadInput, Unavailable
from resilient_ps.figures import Figure

Source = Callable[[], Iterable[Figure]]


class MetricsEndpoint:
    """Listens on `address` (`host:port`; port 0: any) until it is closed.

    It answers whoever asks: let it listen where only the monitoring reaches it.
    """

    def __init__(self, address: str, sources: Sequence[Source]) -> None:
        host, port = _parse(address)
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Figures(sources))
        ProcessCollector(registry=registry)
        self._server: WSGIServer
        self._thread: threading.Thread
        try:
            self._server, self._thread = start_http_server(port, addr=host, registry=registry)
        except OSError as error:
            raise Unavailable(f"cannot serve metrics on {address}: {error}") from error

    @property
    def address(self) -> str:
        """Where it listens."""
        host, port = self._server.server_address[:2]
        return f"{host!s}:{port}"

    def close(self) -> None:
        """May be called again."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _Figures(Collector):
    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources

    def collect(self) -> Iterator[Metric]:
        """One family for all figures of a name."""
        families: dict[str, list[Figure]] = {}
        for source in self._sources:
            try:
                figures = list(source())
            except Exception:
                continue  # it is the sources' business to complain
            for figure in figures:
                families.setdefault(figure.name, []).append(figure)
        for name in sorted(families):
            yield _family(families[name])


def _family(figures: list[Figure]) -> Metric:
    first = figures[0]
    labels = [name for name, _ in first.labels]
    make = CounterMetricFamily if first.kind == "counter" else GaugeMetricFamily
    family = make(first.name, first.text, labels=labels)
    for figure in figures:
        values = dict(figure.labels)
        family.add_metric([values.get(name, "") for name in labels], figure.value)
    return family


def _parse(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise BadInput(f"metrics address {address!r} is not of the form host:port")
    return host.strip("[]"), int(port)
