"""Which faults may be brought about on a cluster that somebody runs, and when it is too much.

Such a cluster is not ours: nothing stands between its processes, and who is killed there comes back
only if somebody else sees to that. So there are fewer kinds than in a cluster of our own, and all
of them are healed by us unless one is named that is not.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from resilient_ps.chaos.faults.kinds import KINDS, Kind, choose
from resilient_ps.errors import BadInput

HEALED_BY_US: tuple[str, ...] = ("pause-server", "pause-primary", "pause-coordinator")
"""What is allowed where nothing is named."""
ATTACHABLE: frozenset[str] = frozenset(
    {
        *HEALED_BY_US,
        "pause-worker",
        "kill-server",
        "kill-primary",
        "kill-coordinator",
        "kill-worker",
        "stop-server",
        "stop-worker",
        "memory",
        "cpu",
        "lease-revoke",
        "drain",
    }
)
ENDING: frozenset[str] = frozenset(
    name for name in ATTACHABLE if KINDS[name].group in ("kill", "stop")
)
"""Whoever runs the cluster starts them again, or nobody does."""
_OWN = "use `resilient-ps chaos run`, which hurts a cluster of its own"
_NO_LINES = f"nothing of ours stands between the processes of your cluster: {_OWN}"
_OF_GROUP: dict[str, str] = {
    "partition": _NO_LINES,
    "network": _NO_LINES,
    "store": f"your store is reached without us: {_OWN}",
    "etcd": f"others may use your etcd, too: {_OWN}",
}
_OF_KIND: dict[str, str] = {
    "gil": f"only servers that were started for it take such orders: {_OWN}",
    "loop": f"only servers that were started for it take such orders: {_OWN}",
    "clock-jump": f"the server would have to be started anew by us: {_OWN}",
    "disk-full": f"a server would be left so if this command were killed: {_OWN}",
    "scale-out": "servers of your cluster are started by you: start one, and drain it",
}


def allowed_kinds(names: Collection[str]) -> tuple[Kind, ...]:
    """The kinds that `--allow` names, by kind or group; none named: what we heal ourselves.

    Raises `BadInput` for a kind that there is not, or that is not possible here, and says why.
    """
    named = [name for name in names if name in KINDS]
    for name in named:
        if name not in ATTACHABLE:
            raise BadInput(f"--allow {name}: {_why_not(KINDS[name])}")
    kinds = choose(names or HEALED_BY_US)
    found = tuple(kind for kind in kinds if kind.name in ATTACHABLE)
    if not found:
        raise BadInput(f"--allow {','.join(names)}: {_why_not(kinds[0])}")
    return found


def _why_not(kind: Kind) -> str:
    if kind.name in _OF_KIND:
        return _OF_KIND[kind.name]
    return _OF_GROUP.get(kind.group, f"it strikes what is not looked for here: {_OWN}")


@dataclass(frozen=True, slots=True)
class SteadyState:
    """What has to hold of the cluster before, while and after it is hurt.

    No shard leaves a push without an answer for longer than `outage_most_s`; and all shards
    together log at least `pushes_least_per_s` a second, over a time of `window_s`.
    """

    outage_most_s: float
    pushes_least_per_s: float = 0.0

    @property
    def window_s(self) -> float:
        """Long enough for an outage that is allowed to be made up for."""
        return max(5.0, 2 * self.outage_most_s)

    def breach(
        self, now_s: float, answered_s: Mapping[int, float], pushes_per_s: float | None
    ) -> str:
        """What does not hold; "" when all does. `answered_s`: by shard, when it last answered.

        `pushes_per_s`: None while they have not been counted for long enough.
        """
        for shard, at_s in sorted(answered_s.items()):
            if now_s - at_s > self.outage_most_s:
                return (
                    f"shard {shard} has acknowledged nothing for {now_s - at_s:.1f} s; "
                    f"--max-outage-s {self.outage_most_s:g} allows less"
                )
        if pushes_per_s is not None and pushes_per_s < self.pushes_least_per_s:
            return (
                f"{pushes_per_s:.1f} pushes a second in the last {self.window_s:g} s; "
                f"--min-pushes-per-s {self.pushes_least_per_s:g} demands more"
            )
        return ""
