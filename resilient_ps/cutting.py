"""How a shard executes cuts: what it answers, and the image that its server may have to take.

`cuts` is part of the state that the log determines. `image` is not: one server has it, and how it
fares changes nothing. A replica that took a copy of the state after the cut has none.
"""

from __future__ import annotations

from resilient_ps.cut import Cut
from resilient_ps.cuts import Cuts
from resilient_ps.errors import BadInput
from resilient_ps.guards import Guards
from resilient_ps.image import ShardImage
from resilient_ps.job import Job
from resilient_ps.messages import Command, PartAnswer, Status
from resilient_ps.rationing import Rationing
from resilient_ps.shard_answers import Change


class Cutting(Rationing):
    """See the module. `server` is the name of the server that this replica lives on."""

    def __init__(self, number: int, guards: Guards) -> None:
        super().__init__(number, guards)
        self.cuts = Cuts()
        self.image: ShardImage | None = None
        self.server = ""
        self.overlay_bytes_max = 0  # of an image; 0: in proportion to the shard

    def _on_cut(self, command: Command) -> PartAnswer | Change:
        try:
            cut = Cut.from_json(command.text)
        except BadInput as error:
            return self._no(Status.REFUSED, str(error))
        if cut.number != command.n:
            return self._no(Status.REFUSED, f"cut {cut.number} is asked for as {command.n}")
        if self.cuts.repeats(cut):
            return self._cut_by()
        refusal = self.cuts.refusal(cut, self.jobs)
        if refusal is not None:
            return self._no(Status.REFUSED, refusal.text)._replace(value=refusal.value)

        def begin() -> PartAnswer:
            self._end_image(f"cut {cut.number} has begun")
            self.cuts.begin(cut, self.jobs)
            for number in sorted(self.tables):
                self.tables[number].note_mark(cut.number)
            if cut.by and cut.by == self.server:
                self._begin_image(cut)
            return self._cut_by()

        return begin

    def _cut_by(self) -> PartAnswer:
        """The answer to a cut that has begun: which server takes the image."""
        cut = self.cuts.cut
        return self._ok(self.cuts.number, b"" if cut is None else cut.by.encode())

    def _on_abort(self, command: Command) -> PartAnswer | Change:
        if command.n < 1:
            return self._no(Status.REFUSED, f"a cut has no number {command.n}")
        known = command.n < self.cuts.number
        if known or (command.n == self.cuts.number and self.cuts.cut is None):
            return self._ok(command.n)

        def abort() -> PartAnswer:
            self.cuts.give_up(command.n)
            self._end_image(f"cut {command.n} was given up")
            return self._ok(command.n)

        return abort

    # -- the image

    def _begin_image(self, cut: Cut) -> None:
        self.image = ShardImage(
            cut,
            self.cuts,
            self.tables,
            self.jobs,
            overlay_bytes_max=self.overlay_bytes_max,
            guards=self.guards,
        )
        if not self.cuts.awaited:
            self.image.reach()

    def _end_image(self, why: str) -> None:
        if self.image is not None:
            self.image.fail(why)
            self.image = None

    def _look_at(self, job: Job, rank: int) -> None:
        """A rank of this job has ticked or left."""
        number = job.spec.job
        if self.image is not None:
            self.image.on_rank(number, rank, job.ledger.ranks[rank])
        if self.cuts.look(number, job) and self.image is not None:
            self.image.reach()

    def _forget_job(self, number: int) -> None:
        """This job was removed."""
        if self.image is not None:
            self.image.on_close_job(number)
        if self.cuts.forget_job(number) and self.image is not None:
            self.image.reach()
