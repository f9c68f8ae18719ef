"""Which server takes the image of a shard at a cut: the primary chooses, in the cut's entry."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from resilient_ps.coordinator.records import Member
from resilient_ps.cut import Cut
from resilient_ps.errors import BadInput
from resilient_ps.messages import Command
from resilient_ps.replication.home import Home


def with_imager(command: Command, in_sync: Iterable[Member], home: Home, shard: int) -> Command:
    """This CUT with the name of a backup that is in sync and stays, if there is one; else ours.

    As long as the set stays the same so does the choice: who took the last image knows best what
    has changed since. What is no cut is left as it is: it is refused when it is looked at.
    """
    try:
        cut = Cut.from_json(command.text)
    except BadInput:
        return command
    fit = [m for m in in_sync if m != home.me and m in home.leases and m not in home.leaving]
    chosen = sorted(fit)[shard % len(fit)] if fit else home.me
    return replace(command, text=replace(cut, by=chosen.server).to_json().encode())
