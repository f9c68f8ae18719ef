"""A small machine for tests of the host, and a process that runs it.

It welcomes whoever names the cluster "echo", acknowledges pushes, answers pulls with `n` values,
and does what an `Ask` says: see `_told`.
"""

from __future__ import annotations

import argparse
import os
import sys

import numpy as np

from resilient_ps.ids import NOWHERE
from resilient_ps.machine import (
    Drop,
    Effect,
    Event,
    Exit,
    Log,
    MessageArrived,
    Send,
    SetTimer,
    Started,
    StopAsked,
    TimerFired,
)
from resilient_ps.messages import (
    Answer,
    Ask,
    Hello,
    Kind,
    Message,
    PartAnswer,
    Refuse,
    Request,
    Status,
    Told,
    Welcome,
)
from resilient_ps.runtime.host import Host
from resilient_ps.runtime.limits import HostLimits
from resilient_ps.runtime.listening import listen_on
from resilient_ps.runtime.logs import Logger

CLUSTER = "echo"


class EchoMachine:
    """`stubborn`: it does not end when it is asked to."""

    def __init__(self, *, stubborn: bool = False) -> None:
        self.stubborn = stubborn
        self.stops_asked = 0
        self.values = np.zeros(0, np.float32)

    def handle(self, event: Event, now_ns: int) -> list[Effect]:
        match event:
            case Started():
                return [Log("info", "started")]
            case StopAsked():
                self.stops_asked += 1
                return [] if self.stubborn else [Exit(0, "asked to")]
            case MessageArrived(peer, message):
                return self._on_message(peer, message, now_ns)
            case TimerFired(name):
                return [Send(name, Told(0, "timer"))]
        return []

    def _on_message(self, peer: str, message: Message, now_ns: int) -> list[Effect]:
        match message:
            case Hello(_, "echo"):
                return [Send(peer, Welcome("echo", os.getpid(), 1))]
            case Hello(_, cluster):
                why = f"this is cluster {CLUSTER!r}, not {cluster!r}: check the address"
                return [Send(peer, Refuse(why)), Drop(peer, why)]
            case Request():
                return [Send(peer, self._answer(message))]
            case Ask(request, "crash"):
                raise RuntimeError("a bug in the machine")
            case Ask(request, "exit 3"):
                return [Send(peer, Told(request, "bye")), Exit(3, "asked to")]
            case Ask(request, "timer"):
                return [SetTimer(peer, now_ns + 20_000_000), SetTimer(peer, now_ns + 1_000_000)]
            case Ask(request, "stops asked"):
                return [Send(peer, Told(request, str(self.stops_asked)))]
            case Ask(request, what):
                return [Send(peer, Told(request, what))]
        return []

    def _answer(self, request: Request) -> Answer:
        if request.kind is not Kind.PULL:
            parts = tuple(PartAnswer(part.shard, Status.OK, NOWHERE) for part in request.parts)
            return Answer(request.request, parts)
        if len(self.values) != request.n:
            self.values = np.arange(request.n, dtype=np.float32)
        part = PartAnswer(0, Status.OK, NOWHERE, elements=request.n)
        return Answer(request.request, (part,), (self.values,) if request.n else ())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--listen", default="127.0.0.1:0")
    parser.add_argument("--unix")
    parser.add_argument("--greeting-timeout-s", type=float, default=10.0)
    parser.add_argument("--connections", type=int, default=1024)
    parser.add_argument("--stubborn", action="store_true")
    parser.add_argument("--name", default="echo")
    for flag in (
        "--cluster",
        "--etcd",
        "--initial-servers",
        "--log-format",
        "--replicas",
        "--min-in-sync",
    ):
        parser.add_argument(flag)  # those of a real server, to be started in its place
    args = parser.parse_args()
    listening = listen_on(args.listen, args.unix)
    limits = HostLimits(connections=args.connections, greeting_timeout_s=args.greeting_timeout_s)
    host = Host(
        EchoMachine(stubborn=args.stubborn),
        listening=listening,
        limits=limits,
        log=Logger(format="json"),
        ready=lambda: print(f"ready {args.name} {listening.address}", flush=True),
    )
    sys.exit(host.run())


if __name__ == "__main__":
    main()
