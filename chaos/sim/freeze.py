"""The end of a liveness run: some are well for ever, all others are ill for ever."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from resilient_ps.chaos.sim.cluster import SimCluster
from resilient_ps.chaos.sim.faults import Faults
from resilient_ps.chaos.sim.store import ETCD

FOREVER_NS = 10**15
BACK_WITHIN_S = 30.0
UNDER_WAY_NS = 10_000_000  # what was sent before somebody was struck has arrived by then


def freeze(faults: Faults, rng: np.random.Generator) -> tuple[str, ...]:
    """Heal everything, then strike, for ever, all servers but a majority that holds every shard.

    Returns the survivors; () when a shard has been lost. An object store has brought the cluster
    back from a disaster by then, and is not needed any more: it may be struck too.

    Who is struck may have written right before that it alone is in sync, as it may where the other
    member had just lost its lease: then that shard is lost now (`stranded`).
    """
    faults.heal()
    cluster = faults.cluster
    if cluster.archive is not None:
        cluster.world.wait_for(cluster.is_back, BACK_WITHIN_S)
        if rng.integers(2):
            cluster.world.bucket.stop()
            faults.say("the object store answers nobody, for ever")
    survivors = _choose(faults, rng)
    for name in faults.cluster.servers:
        if survivors and name not in survivors:
            _strike(faults, name, rng)
    cluster.world.run_to(cluster.world.now_ns + UNDER_WAY_NS)
    return survivors


def stranded(cluster: SimCluster, survivors: tuple[str, ...]) -> tuple[int, ...]:
    """The shards on which these servers alone cannot commit; none where nobody was struck."""
    names = set(survivors)
    if names == set(cluster.servers):
        return ()
    members = zip(cluster.records(), _members(cluster), strict=True)
    return tuple(shard for shard, held in members if len(names & held) < cluster.min_in_sync)


def _choose(faults: Faults, rng: np.random.Generator) -> tuple[str, ...]:
    """A smallest possible set of servers that may survive: seeded, and with every shard.

    Of every shard so many in-sync members survive as it takes to commit; where no set fits but
    all servers together, nobody is struck.
    """
    cluster = faults.cluster
    names = list(cluster.servers)
    if not all(_members(cluster)):
        return ()
    for count in range(len(names) // 2 + 1, len(names)):
        fit = [some for some in combinations(names, count) if _hold_all(cluster, set(some))]
        if fit:
            return tuple(sorted(fit[int(rng.integers(len(fit)))]))
    return tuple(names)


def _hold_all(cluster: SimCluster, names: set[str]) -> bool:
    """Can these servers alone commit, on every shard?"""
    return all(len(names & held) >= cluster.min_in_sync for held in _members(cluster))


def _members(cluster: SimCluster) -> list[set[str]]:
    """For each shard, the servers that are in sync, in their present processes."""
    processes = {server.process_id: server.name for server in cluster.servers.values()}
    records = cluster.records().values()
    return [
        {processes[each.process] for each in record.in_sync if each.process in processes}
        for record in records
    ]


def _strike(faults: Faults, name: str, rng: np.random.Generator) -> None:
    cluster = faults.cluster
    server, network = cluster.servers[name], cluster.world.network
    others = [host for host in faults.hosts() if host != name]
    match int(rng.integers(5)):
        case 0:
            cluster.kill(name)
            text = "is killed"
        case 1:
            server.process.pause(FOREVER_NS, mid_step=bool(rng.integers(2)))
            text = "stops"
        case 2:
            faults.cut_off(name, others)
            text = "is cut off from everybody"
        case 3:
            faults.cut_off(name, [ETCD])
            text = "is cut off from etcd"
        case _:
            for other in others:
                network.block(other, name)
            text = "hears nobody"
    faults.say(f"{name} {text}, for ever")
