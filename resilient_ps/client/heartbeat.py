"""Tells the coordinator, about once a second, that this worker lives.

A thread of its own with a connection of its own: a worker computes for minutes without asking
servers for anything. The coordinator is looked up in etcd, and again when it does not answer as
one. Nothing here may disturb the training: what fails is tried again at the next beat.
"""

from __future__ import annotations

import json
import os
import threading

from resilient_ps.client.coordinator_line import find_coordinator
from resilient_ps.client.inspect import ServerProbe
from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.kv import Kv
from resilient_ps.errors import ResilientPsError

BEAT_S = 1.0
ANSWER_S = 1.0
STOP_S = 0.5  # how long `stop` waits for the thread


class Heartbeat:
    """The heartbeat of one process of a rank. `start` it once; it ends with `stop`."""

    def __init__(
        self, kv: Kv, cluster: str, *, job: str, rank: int, incarnation: int, beat_s: float = BEAT_S
    ) -> None:
        beat = {
            "job": job,
            "rank": rank,
            "incarnation": incarnation,
            "host": os.uname().nodename,
            "pid": os.getpid(),
        }
        self._kv = kv
        self._keys = ClusterKeys(cluster)
        self._of = (job, rank)
        self._text = json.dumps({"heartbeat": beat})
        self._last = json.dumps({"goodbye": beat})
        self._beat_s = beat_s
        self._probe: ServerProbe | None = None
        self._stopped = threading.Event()
        name = f"heartbeat {job}/{rank}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def again(self, incarnation: int) -> Heartbeat:
        """That of the next incarnation of the rank in this process; ours ends."""
        self.ask_to_stop()
        job, rank = self._of
        cluster, beat_s = self._keys.cluster, self._beat_s
        return Heartbeat(
            self._kv, cluster, job=job, rank=rank, incarnation=incarnation, beat_s=beat_s
        )

    def start(self) -> None:
        """Begin; the first beat follows at once."""
        self._thread.start()

    def ask_to_stop(self) -> None:
        """No more beats, without waiting for one that is under way."""
        self._stopped.set()

    def stop(self) -> None:
        """No more beats; one that is under way may take a moment."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(STOP_S)

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                try:
                    self._beat()
                except ResilientPsError:
                    self._forget()  # another one may be the coordinator by now
                self._stopped.wait(self._beat_s)
            if self._probe is not None:
                self._probe.ask(STOP_S, self._last)
        except ResilientPsError:
            pass  # then it is shown for a while longer
        finally:
            self._forget()

    def _beat(self) -> None:
        self._probe = self._probe or find_coordinator(self._kv, self._keys, ANSWER_S)
        if self._probe is None:
            return
        if not self._probe.ask(ANSWER_S, self._text).get("elected"):
            self._forget()

    def _forget(self) -> None:
        if self._probe is not None:
            self._probe.close()
            self._probe = None
