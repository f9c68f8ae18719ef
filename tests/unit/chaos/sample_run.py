"""A plausible result of a run, drawn from a seed, for whoever shows results."""

from __future__ import annotations

import math
import random
from dataclasses import replace

from resilient_ps.chaos.faults.kinds import KINDS, Kind
from resilient_ps.chaos.faults.planned import Planned, Struck
from resilient_ps.chaos.result import (
    Counts,
    Judged,
    Outage,
    Recovery,
    Reign,
    RunResult,
    Sample,
)

SERVERS = ("s1", "s2", "s3", "s4")
WORKERS = ("w0", "w1", "w2", "w3")
CHECKERS = (
    "exactly once",
    "views never go back",
    "staleness is bounded",
    "clocks are whole",
    "epochs only grow",
    "replicas are identical",
    "every rank goes on",
)


def sample_run(seed: int = 7, *, seconds: int = 60, faults: int = 25, shards: int = 8) -> RunResult:
    """A run that held."""
    rng = random.Random(seed)
    struck = tuple(_struck(rng, number, seconds) for number in range(faults))
    outages = tuple(_outages(rng, struck, shards))
    return RunResult(
        seed=seed,
        command=f"resilient-ps chaos run --seed {seed} --duration {seconds}s --workload one-hot "
        "--servers 4 --workers 4 --replicas 2 --store seaweedfs",
        workload="one-hot",
        verdict="held",
        why="",
        judged=tuple(Judged(name, "true") for name in CHECKERS),
        faults=struck,
        samples=tuple(_samples(rng, outages, shards, seconds)),
        reigns=tuple(_reigns(rng, outages, shards, seconds + 6.0)),
        outages=outages,
        recovery=tuple(_recovery(struck, outages)),
        counts=Counts(
            acknowledged=48_213,
            unknown=2,
            pulls=47_950,
            failovers=len(outages),
            copied_bytes=734_003_200,
            checkpoints=4,
        ),
        settings={
            "servers": 4, "workers": 4, "replicas": 2, "shards": shards, "etcd": 3,
            "store": "seaweedfs", "duration_s": seconds, "lease_ttl_s": 2, "consistency": "ssp:3",
            "faults": "all",
        },
        versions={
            "resilient-ps": "0.1.0", "python": "3.11.2", "numpy": "2.3.1", "etcd": "3.5.16",
            "seaweedfs": "4.07", "platform": "Linux-6.1 x86_64, 2 cores",
        },
        logs={
            name: f"run-{seed}/logs/{name}.log"
            for name in (*SERVERS, *WORKERS, "e0", "e1", "e2", "store", "proxy")
        },
        began="2026-07-01T23:30:12+00:00",
        seconds=seconds + 19.4,
        healed_s=seconds + 1.2,
        metrics={},
    )  # fmt: skip


def violated_run(seed: int = 8) -> RunResult:
    """A run that broke two promises."""
    run = sample_run(seed)
    lost = (
        "key 1841 of table oracle/hot: 2 acknowledged pushes of rank 1 are missing at the end",
        "key 977 of table oracle/hot: 1 acknowledged push of rank 3 is missing at the end",
        "... and 14 more keys",
    )
    back = ("rank 2, shard 3: lsn 4,118 was seen in epoch 1.4, then lsn 4,102 in epoch 1.5",)
    judged = (
        Judged(CHECKERS[0], "false", lost),
        Judged(CHECKERS[1], "false", back),
        Judged(CHECKERS[2], "unknown", ("no pull was answered by shard 5",)),
        *run.judged[3:],
    )
    return replace(run, verdict="violated", judged=judged)


def _struck(rng: random.Random, number: int, seconds: int) -> Struck:
    kind: Kind = rng.choices(list(KINDS.values()), [k.weight for k in KINDS.values()])[0]
    role = kind.targets[0]
    names = {"worker": WORKERS, "etcd": ("e0", "e1", "e2"), "store": ("store",)}.get(role, SERVERS)
    target = (f"primary:{rng.randrange(8)}",) if role == "primary" else (rng.choice(names),)
    whom = (rng.choice(SERVERS),) if role == "primary" else target
    at_s = round(rng.uniform(1, seconds - 8), 1)
    lasts_s = round(rng.uniform(*kind.lasts_s) * (2 if kind.in_ttls else 1), 1)
    planned = Planned(number, at_s, kind.name, target, lasts_s, rng.randrange(1 << 16))
    if rng.random() < 0.08:
        return Struck(planned, skipped="shard 3 would have lost its last in-sync replica")
    evidence = (
        f"pid {rng.randrange(9000, 9999)} of {whom[0]} was struck; 41 connections, 312 pieces"
    )
    began = at_s + rng.uniform(0, 0.05)
    return Struck(planned, whom, began, began + lasts_s + rng.uniform(0, 0.4), evidence)


def _outages(rng: random.Random, faults: tuple[Struck, ...], shards: int) -> list[Outage]:
    outages: list[Outage] = []
    hurting = ("kill-server", "kill-primary", "pause-primary", "pause-server", "server-etcd")
    for fault in faults:
        if fault.skipped or fault.planned.kind not in hurting:
            continue
        for shard in sorted(rng.sample(range(shards), 2)):
            lasts_s = rng.uniform(0.08, 0.3) if "kill" in fault.planned.kind else 2.1
            start = fault.injected_s + 0.02
            outages.append(Outage(shard, start, start + lasts_s, fault.planned.number))
    return outages


def _samples(
    rng: random.Random, outages: tuple[Outage, ...], shards: int, seconds: int
) -> list[Sample]:
    samples: list[Sample] = []
    clocks = [0.0] * len(WORKERS)
    for second in range(1, seconds + 7):
        down = sum(
            max(0.0, min(second, o.to_s) - max(second - 1, o.from_s)) for o in outages
        ) / shards  # fmt: skip
        pushes = round(820 * max(0.0, 1 - 2.5 * down) * rng.uniform(0.85, 1.05))
        base = 0.0021 * rng.uniform(0.8, 1.3)
        top = min(clocks) + 3
        clocks = [min(top, clock + pushes / 130 * rng.uniform(0.7, 1.1)) for clock in clocks]
        samples.append(
            Sample(
                at_s=float(second),
                pushes=pushes,
                pulls=round(pushes * rng.uniform(0.97, 1.02)),
                latency_median_s=base if pushes else math.nan,
                latency_p99_s=base * 4 + down * 2 if pushes else math.nan,
                clocks=tuple(int(clock) for clock in clocks),
                checkpoints=second // 15,
            )
        )
    return samples


def _reigns(
    rng: random.Random, outages: tuple[Outage, ...], shards: int, end_s: float
) -> list[Reign]:
    reigns: list[Reign] = []
    for shard in range(shards):
        server, counter, start = SERVERS[shard % len(SERVERS)], 1, 0.0
        for outage in sorted((o for o in outages if o.shard == shard), key=lambda o: o.from_s):
            if outage.from_s <= start:
                continue
            reigns.append(Reign(shard, server, f"1.{counter}", start, outage.from_s))
            reigns.append(Reign(shard, "", f"1.{counter}", outage.from_s, outage.to_s))
            server = rng.choice([name for name in SERVERS if name != server])
            counter, start = counter + 1, outage.to_s
        reigns.append(Reign(shard, server, f"1.{counter}", start, end_s))
    return reigns


def _recovery(faults: tuple[Struck, ...], outages: tuple[Outage, ...]) -> list[Recovery]:
    rows: list[Recovery] = []
    done = [fault for fault in faults if not fault.skipped]
    for kind in KINDS:
        numbers = [fault.planned.number for fault in done if fault.planned.kind == kind]
        longest = sorted(
            max((o.to_s - o.from_s for o in outages if o.fault == number), default=0.0)
            for number in numbers
        )
        if longest:
            middle = longest[len(longest) // 2]
            rows.append(Recovery(kind, len(longest), middle, longest[-1], longest[-1]))
    return rows
