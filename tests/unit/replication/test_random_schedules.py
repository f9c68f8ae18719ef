"""Replicas under random schedules: whatever is lost, late or dead, what was acknowledged is there.

Parts are delivered in any order between pairs (in order within a pair), from broken connections
too; etcd's answers get lost, and transactions are carried out long after they were given up, even
of dead processes; views lag; processes die, come back empty, lose their leases, and are taken for
dead while they live.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable

import pytest
from replica_group import MS, SECOND_NS, Told, led

from resilient_ps.coordinator.kv import LeaseRevoke, Txn
from resilient_ps.errors import ResilientPsError
from resilient_ps.guards import ALL_GUARDS, Guards
from resilient_ps.messages import AppendedPart, Status
from resilient_ps.replication.claims import Known

STEPS = 400
SEEDS = 60


class Chaos:
    """One run. `broken` says what went wrong, if anything did."""

    def __init__(self, seed: int, guards: Guards = ALL_GUARDS) -> None:
        self.rng = random.Random(seed)
        names = self.rng.choice(["abc", "abcd"])
        least = self.rng.choice([1, 1, 2])
        held = self.rng.choice([names, names[:2], names[:3]])
        self.group = led(*names, in_sync=held, desired=held, min_in_sync=least, guards=guards)
        self.names = names
        self.late: dict[tuple[str, str], deque[Told]] = {}  # of broken connections
        self.limbo: list[Txn] = []  # given up, and not carried out yet
        self.lagging: dict[str, deque[Known]] = {name: deque() for name in names}
        self.pushes: dict[int, list[int]] = {}  # n -> requests
        self.next_n = 1
        self.lost = False
        self.broken: list[str] = []
        self.leaders: dict[tuple[int, int], str] = {}
        self.wished: list[str] = []

    def run(self) -> Chaos:
        often, rarely = self.rng.choice([(3, 1), (1, 1), (1, 2)])
        moves: dict[Callable[[], None], int] = {
            self.deliver: 40 * often, self.answer: 14 * often, self.look: 20 * often,
            self.push: 14 * often, self.time: 8 * often, self.say_leases: 6 * often,
            self.deliver_late: 6 * rarely, self.carry_out: 3 * rarely, self.cut: 3 * rarely,
            self.restart: 2 * rarely, self.lose_lease: 2 * rarely, self.find_dead: rarely,
            self.wish: 2 * rarely,
        }  # fmt: skip
        for _ in range(STEPS):
            (move,) = self.rng.choices(list(moves), list(moves.values()))
            move()
            self.check()
            if self.lost or self.broken:
                return self
        self.heal()
        return self

    # -- moves

    def pick(self) -> str:
        return self.rng.choice(sorted(self.group.sides))

    def deliver(self) -> None:
        pairs = sorted(pair for pair, queue in self.group.parts.items() if queue)
        if pairs:
            self.group.deliver(*self.rng.choice(pairs))

    def deliver_late(self) -> None:
        pairs = sorted(pair for pair, queue in self.late.items() if queue)
        if pairs:
            pair = self.rng.choice(pairs)
            self.bring_late(pair, self.late[pair].popleft())

    def bring_late(self, pair: tuple[str, str], part: Told) -> None:
        """What is answered to it goes nowhere: that connection is broken."""
        if pair[0] in self.group.sides and pair[1] in self.group.sides:
            answers = self.group.parts[pair[1], pair[0]]
            before = len(answers)
            self.group.bring(*pair, part)
            if len(answers) > before and isinstance(answers[-1], AppendedPart):
                answers.pop()

    def answer(self) -> None:
        name = self.pick()
        side = self.group.sides[name]
        if not side.calls:
            return
        fate = self.rng.random()
        if fate < 0.15:
            request = side.calls[0][0].request
            assert isinstance(request, Txn)
            self.limbo.append(request)
        self.group.call(name, late=fate < 0.15, lost=fate < 0.3)
        self.note()

    def carry_out(self) -> None:
        if self.limbo:
            try:
                self.group.kv.apply(self.limbo.pop(self.rng.randrange(len(self.limbo))), 0)
            except ResilientPsError:
                return  # a lease that has ended
            self.note()

    def note(self) -> None:
        """What etcd holds now is on its way to everybody."""
        known = self.group.known()
        for queue in self.lagging.values():
            if not queue or queue[-1] != known:
                queue.append(known)

    def look(self) -> None:
        name = self.pick()
        if self.lagging[name]:
            self.group.see(name, self.lagging[name].popleft())

    def push(self) -> None:
        serving = [name for name in sorted(self.group.sides) if self.group.serves(name)]
        if not serving:
            return
        name = self.rng.choice(serving)
        while self.acknowledged(self.next_n):
            self.next_n += 1
        n = max(1, self.next_n + self.rng.choice([0, 0, 0, 1, 2, -1, -3]))
        self.pushes.setdefault(n, []).append(self.group.push(name, n))

    def acknowledged(self, n: int) -> bool:
        return any(self.group.status(r) is Status.OK for r in self.pushes.get(n, ()))

    def time(self) -> None:
        name = self.pick()
        replica = self.group.sides[name].replica
        rested, sent = replica.at_rest, self.under_way()
        self.group.timers(name, after_ns=self.rng.choice([MS, 100 * MS, SECOND_NS]))
        if rested and self.under_way() != sent:
            self.broken.append(f"{name} was at rest, but time brought something forward")

    def under_way(self) -> int:
        """How many parts and calls there are."""
        calls = sum(len(side.calls) for side in self.group.sides.values())
        return calls + sum(len(queue) for queue in self.group.parts.values())

    def cut(self) -> None:
        source, target = self.pick(), self.pick()
        if source != target:
            old = self.late.setdefault((source, target), deque())
            old.extend(
                p for p in self.group.parts[source, target] if not isinstance(p, AppendedPart)
            )
            kept = [p for p in self.group.parts[source, target] if isinstance(p, AppendedPart)]
            self.group.cut(source, target)
            self.group.parts[source, target].extend(kept)

    def restart(self) -> None:
        """A process dies; one of its name comes back at once, later, or (a while) not."""
        name = self.pick()
        me = self.group.sides[name].home.me
        others = {side.home.me for side in self.group.sides.values()} - {me}
        if len(others) < 2 or not others & set(self.group.record.in_sync):
            return
        self.group.bury(self.group.kill(name))
        self.lagging[name].clear()
        for queue in [queue for pair, queue in self.late.items() if name in pair]:
            queue.clear()
        self.note()
        self.lost = not others & set(self.group.record.in_sync)
        self.come_back(name)

    def come_back(self, name: str) -> None:
        self.group.start(name)
        self.lagging[name] = deque([self.group.known()])
        self.group.timers(after_ns=MS)

    def lose_lease(self) -> None:
        """etcd ends a lease; its owner hears of it later."""
        home = self.group.sides[self.pick()].home
        if home.lease:
            try:
                self.group.kv.apply(LeaseRevoke(home.lease), self.group.now_ns)
            except ResilientPsError:
                return
            self.note()

    def say_leases(self) -> None:
        """Servers hear which leases there are; who has lost its own takes another one."""
        gone = [
            name
            for name, side in sorted(self.group.sides.items())
            if side.home.lease and not self.group.kv.lease_deadline_ns(side.home.lease)
        ]
        for name in gone:
            self.group.register(name)
        if gone:
            self.group.timers(after_ns=MS)  # who sees a change of servers looks at its shards

    def find_dead(self) -> None:
        """A firewall refuses a connection to a primary that lives."""
        name, replica = self.pick(), self.group.sides[self.pick()].replica
        replica = self.group.sides[name].replica
        if replica.known is not None and replica.known.leader_lease and replica.leading is None:
            lease = replica.known.leader_lease
            self.group._perform(name, replica.on_dead(lease, self.group.now_ns))

    def wish(self) -> None:
        count = self.rng.choice([1, 2, 2, 3])
        self.group.wish("".join(self.rng.sample(self.names, count)))
        self.note()

    # -- what has to hold

    def check(self) -> None:
        for name, side in self.group.sides.items():
            leading = side.replica.leading
            if leading is not None:
                held = self.leaders.setdefault(leading.epoch, f"{name}/{side.home.me.process}")
                if held != f"{name}/{side.home.me.process}":
                    self.broken.append(f"two primaries in epoch {leading.epoch}")
            if side.exit is not None:
                self.broken.append(f"{name} exits: {side.exit.why}")

    def heal(self) -> None:
        """The faults end: everything comes to rest, and every acknowledged push is there once."""
        for pair, queue in sorted(self.late.items()):
            while queue:
                self.bring_late(pair, queue.popleft())
        while self.limbo:
            self.carry_out()
        self.group.wish(self.names[:3])
        for name in self.names:
            if name not in self.group.sides:
                self.come_back(name)
        for _ in range(40):
            self.say_leases()
            self.group.run(0.3)
            if self._is_whole():
                break
        else:
            self.broken.append("it does not come to rest")
            return
        self.check()
        self._compare()

    def _is_whole(self) -> bool:
        serving = [name for name in sorted(self.group.sides) if self.group.serves(name)]
        record = self.group.record
        logs = [side.replica.log for side in self.group.sides.values() if side.replica.shard]
        return (
            serving == [record.primary]
            and {member.server for member in record.in_sync} == {*self.names[:3]}
            and len({(log.applied, log.last) for log in logs}) == 1
        )

    def _compare(self) -> None:
        record = self.group.record
        held = {name: self.group.pushed(name) for name in self.names[:3]}
        if len({tuple(pushes) for pushes in held.values()}) > 1:
            self.broken.append(f"replicas differ: {held}")
        counts = Counter(held[record.primary])
        for n in sorted(self.pushes):
            done = self.acknowledged(n)
            if counts[n] > 1 or (done and not counts[n]):
                self.broken.append(f"push {n} is there {counts[n]} times, acknowledged: {done}")


def test_what_was_acknowledged_is_there_once() -> None:
    lost = acknowledged = 0
    for seed in range(SEEDS):
        chaos = Chaos(seed).run()
        assert not chaos.broken, (seed, chaos.broken)
        lost += chaos.lost
        acknowledged += sum(chaos.acknowledged(n) for n in chaos.pushes)
    assert lost < SEEDS // 4  # and so they show something
    assert acknowledged > 3 * SEEDS


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_what_was_acknowledged_is_there_once_in_many_schedules() -> None:
    for seed in range(SEEDS, 3_000):
        chaos = Chaos(seed).run()
        assert not chaos.broken, (seed, chaos.broken)


@pytest.mark.parametrize(
    "guards",
    [
        Guards(wait_for_backups=False),
        Guards(log_matching=False),
        Guards(count_before_growth=False),
        Guards(epoch_check=False),
        Guards(deduplication=False),
        Guards(replicated_ledger=False),
    ],
    ids=["acknowledge early", "no matching", "count late", "no epochs", "no dedup", "no ledger"],
)
def test_negative_control_without_a_rule_something_breaks(guards: Guards) -> None:
    for seed in range(400):
        try:
            if Chaos(seed, guards).run().broken:
                return
        except (AssertionError, ResilientPsError):
            return  # an invariant was noticed to be broken
    pytest.fail("nothing was noticed")
