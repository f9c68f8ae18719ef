"""What may be done to the lines between parties, as data: rules for the proxy between all of them.

A *line* leads from one party to another one: from who dialled to who was dialled. A party is a
process, by its name: `s1` (server), `w0` (worker of rank 0), `e0` (member of etcd), `store`, and
`harness` (everything else on this machine, such as the probes). Both directions of a line can be
struck on their own: `requests` go from who dialled to who was dialled, `answers` back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Way: TypeAlias = Literal["both", "requests", "answers"]

What: TypeAlias = Literal[
    "drop",  # nothing passes, connections stand; what was on its way comes when the rule is lifted
    "delay",  # each piece is `delay_s` late, and by chance up to `jitter_s` more, in order
    "loss",  # a piece is late by `delay_s` (a retransmission) with probability `share`
    "bandwidth",  # `bytes_per_s` in each direction of all the lines together
    "reset",  # connections are reset at once and every `every_s` again
    "refuse",  # new connections are refused, and present ones reset
    "lose answer",  # one request passes, what is answered does not, then the connection ends
]

EVERYBODY = "*"


@dataclass(frozen=True, slots=True)
class Rule:
    """`sources` dial, `targets` are dialled; `*` is everybody. Of several rules all hold.

    Two parties that dial each other are cut by two rules: from a to b, and from b to a. An answer
    that is lost is that of the first request that follows an answer: nothing else waits for one, as
    far as can be seen; it is lost once, whichever of the connections it is.
    """

    what: What
    sources: tuple[str, ...] = (EVERYBODY,)
    targets: tuple[str, ...] = (EVERYBODY,)
    way: Way = "both"
    delay_s: float = 0.0
    jitter_s: float = 0.0
    share: float = 0.0
    bytes_per_s: int = 0
    every_s: float = 0.0

    def concerns(self, source: str, target: str) -> bool:
        """Whether it holds for connections that `source` dialled to `target`."""
        return (EVERYBODY in self.sources or source in self.sources) and (
            EVERYBODY in self.targets or target in self.targets
        )


@dataclass(frozen=True, slots=True)
class Effect:
    """What a rule has done so far: evidence that it really happened."""

    connections: int = 0  # that it concerned
    pieces: int = 0  # dropped, held up, lost or reset


@dataclass(frozen=True, slots=True)
class StoreTrouble:
    """What is done to an S3 store, at the level of HTTP. All of the set fields hold at once.

    `error_share`: of requests answered 500 or 503; `timeout_share`: never answered;
    `truncate_share`: of answers with a body that break off; `lost_answer_share`: carried out, then
    the connection ends.
    `hide_new_s`: for so long what was put is in no listing. `ignore_conditions`: of puts.
    """

    bytes_per_s: int = 0
    error_share: float = 0.0
    timeout_share: float = 0.0
    truncate_share: float = 0.0
    lost_answer_share: float = 0.0
    hide_new_s: float = 0.0
    ignore_conditions: bool = False
