"""What the rules in force do to what passes in one direction of a connection. No sockets here."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

from resilient_ps.chaos.faults.links import Effect, Rule, Way

PIECE_BYTES = 65_536
MIN_PIECE_BYTES = 1_024
PIECES_PER_S = 20
"""A thin line passes its bytes in about so many pieces a second."""
MAX_WAITING_BYTES = 4 << 20
"""Of one direction of a connection; more is not read, so that the sender feels it."""


@dataclass(eq=False, slots=True)
class InForce:
    """A rule, and what it has done so far.

    `free_at_s`: by way, when a thin line has passed all that it was given. `victim`: the number of
    the connection whose next answer is to be lost; 0: none yet. `is_spent`: nothing more to do.
    """

    number: int
    rule: Rule
    connections: int = 0
    pieces: int = 0
    free_at_s: dict[Way, float] = field(default_factory=dict)
    victim: int = 0
    is_spent: bool = False

    @property
    def effect(self) -> Effect:
        return Effect(self.connections, self.pieces)


class Treatment:
    """Of one way (`requests` or `answers`), by rules that all concern it."""

    def __init__(self, way: Way, rules: Iterable[InForce], source: random.Random) -> None:
        ours = [one for one in rules if one.rule.way in ("both", way)]
        self._way = way
        self._random = source
        self.cuts = [one for one in ours if one.rule.what == "drop"]
        self.losers = [one for one in ours if one.rule.what == "lose answer"]
        self._late = [one for one in ours if one.rule.what in ("delay", "loss")]
        self._thin = [one for one in ours if one.rule.what == "bandwidth"]
        slowest = min((one.rule.bytes_per_s for one in self._thin), default=0)
        self.piece_bytes = PIECE_BYTES
        self.max_waiting_bytes = MAX_WAITING_BYTES
        if slowest:
            self.piece_bytes = min(PIECE_BYTES, max(MIN_PIECE_BYTES, slowest // PIECES_PER_S))
            self.max_waiting_bytes = 2 * self.piece_bytes  # or lines would wait for each other

    @property
    def is_cut(self) -> bool:
        return bool(self.cuts)

    @property
    def is_timed(self) -> bool:
        return bool(self._late or self._thin)

    def held(self) -> None:
        """Something wanted to pass a line that is cut."""
        for one in self.cuts:
            one.pieces += 1

    def due_s(self, nbytes: int, now_s: float) -> float:
        """When a piece that comes now may pass, if none before it is later."""
        due_s = now_s
        for one in self._late:
            due_s += self._lateness_s(one)
        for one in self._thin:
            begin_s = max(one.free_at_s.get(self._way, 0.0), now_s)
            one.free_at_s[self._way] = begin_s + nbytes / one.rule.bytes_per_s
            one.pieces += 1
            due_s = max(due_s, one.free_at_s[self._way])
        return due_s

    def _lateness_s(self, one: InForce) -> float:
        rule = one.rule
        if rule.what == "loss" and self._random.random() >= rule.share:
            return 0.0
        one.pieces += 1
        return rule.delay_s + rule.jitter_s * self._random.random()
