"""What rules do to pieces in time, and what the faults of lines and partitions cut."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any, cast

import pytest

from resilient_ps.chaos.faults.kinds import KINDS
from resilient_ps.chaos.faults.links import Effect, Rule, StoreTrouble, Way
from resilient_ps.chaos.faults.planned import Planned
from resilient_ps.chaos.live.faults import lines, partitions, store
from resilient_ps.chaos.live.proxy.orders import rule_from_json
from resilient_ps.chaos.live.proxy.store import drawn_fault, without_objects
from resilient_ps.chaos.live.proxy.treatment import InForce, Treatment
from resilient_ps.chaos.live.scene import Scene, Skipped
from resilient_ps.errors import BadInput

SERVERS = ("s1", "s2", "s3", "s4", "s5")
MEMBERS = ("e0", "e1", "e2")
WORKERS = ("w0", "w1")
EVERYBODY = (*SERVERS, *MEMBERS, *WORKERS, "store", "harness")


@dataclass
class Named:
    name: str


@dataclass
class Recorded:
    """Lines that keep what they are told, and say that each rule struck something twice."""

    rules: dict[int, Rule] = field(default_factory=dict)
    troubles: list[StoreTrouble] = field(default_factory=list)
    told: int = 0
    pieces: int = 2

    def apply(self, rule: Rule) -> int:
        self.told += 1
        self.rules[self.told] = rule
        return self.told

    def lift(self, number: int) -> Effect:
        del self.rules[number]
        return Effect(3, self.pieces)

    def trouble_store(self, trouble: StoreTrouble) -> None:
        self.troubles.append(trouble)

    def store_effect(self) -> Effect:
        return Effect(10 * len(self.troubles), self.pieces * len(self.troubles))


class Place:
    """As much of a scene as faults of lines look at."""

    def __init__(self, servers: int = 5, *, offers: Sequence[str] = ("network", "s3")) -> None:
        self.lines = Recorded()
        self.offers = frozenset(offers)
        self.claims = self
        self.claimed: set[str] = set()
        self._parties = {"server": SERVERS[:servers], "etcd": MEMBERS, "worker": WORKERS}

    def parties(self, role: str) -> list[Named]:
        return [Named(name) for name in self._parties[role]]

    def claim(self, name: str) -> None:
        if name in self.claimed:
            raise Skipped(name)
        self.claimed.add(name)

    def release(self, name: str) -> None:
        self.claimed.discard(name)


FAULTS: dict[str, Callable[..., Any]] = {**partitions.FAULTS, **lines.FAULTS, **store.FAULTS}
TARGETS = {
    "partition": ("s1", "s2"),
    "one-way": ("s1", "s2"),
    "halves": (),
    "bridge": (),
    "worker-server": ("w1", "s2"),
    "etcd-member": ("e1",),
}


def fault(kind: str, place: Place, how: int = 7) -> Any:
    target = TARGETS.get(kind, ("s1",))
    return FAULTS[kind](cast(Scene, place), Planned(1, 0.0, kind, target, 1.0, how))


def deaf_pairs(rules: Sequence[Rule]) -> set[tuple[str, str]]:
    """(listener, speaker): nothing comes from the speaker, whoever of them dials."""

    def cut(source: str, target: str, way: Way) -> bool:
        return any(
            r.what == "drop" and r.concerns(source, target) and r.way in ("both", way)
            for r in rules
        )

    return {
        (listener, speaker)
        for listener, speaker in permutations(EVERYBODY, 2)
        if cut(speaker, listener, "requests") and cut(listener, speaker, "answers")
    }


def mutual(ones: Sequence[str], others: Sequence[str]) -> set[tuple[str, str]]:
    return {pair for a in ones for b in others for pair in ((a, b), (b, a))}


def test_the_kinds_of_these_groups_are_all_there() -> None:
    wanted = [k.name for k in KINDS.values() if k.group in ("partition", "network", "store")]
    assert sorted(FAULTS) == sorted(wanted)


@pytest.mark.parametrize(
    ("kind", "deaf"),
    [
        ("partition", mutual(["s1"], ["s2"])),
        ("one-way", {("s1", "s2")}),
        ("isolate", mutual(["s1"], [name for name in EVERYBODY if name != "s1"])),
        ("half-open", mutual(["s1"], [name for name in EVERYBODY if name != "s1"])),
        ("etcd-member", mutual(["e1"], ["e0", "e2"])),
    ],
)
def test_who_does_not_hear_whom(kind: str, deaf: set[tuple[str, str]]) -> None:
    assert deaf_pairs(fault(kind, Place()).rules()) == deaf


@pytest.mark.parametrize(
    ("kind", "source", "targets"),
    [
        ("server-etcd", "s1", set(MEMBERS)),
        ("server-store", "s1", {"store"}),
        ("worker-server", "w1", {"s2"}),
    ],
)
def test_whom_one_party_cannot_ask(kind: str, source: str, targets: set[str]) -> None:
    (rule,) = fault(kind, Place()).rules()
    assert rule.what == "drop"
    assert rule.way == "both"
    cut = {(a, b) for a, b in permutations(EVERYBODY, 2) if rule.concerns(a, b)}
    assert cut == {(source, target) for target in targets}


@pytest.mark.parametrize("how", range(10))
@pytest.mark.parametrize("servers", [2, 3, 4, 5])
def test_halves_are_a_minority_and_the_others(servers: int, how: int) -> None:
    halves = fault("halves", Place(servers), how)
    deaf = deaf_pairs(halves.rules())
    rest = [name for name in SERVERS[:servers] if name not in halves.struck]
    assert deaf == mutual(halves.struck, rest)
    assert 1 <= len(halves.struck) <= len(rest)


@pytest.mark.parametrize("how", range(10))
def test_a_bridge_hears_all_and_is_heard_by_all(how: int) -> None:
    bridge = fault("bridge", Place(), how)
    deaf = deaf_pairs(bridge.rules())
    (middle,) = set(SERVERS) - set(bridge.struck)
    assert all(middle not in pair for pair in deaf)
    neighbours = {name: {b for a, b in deaf if a == name} for name in bridge.struck}
    assert all(len(cut_off) == 2 for cut_off in neighbours.values())
    assert deaf == {(b, a) for a, b in deaf}


def test_what_needs_others_is_skipped_without_them() -> None:
    for kind, place in (
        ("halves", Place(1)),
        ("bridge", Place(2)),
        ("server-store", Place(offers=["network"])),
        ("store-slow", Place(offers=["network"])),
    ):
        struck = fault(kind, place)
        with pytest.raises(Skipped):
            struck.inject()
        struck.heal()
        assert (place.lines.told, place.claimed) == (0, set())


@pytest.mark.parametrize("kind", sorted(FAULTS))
def test_a_healed_fault_leaves_no_rule_and_says_what_it_did(kind: str) -> None:
    place = Place()
    if kind == "lose-answer":
        place.lines.pieces = 1
    struck = fault(kind, place)
    assert struck.evidence() == ""
    struck.inject()
    assert place.lines.rules or place.lines.troubles[-1] != StoreTrouble()
    struck.heal()
    struck.heal()
    assert place.lines.rules == {}
    assert place.lines.troubles[-1:] in ([], [StoreTrouble()])
    assert place.claimed == set()
    assert struck.struck
    assert struck.evidence()


@pytest.mark.parametrize("kind", sorted(FAULTS))
def test_a_fault_that_struck_nothing_has_no_evidence(kind: str) -> None:
    place = Place()
    place.lines.pieces = 0
    struck = fault(kind, place)
    struck.inject()
    struck.heal()
    assert struck.evidence() == ""


def test_one_trouble_of_the_store_at_a_time() -> None:
    place = Place()
    first, second = fault("store-slow", place), fault("store-errors", place)
    first.inject()
    with pytest.raises(Skipped):
        second.inject()
    second.heal()
    assert len(place.lines.troubles) == 1
    first.heal()
    second.inject()
    second.heal()


# -- pieces in time


def treatment(way: Way, *rules: Rule) -> tuple[Treatment, list[InForce]]:
    in_force = [InForce(number, rule) for number, rule in enumerate(rules, 1)]
    return Treatment(way, in_force, random.Random(1)), in_force


def test_rules_of_the_other_way_do_nothing() -> None:
    found, (one, other) = treatment(
        "answers", Rule("drop", way="requests"), Rule("delay", way="requests", delay_s=9.0)
    )
    assert not found.is_cut
    assert not found.is_timed
    assert (one.effect, other.effect) == (Effect(), Effect())


def test_delays_add_up_and_jitter_is_by_chance_within_its_bounds() -> None:
    found, _ = treatment(
        "requests", Rule("delay", delay_s=1.0, jitter_s=0.5), Rule("delay", delay_s=2.0)
    )
    dues_s = [found.due_s(100, 10.0) for _ in range(100)]
    assert all(13.0 <= due_s < 13.5 for due_s in dues_s)
    assert len(set(dues_s)) == 100


def test_a_share_of_the_pieces_is_lost() -> None:
    found, (rule,) = treatment("requests", Rule("loss", share=0.25, delay_s=0.3))
    dues_s = [found.due_s(100, 0.0) for _ in range(1000)]
    assert set(dues_s) == {0.0, 0.3}
    assert rule.pieces == sum(due_s > 0 for due_s in dues_s)
    assert 200 < rule.pieces < 300


def test_a_thin_line_is_shared_by_all_that_pass_it_in_the_same_way() -> None:
    rule = InForce(1, Rule("bandwidth", bytes_per_s=1000))
    chance = random.Random(1)
    one, two = Treatment("requests", [rule], chance), Treatment("requests", [rule], chance)
    back = Treatment("answers", [rule], chance)
    assert [one.due_s(500, 0.0), two.due_s(500, 0.0), one.due_s(500, 0.0)] == [0.5, 1.0, 1.5]
    assert back.due_s(100, 0.0) == 0.1
    assert one.due_s(500, 100.0) == 100.5


def test_on_a_thin_line_little_waits() -> None:
    found, _ = treatment("requests", Rule("bandwidth", bytes_per_s=100_000))
    assert found.max_waiting_bytes <= 10_000
    wide, _ = treatment("requests", Rule("bandwidth", bytes_per_s=10**9))
    assert wide.piece_bytes == 65_536


def test_rules_are_read_back_from_json() -> None:
    rule = Rule("delay", ("s1",), ("s2", "s3"), "answers", delay_s=0.5)
    values = {name: getattr(rule, name) for name in Rule.__slots__}
    assert rule_from_json({**values, "sources": ["s1"], "targets": ["s2", "s3"]}) == rule
    with pytest.raises(BadInput):
        rule_from_json({**values, "what": "bandwidth"})


# -- troubles of a store


def test_shares_of_requests_are_struck_in_different_ways() -> None:
    trouble = StoreTrouble(
        error_share=0.2, timeout_share=0.1, truncate_share=0.2, lost_answer_share=0.4
    )

    def kind(chance: float, method: str = "GET") -> tuple[str, int]:
        found = drawn_fault(trouble, method, lambda: chance)
        return ("", 0) if found is None else (found.kind, found.status)

    assert kind(0.05) == ("status", 500)
    assert kind(0.15) == ("status", 503)
    assert kind(0.25)[0] == "hang"
    assert kind(0.45)[0] == "truncate"
    assert kind(0.45, "PUT")[0] == "lose answer"
    assert kind(0.85)[0] == "lose answer"
    assert kind(0.95) == ("", 0)


def test_hidden_objects_are_taken_out_of_a_listing() -> None:
    entry = b"<Contents><Key>%s</Key><Size>1</Size></Contents>"
    listing = b"<List>" + entry % b"a%20b" + entry % b"c" + b"</List>"
    kept = without_objects(listing, "bucket", {"/bucket/a b", "/other/c"})
    assert kept == b"<List>" + entry % b"c" + b"</List>"
