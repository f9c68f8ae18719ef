"""Lines that are late, thin, lossy, silent or broken; and one that loses exactly one answer."""

from __future__ import annotations

from resilient_ps.chaos.faults.links import Effect, Rule
from resilient_ps.chaos.live.faults.ruled import Ruled

WORKERS_SHARE = 0.75  # of lost answers; other servers and whoever else asks lose the rest


class _ToServer(Ruled):
    """Of a server, as it is dialled by everybody."""

    @property
    def targets(self) -> tuple[str, ...]:
        self.struck = self.planned.target[:1]
        return self.struck


class Delay(_ToServer):
    """10 to 300 ms in each direction."""

    done = "late pieces"

    def rules(self) -> list[Rule]:
        return [Rule("delay", targets=self.targets, delay_s=self.chance.uniform(0.01, 0.3))]


class Jitter(_ToServer):
    """By chance up to 0.1 to 0.5 s in each direction."""

    done = "late pieces"

    def rules(self) -> list[Rule]:
        return [Rule("delay", targets=self.targets, jitter_s=self.chance.uniform(0.1, 0.5))]


class Loss(_ToServer):
    """Of 2 to 20 % of the pieces; they are sent again after a while, as TCP does."""

    done = "pieces lost and sent again"

    def rules(self) -> list[Rule]:
        share, again_s = self.chance.uniform(0.02, 0.2), self.chance.uniform(0.2, 0.4)
        return [Rule("loss", targets=self.targets, share=share, delay_s=again_s)]


class Bandwidth(_ToServer):
    """0.1 to 2 MB/s in each direction, all connections together."""

    done = "pieces passed a thin line"

    def rules(self) -> list[Rule]:
        bytes_per_s = self.chance.randrange(100_000, 2_000_000)
        return [Rule("bandwidth", targets=self.targets, bytes_per_s=bytes_per_s)]


class HalfOpen(Ruled):
    """All connections of a server say nothing, and then turn out to be dead."""

    def rules(self) -> list[Rule]:
        self.struck = self.planned.target[:1]
        return [Rule("drop", sources=self.struck), Rule("drop", targets=self.struck)]

    def heal(self) -> None:
        if self.struck and self._numbers:
            resets = [Rule("reset", sources=self.struck), Rule("reset", targets=self.struck)]
            for number in [self.lines.apply(rule) for rule in resets]:
                self.lines.lift(number)
        super().heal()


class Reset(Ruled):
    """All connections of a server, at once and two to five times a second."""

    done = "resets"

    def rules(self) -> list[Rule]:
        self.struck = self.planned.target[:1]
        every_s = self.chance.uniform(0.2, 0.5)
        return [
            Rule("reset", sources=self.struck, every_s=every_s),
            Rule("reset", targets=self.struck, every_s=every_s),
        ]


class LoseAnswer(_ToServer):
    """One request of a worker, or of anybody, is carried out, and its answer lost."""

    def rules(self) -> list[Rule]:
        if self.chance.random() < WORKERS_SHARE and (workers := self.scene.parties("worker")):
            sources = tuple(party.name for party in workers)
            return [Rule("lose answer", sources, self.targets)]
        return [Rule("lose answer", targets=self.targets)]

    def evidence(self) -> str:
        lost = Effect(pieces=sum(effect.pieces for effect in self._effects))
        return "1 answer lost" if lost == Effect(pieces=1) else ""


FAULTS = {
    "delay": Delay,
    "jitter": Jitter,
    "loss": Loss,
    "bandwidth": Bandwidth,
    "half-open": HalfOpen,
    "reset": Reset,
    "lose-answer": LoseAnswer,
}
