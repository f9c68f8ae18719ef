"""The study: every consistency under every pattern of slowness, on one cluster, one after the
other; what came of each run, and of the whole."""

from __future__ import annotations

import statistics
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from resilient_ps.cli.bench.stragglers.ranks import Ranks
from resilient_ps.cli.bench.stragglers.slowness import Pattern, Slowness
from resilient_ps.cli.bench.stragglers.watching import Curve, Look, Watch, by_samples
from resilient_ps.cli.bench.stragglers.worker import Order, Told
from resilient_ps.client.launch import RunningCluster
from resilient_ps.consistency import BSP, SSP, parse_consistency
from resilient_ps.data import Dataset

BAR = 1.4  # SSP(3) beside BSP, where a random worker is slow
BAR_OF = "ssp:3"

OnNews = Callable[[str, int], None]


@dataclass(frozen=True, slots=True)
class Setting:
    """What all runs have in common. `dataset`: a file that all ranks read."""

    ranks: int
    clocks: int
    batch_size: int
    epochs: int
    compute_s: float
    factor: float
    seed: int
    lr: float
    dataset: Path
    held_out: Dataset

    def slowness(self, pattern: Pattern) -> Slowness:
        """Who is slow when."""
        return Slowness(pattern, self.ranks, self.compute_s, self.factor, self.seed)


@dataclass(frozen=True, slots=True)
class Run:
    """What came of one run, from its beginning until the first rank was through.

    `staleness`: reads by staleness; `waited_share`: of a rank's time, what is neither computing nor
    work; `work_s`: of a clock, what is not the given length of computing, as the quickest tenth of
    clocks has it. `ideal`: samples per second if nothing but computing took time.
    """

    pattern: Pattern
    consistency: str
    samples: int
    seconds: float
    ideal: float
    staleness: dict[int, int]
    work_s: float
    waited_share: float
    looks: tuple[Look, ...]

    @property
    def samples_per_s(self) -> float:
        """Of all ranks together."""
        return self.samples / self.seconds

    @property
    def loss(self) -> float:
        """On the held-out rows, at the end."""
        return self.looks[-1].loss


@dataclass(frozen=True, slots=True)
class Study:
    """All runs; several of the same kind are rounds."""

    runs: tuple[Run, ...]

    def of(self, pattern: Pattern, consistency: str) -> list[Run]:
        """The rounds of one kind."""
        return [r for r in self.runs if (r.pattern, r.consistency) == (pattern, consistency)]

    def rate(self, pattern: Pattern, consistency: str) -> float:
        """Samples per second: the median over the rounds."""
        return statistics.median(run.samples_per_s for run in self.of(pattern, consistency))

    def gain(self, pattern: Pattern, consistency: str) -> float | None:
        """Samples per second beside BSP's; None where there is no BSP."""
        if not self.of(pattern, "bsp"):
            return None
        return self.rate(pattern, consistency) / self.rate(pattern, "bsp")

    @property
    def holds(self) -> bool | None:
        """Is the bar reached? None: it was not measured."""
        if not self.of(Pattern.RANDOM, BAR_OF):
            return None
        gain = self.gain(Pattern.RANDOM, BAR_OF)
        return None if gain is None else gain >= BAR


def perform(
    cluster: RunningCluster,
    setting: Setting,
    patterns: Sequence[Pattern],
    consistencies: Sequence[str],
    rounds: int,
    folder: Path,
    on_news: OnNews,
) -> Study:
    """All runs, on a cluster that serves. The rounds alternate between the consistencies."""
    runs = []
    done = 0
    kinds = [(p, c) for _ in range(rounds) for p in patterns for c in consistencies]
    for number, (pattern, consistency) in enumerate(kinds):
        order = Order(
            cluster.etcd, cluster.name, f"run-{number}", consistency, str(setting.dataset),
            setting.batch_size, setting.epochs, setting.clocks, f"run-{number}", setting.lr,
            setting.slowness(pattern),
        )  # fmt: skip
        what, before = f"{consistency}, {pattern.value} straggler", done

        def news(clocks: int, what: str = what, before: int = before) -> None:
            on_news(what, before + clocks)

        runs.append(_run(cluster, setting, order, folder, news))
        done += setting.clocks * setting.ranks
        on_news(what, done)
    return Study(tuple(runs))


def _run(
    cluster: RunningCluster,
    setting: Setting,
    order: Order,
    folder: Path,
    on_news: Callable[[int], None],
) -> Run:
    with Ranks(order, folder) as ranks:
        ranks.start()
        with (
            cluster.connect() as client,
            _watching(Watch(client, order.table, setting.held_out)) as watch,
        ):
            begun_s = ranks.run(on_news)
    with cluster.connect() as client:
        client.end_job(order.job, "done")
        for table in (order.table, f"{order.table}/clocks"):
            client.drop_table(table)
    told = [[t for t in process.told if t.clock] for process in ranks.processes]
    return summed_up(order, begun_s, told, watch.curve)


@contextmanager
def _watching(watch: Watch) -> Iterator[Watch]:
    """While the block runs, a thread looks at the model again and again."""
    over = threading.Event()
    thread = threading.Thread(target=watch.run, args=(over,), name="watch", daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        over.set()
        thread.join()
    watch.check()


def summed_up(order: Order, begun_s: float, told: list[list[Told]], curve: Curve) -> Run:
    """A run, of what its ranks have told and of looks at the model."""
    slowness, mode = order.slowness, parse_consistency(order.consistency)
    staleness = 0 if isinstance(mode, BSP) else None
    if isinstance(mode, SSP):
        staleness = mode.staleness
    ended_s = min(of_rank[-1].at_s for of_rank in told if len(of_rank) == order.clocks)
    kept = [[t for t in of_rank if t.at_s <= ended_s] for of_rank in told]
    work_s, waited_share = _shares(begun_s, kept)
    per_clock = order.batch_size * slowness.ranks
    return Run(
        pattern=slowness.pattern,
        consistency=order.consistency,
        samples=sum(of_rank[-1].samples for of_rank in kept if of_rank),
        seconds=ended_s - begun_s,
        ideal=per_clock * slowness.rounds_per_s(order.clocks, staleness),
        staleness=dict(sorted(Counter(t.staleness for ranks in kept for t in ranks).items())),
        work_s=work_s,
        waited_share=waited_share,
        looks=tuple(by_samples(curve, begun_s, ended_s, kept)),
    )


def _shares(begun_s: float, told: list[list[Told]]) -> tuple[float, float]:
    """(what a clock takes besides computing, where nobody is waited for; share of waiting)."""
    over_s, all_s = [], 0.0
    for of_rank in told:
        before_s = begun_s
        for each in of_rank:
            over_s.append(each.at_s - before_s - each.compute_s)
            all_s += each.at_s - before_s
            before_s = each.at_s
    if not over_s:
        return 0.0, 0.0
    work_s = statistics.quantiles(over_s, n=10)[0] if len(over_s) > 1 else over_s[0]
    return work_s, max(0.0, (sum(over_s) - work_s * len(over_s)) / all_s)
