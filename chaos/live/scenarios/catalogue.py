"""The scenarios: what is done in each, and what is judged then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from resilient_ps.chaos.checkers.ended import check_ended
from resilient_ps.chaos.checkers.one_hot import check_one_hot
from resilient_ps.chaos.checkers.sessions import check_sessions
from resilient_ps.chaos.checkers.verdict import Verdict, judge
from resilient_ps.chaos.faults.links import Rule
from resilient_ps.chaos.live.faults.ruled import apart
from resilient_ps.chaos.live.network import HARNESS
from resilient_ps.chaos.live.scenarios.ranks import Rank
from resilient_ps.chaos.live.scenarios.stage import DEADLINE_S, SHARD, Stage
from resilient_ps.chaos.live.straight import StraightWriter
from resilient_ps.consistency import ASP
from resilient_ps.errors import BadInput, Unavailable
from resilient_ps.messages import PartAnswer, Status

ONCE = "every push is applied once"
FORWARD = "what is seen never goes back"
FENCED = "nothing is accepted in an epoch that has ended"
SLOTS = range(20)
ANSWERS_LOST = 5
CUT_WAIT_S = 0.7  # for acknowledgements: well within the time after which a backup is left out

Verdicts = dict[str, Verdict]


@dataclass(frozen=True, slots=True)
class Scenario:
    """`name`: of the protection that it is about. `broken`: what is found broken without it."""

    name: str
    text: str
    broken: str
    play: Callable[[Stage], Verdicts]


def _dedup(stage: Stage) -> Verdicts:
    """Answers are lost, and the pushes sent again."""
    primary, _ = stage.roles()
    rank = Rank(stage.client, stage.history, 0, 1)
    rank.settle(rank.begin([SLOTS[0]]), DEADLINE_S)  # it is connected then
    for slot in SLOTS[1 : 1 + ANSWERS_LOST]:
        rule = Rule("lose answer", (HARNESS,), (primary,))
        with stage.lines("lose-answer", (HARNESS, primary), [rule]):
            rank.settle(rank.begin([slot]), DEADLINE_S)
    return {ONCE: _slots(stage)}


def _sync_ack(stage: Stage) -> Verdicts:
    """A primary is cut off from its backup, gets pushes, and is killed."""
    primary, backup = stage.roles()
    rank = Rank(stage.client, stage.history, 0, 1)
    rank.settle(rank.begin([SLOTS[0]]), DEADLINE_S)
    with stage.lines("partition", (primary, backup), apart([primary], [backup])):
        acknowledged = rank.settle(rank.begin(SLOTS[1:]), CUT_WAIT_S)
        stage.say(f"{acknowledged} of {len(SLOTS) - 1} pushes were acknowledged")
        stage.kill(primary)
        stage.wait_for_primary(backup)
    return {ONCE: _slots(stage)}


def _commit_gate(stage: Stage) -> Verdicts:
    """As before, and somebody reads, before the primary dies and afterwards."""
    primary, backup = stage.roles()
    writer, reader = (Rank(stage.client, stage.history, rank, 2) for rank in range(2))
    own = [0]  # a row for each rank, which only it pushes to
    writer.settle(writer.begin(own), DEADLINE_S)
    writer.tick()
    reader.pull(own)
    with stage.lines("partition", (primary, backup), apart([primary], [backup])):
        writer.settle(writer.begin(own), CUT_WAIT_S)
        stage.say(f"a reader sees {reader.pull(own)[0]} pushes")
        stage.kill(primary)
        stage.wait_for_primary(backup)
        stage.say(f"and now it sees {reader.pull(own)[0]}")
    return {FORWARD: check_sessions(stage.history, ASP())}


def _fencing(stage: Stage) -> Verdicts:
    """A primary cannot reach etcd, and is replaced; a worker that does not hear of it goes on."""
    primary, backup = stage.roles()
    record = stage.record
    writer = StraightWriter(stage.client, stage.address(primary), "straight", {SHARD: 0})
    try:
        writer.begin()
        away = Rule("drop", (primary,), ("e0",))
        with stage.lines("server-etcd", (primary,), [away]):
            with stage.lines("partition", (primary, backup), apart([primary], [backup])):
                stage.wait_for_primary(backup)
                rank = Rank(stage.client, stage.history, 0, 1)
                rank.settle(rank.begin(SLOTS), DEADLINE_S)
                for _ in SLOTS:
                    writer.push()
            answers = _answers(writer, len(SLOTS))
    finally:
        writer.close()
    stage.say(f"{len(answers)} answers of {primary}")
    ended = {SHARD: record.epoch}
    accepted = 1 + sum(answer.status is Status.OK for answer in answers)
    held = stage.held([0], "straight").get(0, 0)
    lost = [] if held >= accepted else [f"{accepted} pushes were accepted, {held} are there"]
    return {
        FENCED: check_ended(answers, ended, len(SLOTS)),
        ONCE: judge(lost, checked=accepted, what="pushes"),
    }


def _answers(writer: StraightWriter, pushes: int) -> Sequence[PartAnswer]:
    """Those that there are: a server that is cut off may say nothing."""
    try:
        return writer.answers(pushes)
    except Unavailable:
        return ()


def _slots(stage: Stage) -> Verdict:
    return check_one_hot(stage.history, stage.held(list(SLOTS)), ASP())


SCENARIOS = {
    each.name: each
    for each in (
        Scenario(
            "fencing",
            "a primary that has been replaced, and does not know it, is sent pushes",
            FENCED,
            _fencing,
        ),
        Scenario("dedup", "answers to pushes are lost, so that they are sent again", ONCE, _dedup),
        Scenario(
            "sync-ack", "a primary dies before its backup has what it was sent", ONCE, _sync_ack
        ),
        Scenario(
            "commit-gate",
            "a primary dies with pushes that its backup has not got, and that somebody reads",
            FORWARD,
            _commit_gate,
        ),
    )
}


def scenario(name: str) -> Scenario:
    """Raises `BadInput` for one that there is not."""
    if name not in SCENARIOS:
        raise BadInput(f"--scenario: there is no {name!r}; use {', '.join(SCENARIOS)}")
    return SCENARIOS[name]
