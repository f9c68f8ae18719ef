"""A line to the coordinator: questions reach whoever is elected, also after the next election.

The coordinator is looked up in etcd, and again when it does not answer as one.
"""

from __future__ import annotations

import json
import random
import time
from typing import Any

from resilient_ps.client.inspect import ServerProbe
from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.kv import Kv
from resilient_ps.coordinator.records import ServerRecord
from resilient_ps.errors import RetryLater, Unavailable
from resilient_ps.routing import address_of

PAUSE_FIRST_S = 0.05
PAUSE_MOST_S = 1.0  # hundreds may be looking for the next coordinator at the same time


def find_coordinator(kv: Kv, keys: ClusterKeys, deadline_s: float) -> ServerProbe | None:
    """A connection to the coordinator; None where none is elected, or it has gone."""
    held = kv.read(keys.coordinator_leader, deadline_s=deadline_s).items
    if not held:
        return None
    try:
        name = str(json.loads(held[0].value)["server"])
    except (ValueError, KeyError, TypeError):
        return None
    key = keys.server(name)
    items = kv.read(key, deadline_s=deadline_s).items
    if not items:
        return None
    record = ServerRecord.from_bytes(items[0].value, key)
    return ServerProbe(keys.cluster, name, address_of(record))


class CoordinatorLine:
    """For one caller at a time."""

    def __init__(self, kv: Kv, keys: ClusterKeys, look_up_s: float) -> None:
        self._kv = kv
        self._keys = keys
        self._look_up_s = look_up_s
        self._probe: ServerProbe | None = None

    def ask(self, question: str, answer_s: float, until_s: float) -> dict[str, Any]:
        """The answer of an elected coordinator; the question may be put several times.

        `answer_s`: how long one server may take; `until_s`: monotonic time at which to give up.
        Raises `Unavailable` saying what stood in the way.
        """
        pause_s = PAUSE_FIRST_S
        while True:
            told, why = self._once(question, min(answer_s, until_s - time.monotonic()))
            if told is not None:
                return told
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                raise Unavailable(f"no coordinator answers: {why}")
            time.sleep(min(left_s, pause_s * random.uniform(0.5, 1.0)))
            pause_s = min(2 * pause_s, PAUSE_MOST_S)

    def close(self) -> None:
        """Close the connection."""
        if self._probe is not None:
            self._probe.close()
            self._probe = None

    def _once(self, question: str, answer_s: float) -> tuple[dict[str, Any] | None, str]:
        try:
            self._probe = self._probe or find_coordinator(self._kv, self._keys, self._look_up_s)
            if self._probe is None:
                return None, "none is elected"
            told = self._probe.ask(answer_s, question)
        except RetryLater as error:
            self.close()
            return None, str(error)
        if told.get("elected"):
            return told, ""
        why = f"server {self._probe.server} is not the coordinator any more"
        self.close()
        return None, why
