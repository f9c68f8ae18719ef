"""How a shard executes rounds of quotas: what they change, and what it answers. See `quotas`."""

from __future__ import annotations

import json

from resilient_ps.errors import BadInput
from resilient_ps.guards import Guards
from resilient_ps.messages import Command, PartAnswer, Status
from resilient_ps.namespaces import covers
from resilient_ps.quotas import Give, Quotas, Settle, said_in
from resilient_ps.shard_answers import Answering, Change


class Rationing(Answering):
    """See the module."""

    def __init__(self, number: int, guards: Guards) -> None:
        super().__init__(number, guards)
        self.quotas = Quotas()

    def _on_quota(self, command: Command) -> PartAnswer | Change:
        try:
            said = said_in(command.text)
        except BadInput as error:
            return self._no(Status.REFUSED, str(error))
        if command.clock < max(1, self.quotas.round):
            text = (
                f"round {self.quotas.round} of dividing quotas has begun: {command.clock} is over"
            )
            return self._no(Status.REFUSED, text)
        if isinstance(said, Settle):
            return self._settle(command.clock, said)
        return self._give(command.clock, said)

    def _settle(self, number: int, said: Settle) -> PartAnswer | Change:
        if number == self.quotas.round:
            return self._settled()
        if len(said.used) != len(said.most):
            return self._no(Status.REFUSED, "a round begins without what is used")

        def settle() -> PartAnswer:
            self.quotas.settle(number, said)
            self.forget_quick_rows()
            return self._settled()

        return settle

    def _settled(self) -> PartAnswer:
        """What the shard may use, which is what it uses."""
        sizes = [quota.allowed for quota in self.quotas.by_path.values()]
        return self._ok(self.quotas.round, json.dumps(sizes).encode())

    def _give(self, number: int, said: Give) -> PartAnswer | Change:
        quotas = self.quotas
        if number != quotas.round or len(said.given) != len(quotas.by_path):
            return self._no(Status.REFUSED, f"round {number} of dividing quotas has not begun")
        if quotas.given:
            return self._ok(number)

        def give() -> PartAnswer:
            quotas.give(said, self.number)
            self.forget_quick_rows()
            return self._ok(number)

        return give

    def forget_quick_rows(self) -> None:
        """Look at quotas before any table of theirs grows again."""
        for table in self.tables.values():
            looks = any(covers(path, table.spec.name) for path in self.quotas.by_path)
            table.quick_rows = 0 if looks else None

    def held_keys(self, table: int) -> int:
        """How many keys the pushes have that are held back, repeats among them."""
        return sum([job.barrier.held_keys.get(table, 0) for job in self.jobs.values()])
