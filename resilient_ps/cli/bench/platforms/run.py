"""Runs every platform on every problem, one after the other, each for the same time."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from resilient_ps.cli.bench.platforms.order import Order, Said
from resilient_ps.cli.bench.platforms.problems import LOGISTIC, Problem, Weights
from resilient_ps.cli.interrupts import INTERRUPTS
from resilient_ps.cli.local import running
from resilient_ps.client.connection import connect
from resilient_ps.data import ArrayDataset
from resilient_ps.errors import Unavailable
from resilient_ps.runtime.local import LocalCluster
from resilient_ps.runtime.spawn import spawn

END_DEADLINE_S = 300.0  # beside the time of training: loading, starting a JVM
LOG_TAIL_BYTES = 2000
CLUSTER = "bench-platforms"
ONE_THREAD = dict.fromkeys(
    ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
)
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo"}

Kind = Literal["ours", "processes", "one"]


@dataclass(frozen=True, slots=True)
class Platform:
    """`kind`: ours; a process for each worker; or one process, which starts its own workers.

    `package`: what has to be installed. `servers`, `replicas`, `consistency`: of ours.
    """

    name: str
    program: str
    package: str
    kind: Kind
    note: str
    servers: int = 1
    replicas: int = 1
    consistency: str = ""
    only: str = ""  # the one problem that it is run on

    @property
    def is_ours(self) -> bool:
        """Is it this project?"""
        return self.kind == "ours"

    @property
    def is_installed(self) -> bool:
        """Can it be run here?"""
        return find_spec(self.package) is not None


_OURS = Platform("", "ours", "resilient_ps", "ours", "one server and shard, no replica")
PLATFORMS = (
    replace(
        _OURS,
        name="ours, BSP",
        note=f"{_OURS.note}; a step is the mean of all workers",
        consistency="bsp:mean",
    ),
    replace(
        _OURS,
        name="ours, SSP(3)",
        note=f"{_OURS.note}; each worker's batch is a step",
        consistency="ssp:3",
    ),
    replace(
        _OURS,
        name="ours, SSP(3), hot standby",
        note="two servers, every shard on both",
        servers=2,
        replicas=2,
        consistency="ssp:3",
        only=LOGISTIC,
    ),
    Platform("PyTorch", "pytorch", "torch", "processes", "DistributedDataParallel over gloo"),
    Platform("Spark", "spark", "pyspark", "one", "gradient descent on cached RDDs, numpy"),
    Platform(
        "scikit-learn",
        "scikit",
        "sklearn",
        "one",
        "one process; SGDClassifier steps after each row, MLPClassifier after each batch",
    ),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """A platform on a problem; a value for each round."""

    platform: Platform
    problem: Problem
    rates: list[float] = field(default_factory=list)  # samples per second
    losses: list[float] = field(default_factory=list)  # over all rows, when the time was over
    version: str = ""

    @property
    def rate(self) -> float:
        """Median over the rounds."""
        return statistics.median(self.rates)

    @property
    def loss(self) -> float:
        """Median over the rounds."""
        return statistics.median(self.losses)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run: on each problem all platforms, in every round."""

    problems: Sequence[Problem]
    platforms: Sequence[Platform]
    workers: int
    seconds: float
    rounds: int
    seed: int
    folder: Path

    def pairs(self) -> Iterator[tuple[Problem, Platform]]:
        """In the order in which they are run, one round after the other."""
        for problem in self.problems:
            for _ in range(self.rounds):
                for platform in self.platforms:
                    if platform.only in ("", problem.name):
                        yield problem, platform

    @property
    def count(self) -> int:
        """Of runs."""
        return sum(1 for _ in self.pairs())


def measure(plan: Plan, say: Callable[[str], None], on_run: Callable[[], None]) -> list[Measured]:
    """All runs. Platforms that are not installed must not be in the plan."""
    found: dict[tuple[str, str], Measured] = {}
    dataset: ArrayDataset | None = None
    before: Problem | None = None
    for number, (problem, platform) in enumerate(plan.pairs()):
        say(f"{problem.name}: {platform.name}")
        if problem is not before:
            problem.save(plan.folder, plan.seed)
            dataset, before = problem.load(plan.folder), problem
        order = Order(
            problem, str(plan.folder), plan.workers, plan.seconds, plan.seed, f"run-{number}"
        )
        said, weights = _ours(order, platform) if platform.is_ours else _peer(order, platform)
        assert dataset is not None
        row = found.setdefault((problem.name, platform.name), Measured(platform, problem))
        row.rates.append(sum(each.samples / each.seconds for each in said))
        row.losses.append(problem.loss(weights, dataset))
        found[problem.name, platform.name] = replace(row, version=said[0].version)
        on_run()
    return list(found.values())


def _ours(order: Order, platform: Platform) -> tuple[list[Said], Weights]:
    """On a cluster of its own, which ends with the run."""
    processes = LocalCluster(
        platform.servers,
        replicas=platform.replicas,
        cluster=CLUSTER,
        flags=["--shards", str(platform.servers)],
    )
    with running(processes):
        etcd = ",".join(processes.endpoints)
        told = replace(order, etcd=etcd, cluster=CLUSTER, consistency=platform.consistency)
        said = _programs(told, platform)
        with connect(etcd, CLUSTER) as client:
            tables = [f"{order.run}/{layer}" for layer in range(len(order.problem.shapes))]
            weights = [client.table(name).pull() for name in tables]  # type: ignore[call-arg]
    return said, [layer.reshape(shape) for layer, shape in
                  zip(weights, order.problem.shapes, strict=True)]  # fmt: skip


def _peer(order: Order, platform: Platform) -> tuple[list[Said], Weights]:
    return _programs(order, platform), order.weights()


def _programs(order: Order, platform: Platform) -> list[Said]:
    """Start the processes of a run, and wait for all."""
    count = 1 if platform.kind == "one" else order.workers
    with ExitStack() as stack:
        started = [
            stack.enter_context(_program(replace(order, rank=rank), platform))
            for rank in range(count)
        ]
        return [_heard(process, log, platform, order.seconds) for process, log in started]


@contextmanager
def _program(order: Order, platform: Platform) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    log = Path(order.folder) / f"{order.run}-{order.rank}.log"
    module = f"resilient_ps.cli.bench.platforms.{platform.program}"
    command = [sys.executable, "-m", module, order.to_json()]
    with INTERRUPTS.held():
        environment = {**ONE_THREAD, **LOOPBACK}
        process = spawn(command, log, stdout=subprocess.PIPE, environment=environment)
    try:
        yield process, log
    finally:
        with INTERRUPTS.held():
            _end(process)


def _heard(process: subprocess.Popen[bytes], log: Path, platform: Platform, seconds: float) -> Said:
    try:
        out, _ = process.communicate(timeout=seconds + END_DEADLINE_S)
    except subprocess.TimeoutExpired:
        out = b""
    lines = out.decode().splitlines()
    if not lines or process.returncode != 0:
        tail = log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").strip()
        raise Unavailable(f"{platform.name} ended without a result: {tail or 'without a word'}")
    return Said(**json.loads(lines[-1]))


def _end(process: subprocess.Popen[bytes]) -> None:
    """And what it has started: a child has a session of its own."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(5.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.stdout is not None:
        process.stdout.close()
