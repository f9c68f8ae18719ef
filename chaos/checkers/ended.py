"""Nothing is accepted in an epoch that has ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from resilient_ps.chaos.checkers.verdict import Verdict, judge
from resilient_ps.ids import Epoch
from resilient_ps.messages import PartAnswer, Status


def check_ended(answers: Iterable[PartAnswer], ended: Mapping[int, Epoch], asked: int) -> Verdict:
    """`answers` to writes that were sent when the epochs in `ended`, by shard, were over.

    `asked`: how many writes were sent; those that were not answered were not accepted.
    """
    violations = [
        f"shard {answer.shard}: a write was accepted in epoch {epoch.incarnation}."
        f"{epoch.counter}, at lsn {answer.at.lsn}; that epoch had ended before it was sent"
        for answer in answers
        if answer.status is Status.OK and (epoch := answer.at.epoch) <= ended[answer.shard]
    ]
    return judge(violations, checked=asked, what="writes")
