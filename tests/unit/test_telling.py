"""What a worker tells of its training: sums of batches, and at the end those that were last."""

from __future__ import annotations

import pytest

from resilient_ps.cli import worker
from resilient_ps.cli.worker import Told, _Teller
from resilient_ps.models.api import Progress


class Heard:
    def __init__(self) -> None:
        self.told: list[Told] = []

    def ready(self, told: Told) -> None:
        pass

    def tell(self, told: Told) -> None:
        self.told.append(told)


@pytest.mark.parametrize(("every_s", "rows", "loss"), [(0.0, 10, 0.5), (1e9, 40, 0.875)])
def test_the_end_tells_the_loss_of_the_last_batches(
    monkeypatch: pytest.MonkeyPatch, every_s: float, rows: int, loss: float
) -> None:
    monkeypatch.setattr(worker, "TELL_EVERY_S", every_s)
    heard = Heard()
    teller = _Teller(0, heard)
    teller.begin(0, 0)
    teller.on_batch(Progress(rank=0, clock=1, samples=30, rows=30, loss=1.0))
    teller.on_batch(Progress(rank=0, clock=2, samples=40, rows=10, loss=0.5))
    teller.end(2)
    end = heard.told[-1]
    assert (end.state, end.samples, end.rows, end.loss) == ("done", 40, rows, loss)


def test_who_has_trained_on_nothing_tells_no_loss() -> None:
    teller = _Teller(0, Heard())
    assert teller.end(7).rows == 0
