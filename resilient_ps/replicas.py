"""One server's replicas: told what etcd shows, tended in time, and given messages."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from resilient_ps.answers import answers
from resilient_ps.coordinator.keys import Located
from resilient_ps.coordinator.kv import KvAnswered, KvFailed
from resilient_ps.coordinator.membership import Membership
from resilient_ps.coordinator.records import ClusterConfig, Member
from resilient_ps.coordinator.view import ClusterView
from resilient_ps.guards import ALL_GUARDS
from resilient_ps.ids import NOWHERE
from resilient_ps.machine import Drop, Effect, Log, PeerLost, Send, SetTimer
from resilient_ps.messages import (
    Append,
    Appended,
    AppendedPart,
    AppendPart,
    Copy,
    Held,
    PartAnswer,
    Status,
)
from resilient_ps.peers import Peers
from resilient_ps.quick_replication import commit_entries, take_entries
from resilient_ps.replication.applying import Due, InParallel, apply_all
from resilient_ps.replication.claims import Known
from resilient_ps.replication.home import COPIES_MAX, Home, Out, ToServer
from resilient_ps.replication.leading import Leading
from resilient_ps.replication.parcels import pack
from resilient_ps.replication.replica import Replica
from resilient_ps.routing import PEER_PREFIX
from resilient_ps.shard import Reply, Shard

TIMER = "replicas"
EVERY_NS = 100_000_000
RETIRED_NS = 10_000_000_000  # so long shards of before a rollback may wait for their memory's use
_KINDS = frozenset({"config", "restore", "server", "shard", "leader"})  # what it looks at in etcd


class Replicas:
    """See the module. `by_number` has every replica that this server ever held."""

    def __init__(
        self,
        home: Home,
        view: ClusterView,
        membership: Membership,
        peers: Peers,
        in_parallel: InParallel,
    ) -> None:
        self.by_number: dict[int, Replica] = {}
        self.in_parallel = in_parallel
        self._home = home
        self._view = view
        self._membership = membership
        self._peers = peers
        self._ticking = False
        self._retired_ns = 0
        self._all_rules = home.guards is ALL_GUARDS  # the quick way knows of no others

    def primaries(self) -> list[Leading]:
        """The shards that we serve, by number."""
        held = [self.by_number[number].serving for number in sorted(self.by_number)]
        return [leading for leading in held if leading is not None]

    # -- what etcd shows

    def look(self, changed: Collection[bytes], lease: int, now_ns: int) -> list[Effect]:
        """These keys have changed in the view, or our `lease` has (0: none)."""
        located = [at for key in changed if (at := self._view.keys.locate(key)) is not None]
        kinds = {at.kind for at in located}
        renewed, self._home.lease = lease != self._home.lease, lease
        if not renewed and kinds.isdisjoint(_KINDS):
            return self.tick(now_ns)
        effects = self._look_at_servers() if "server" in kinds else []
        config = self._view.config
        if config is None:
            return effects
        outs = self._adopt(config, now_ns)
        for number in _numbers(located, config.shards):
            outs += self._tell(number, now_ns)
        effects += self.performed(outs, now_ns)
        if "server" in kinds or renewed:
            effects += self.tend(now_ns)
        return [*effects, *self.tick(now_ns)]

    def _adopt(self, config: ClusterConfig, now_ns: int) -> list[Out]:
        """What the configuration says. Under a new incarnation everything begins anew."""
        home, restore = self._home, self._view.restore
        home.shards, home.min_in_sync = config.shards, config.min_in_sync
        present = restore is not None and restore.incarnation == config.incarnation
        home.restores = present and restore is not None and bool(restore.checkpoint)
        if home.incarnation == config.incarnation:
            return []
        outs: list[Out] = []
        for number in sorted(self.by_number):
            leading = self.by_number[number].leading
            if leading is not None:
                outs += leading.resign(rolled_back(number, config.incarnation))
        if home.incarnation:
            what = {"from": home.incarnation, "to": config.incarnation}
            outs.append(Log("warning", "the cluster was rolled back: replicas dropped", what))
        held = {n: r.shard for n, r in self.by_number.items() if r.shard is not None}
        self.by_number.clear()
        home.begin(config.incarnation)
        if home.restores:
            self._retire(held, now_ns)
        return outs

    def _retire(self, shards: dict[int, Shard], now_ns: int) -> None:
        """What is loaded in their stead may use their memory; for nothing else they are of use."""
        for shard in shards.values():
            if shard.image is not None:
                shard.image.fail("the cluster was rolled back")
        self._home.retired.update(shards)
        self._retired_ns = now_ns

    def _look_at_servers(self) -> list[Effect]:
        home, records = self._home, self._view.servers
        home.leases = {Member(s.server, s.process): s.lease for s in records}
        home.refused &= home.leases.keys()
        home.leaving = frozenset(Member(s.server, s.process) for s in records if s.stopping)
        return self.drop_strangers()

    def drop_strangers(self) -> list[Effect]:
        """End connections to processes that are not the registered ones of their names any more."""
        effects: list[Effect] = []
        for peer in self._peers.strangers():
            effects.append(Drop(peer, "its process has been replaced"))
            for replica in self.by_number.values():
                replica.on_lost(peer.removeprefix(PEER_PREFIX), 0)
        return effects

    def _tell(self, number: int, now_ns: int) -> list[Out]:
        """What the view shows of one shard."""
        view, me = self._view, self._home.me
        item, record = view.items.get(view.keys.shard(number)), view.shard(number)
        if item is None or record is None:
            return []
        wanted = me in record.in_sync or me.server in record.desired
        if number not in self.by_number and not wanted:
            return []
        leader = view.items.get(view.keys.leader(number))
        known = Known(
            record,
            item.mod_revision,
            0 if leader is None else leader.mod_revision,
            0 if leader is None else leader.lease,
            view.items[view.keys.config].mod_revision,
            item.version,
        )
        return self._replica(number).on_known(known, now_ns)

    def _replica(self, number: int) -> Replica:
        if number not in self.by_number:
            self.by_number[number] = Replica(number, self._home)
        return self.by_number[number]

    def loaded(self, number: int, shard: Shard, now_ns: int) -> list[Effect]:
        """What a checkpoint holds of a shard is here."""
        replica = self.by_number.get(number)
        if replica is None:
            return []
        return [*self.performed(replica.on_loaded(shard, now_ns), now_ns), *self.tick(now_ns)]

    def on_kv(self, event: KvAnswered | KvFailed, now_ns: int) -> list[Effect]:
        """What became of a replica's call to etcd."""
        asked = self._home.calls.pop(event.ref, None)
        if asked is None:
            return []  # of an earlier incarnation of the cluster
        number, claim = asked
        return self.performed(self.by_number[number].on_kv(claim, event, now_ns), now_ns)

    # -- time

    def on_timer(self, now_ns: int) -> list[Effect]:
        """The timer that `tick` has set is due."""
        self._ticking = False
        if now_ns - self._retired_ns >= RETIRED_NS:
            self._home.retired.clear()
        restless = [n for n, replica in self.by_number.items() if not replica.at_rest]
        return [*self._tend(restless, now_ns), *self.tick(now_ns)]

    def tend(self, now_ns: int) -> list[Effect]:
        """Let every replica do what it is time for."""
        return self._tend(self.by_number, now_ns)

    def _tend(self, numbers: Iterable[int], now_ns: int) -> list[Effect]:
        outs: list[Out] = []
        for number in sorted(numbers):
            outs += self.by_number[number].on_timer(now_ns)
        return self.performed(outs, now_ns)

    def tick(self, now_ns: int, *, soon: bool = False) -> list[Effect]:
        """Set the timer, while there is something that only time brings forward."""
        if not soon and (self._ticking or self._at_rest()):
            return []
        self._ticking = True
        return [SetTimer(TIMER, now_ns + (EVERY_NS // 4 if soon else EVERY_NS))]

    def _at_rest(self) -> bool:
        return not self._home.retired and all(r.at_rest for r in self.by_number.values())

    # -- connections

    def on_lost(self, event: PeerLost, now_ns: int) -> list[Effect]:
        """A connection broke, or could not be made."""
        peer = event.peer
        if not peer.startswith(PEER_PREFIX):
            for replica in self.by_number.values():
                if replica.shard is not None:
                    replica.shard.waiting.forget_peer(peer)
            return self._probe(*self._peers.on_client_lost(peer))
        server, lease = peer.removeprefix(PEER_PREFIX), self._peers.on_server_lost(peer)
        for replica in self.by_number.values():
            replica.on_lost(server, now_ns)
        if event.refused:
            effects = self._on_refused(self._peers.on_refused(server) or lease, now_ns)
        else:
            effects = self._probe(server, lease)
        return [*effects, *self.tick(now_ns)]

    def _probe(self, server: str, lease: int) -> list[Effect]:
        """Is the process gone that leads shards of ours?"""
        if not lease or not any(replica.follows(lease) for replica in self.by_number.values()):
            return []
        return self._peers.probe(server, lease)

    def _on_refused(self, lease: int, now_ns: int) -> list[Effect]:
        """A process is gone: neither its leader keys nor its place in sync wait for its lease."""
        outs: list[Out] = []
        for number in sorted(self.by_number):
            replica = self.by_number[number]
            if lease and replica.follows(lease):
                outs += replica.on_dead(lease, now_ns)
            elif replica.leading is not None:
                outs += replica.leading.reconcile(now_ns)
        return self.performed(outs, now_ns)

    # -- messages

    def on_append(self, peer: str, append: Append, now_ns: int) -> list[Effect]:
        """Entries of a primary."""
        if self._all_rules and (told := take_entries(append, self.by_number)) is not None:
            return [Send(peer, told)]
        said: list[AppendedPart] = []
        outs: list[Out] = []
        dues: dict[int, Due] = {}
        for part in append.parts:
            if part.shard in dues:  # twice in one message: one after the other
                self._apply(dues)
            if part.epoch.incarnation > self._home.incarnation:  # which we will soon hear of
                said.append(AppendedPart(part.shard, part.epoch, part.attempt, Held.BUSY, 0))
            if not self._is_for_us(part):
                continue
            replica = self._replica(part.shard)
            answer = replica.hold_plainly(part)
            if answer is None:
                answer, further = replica.hold(part)
                outs += further
            if answer is not None:
                said.append(answer)
            due = replica.due(part, answer)
            if due is not None:
                dues[part.shard] = due
        self._apply(dues)
        effects = self.performed(outs, now_ns) if outs else []
        return [*effects, Send(peer, Appended(tuple(said)))] if said else effects

    def on_copy(self, peer: str, piece: Copy, now_ns: int) -> list[Effect]:
        """A piece of a state copy."""
        if not self._is_for_us(piece):
            return []
        answer, outs = self._replica(piece.shard).on_copy(piece, now_ns)
        effects = self.performed(outs, now_ns)
        return effects if answer is None else [*effects, Send(peer, Appended((answer,)))]

    def on_appended(self, peer: str, appended: Appended, now_ns: int) -> list[Effect]:
        """What a follower holds."""
        member = self._peers.member(peer)
        if member is None:
            return []
        if self._all_rules:
            replies = commit_entries(appended, self.by_number, member, now_ns)
            if replies is not None:
                return self.performed(replies, now_ns)
        copied = self._home.copied
        outs: list[Out] = []
        dues: dict[int, Due] = {}
        for part in appended.parts:
            if part.shard in dues:
                outs += self._commit(dues, now_ns)
            replica = self.by_number.get(part.shard)
            if replica is None or not self._is_for_us(part):
                continue
            leading = replica.leading
            if leading is None or not leading.hears(member, part, now_ns):
                outs += replica.on_appended(member, part, now_ns)
            elif (due := leading.commit_held()) is not None:
                dues[part.shard] = due
        outs += self._commit(dues, now_ns)
        if self._home.copied != copied:
            outs += self._copy_next(now_ns)
        return self.performed(outs, now_ns)

    def _apply(self, dues: dict[int, Due]) -> None:
        """Apply what is due of shards, by number; then nothing is."""
        apply_all([*dues.values()], self.in_parallel)
        dues.clear()

    def _commit(self, dues: dict[int, Due], now_ns: int) -> list[Out]:
        """The same for shards that we lead: and answer."""
        told = list(dues.items())
        self._apply(dues)
        outs: list[Out] = []
        for number, due in told:
            leading = self.by_number[number].leading
            assert leading is not None
            outs += leading.answered(due, now_ns)
        return outs

    def _copy_next(self, now_ns: int) -> list[Out]:
        """A copy has ended: begin the next one. Many small ones would take long by the timer."""
        home, outs = self._home, list[Out]()
        while home.to_send and len(home.sending) < COPIES_MAX:
            number = min(home.to_send)
            home.to_send.discard(number)
            leading = self.by_number[number].leading
            outs += [] if leading is None else leading.reconcile(now_ns)
        return outs

    def _is_for_us(self, part: AppendPart | AppendedPart | Copy) -> bool:
        """Not if it is of an incarnation of the cluster that we do not know yet."""
        later = part.epoch.incarnation > self._home.incarnation
        return part.shard < self._home.shards and not later

    # -- effects

    def performed(self, outs: Iterable[Out], now_ns: int) -> list[Effect]:
        """Answers, and parts for other servers, as messages; the rest as it is."""
        replies: list[Reply] = []
        effects: list[Effect] = []
        parts: dict[str, list[Any]] = {}
        for out in outs:
            if isinstance(out, Reply):
                replies.append(out)
            elif isinstance(out, ToServer):
                parts.setdefault(out.server, []).append(out.message)
            else:
                effects.append(out)
        if parts:
            for server, messages in parts.items():
                effects += [Send(PEER_PREFIX + server, message) for message in pack(messages)]
            effects += self.tick(now_ns)  # they owe us answers
        if replies:
            until_ns = self._membership.deadline_ns if self._home.guards.lease_check else 0
            effects += answers(replies, until_ns)
        return effects

    def sent(self, by_server: Mapping[str, Append], now_ns: int) -> list[Effect]:
        """Entries for other servers, as messages."""
        sends = [Send(PEER_PREFIX + server, append) for server, append in by_server.items()]
        return [*sends, *self.tick(now_ns)]  # they owe us answers

    # -- the orderly end

    def hand_over(self, now_ns: int) -> list[Effect]:
        """Begin to hand over everything that we are primary of."""
        self._home.stopping = True
        return self.tend(now_ns)

    @property
    def handing_over(self) -> bool:
        """Is there a shard that another server should lead before we end?"""
        return any(replica.must_hand_over for replica in self.by_number.values())

    def last_words(self) -> list[Effect]:
        """What is lost when we end now."""
        alone = sorted(r.number for r in self.by_number.values() if r.is_last)
        if not alone:
            return []
        what = {"shards": alone, "remedy": "use more replicas, and stop servers one after another"}
        return [Log("error", "the last replica of shards ends", what)]


def rolled_back(shard: int, incarnation: int) -> PartAnswer:
    """The answer for who asked for another incarnation of the cluster than this one."""
    text = f"the cluster was rolled back: it is at incarnation {incarnation}"
    return PartAnswer(shard, Status.ROLLED_BACK, NOWHERE, incarnation, text=text.encode())


def _numbers(located: Iterable[Located], shards: int) -> list[int]:
    """The shards whose record or leader key is among these; all if the configuration is."""
    found = {at.number for at in located if at.kind in ("shard", "leader")}
    return list(range(shards)) if any(at.kind == "config" for at in located) else sorted(found)
