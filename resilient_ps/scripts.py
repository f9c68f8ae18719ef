"""Runs scripts of steps (see `takeover`) over `Calls`: a step ends when all shards answered."""

from __future__ import annotations

from resilient_ps.calls import Call, Calls
from resilient_ps.machine import Effect
from resilient_ps.messages import PartAnswer
from resilient_ps.takeover import Answers, Script, Settled


class RunningScript:
    """A script under way. `result` is set when it is over, `failure` when a shard refused."""

    def __init__(self, script: Script, calls: Calls) -> None:
        self.result: Settled | None = None
        self.failure: PartAnswer | None = None
        self.answers: Answers = {}  # of the last step that has ended, whatever they are
        self._script = script
        self._calls = calls
        self._open: set[int] = set()
        self._answers: Answers = {}

    @property
    def over(self) -> bool:
        """Is there nothing more to come?"""
        return self.result is not None or self.failure is not None

    def start(self, now_ns: int) -> list[Effect]:
        """Begin with the first step."""
        return self._advance(None, now_ns)

    def owns(self, call: Call) -> bool:
        """Is this one of the script's calls?"""
        return call.number in self._open

    def on_done(self, call: Call, now_ns: int) -> list[Effect]:
        """One of the step's calls is complete."""
        self._open.discard(call.number)
        self.failure = self.failure or call.failure()
        self._answers.update(call.answers)
        self.answers = self._answers
        if self._open or self.failure is not None:
            return []
        answers, self._answers = self._answers, {}
        return self._advance(answers, now_ns)

    def abandon(self) -> None:
        """Wait for none of its calls any more."""
        for number in sorted(self._open):
            self._calls.abandon(number)
        self._open.clear()

    def waits_for(self) -> str:
        """For error texts: the step under way, and which shards it waits for."""
        for number in sorted(self._open):
            call = self._calls.open[number]
            return f"{call.kind.name.lower()}: {self._calls.waits_for(call)}"
        return "nothing"

    def _advance(self, answers: Answers | None, now_ns: int) -> list[Effect]:
        try:
            steps = next(self._script) if answers is None else self._script.send(answers)
        except StopIteration as end:
            self.result = end.value
            return []
        effects: list[Effect] = []
        calls = [
            Call(
                self._calls.next_number(),
                step.kind,
                step.shards,
                step.worker,
                step.clock,
                step.n,
                step.table,
                settled=step.settled,
                text=step.text,
            )
            for step in steps
        ]
        self._open = {call.number for call in calls}
        for call in calls:
            effects += self._calls.start(call, now_ns)
        return effects
