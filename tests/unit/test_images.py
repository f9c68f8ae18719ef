"""Images of a shard at a cut, against the shard that got nothing from behind the cut."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from command_stream import Stream
from image_oracle import EPOCH, ME, Content, Kept, add, assert_is

from resilient_ps.consistency import ASP, BSP, SSP, Consistency, Tasks
from resilient_ps.cut import Cut
from resilient_ps.guards import ALL_GUARDS
from resilient_ps.ids import Position
from resilient_ps.image import ShardImage
from resilient_ps.messages import Command, Entry, Kind, Status
from resilient_ps.shard import Shard

BRUTAL = {"drop_table": 0.0, "close_job": 0.0, "cut": 0.0, "abort": 0.0}
MODES: dict[str, Consistency] = {
    "bsp": BSP(), "mean": BSP("mean"), "ssp": SSP(2), "asp": ASP(), "tasks": Tasks(),
}  # fmt: skip


class Run:
    """A shard under random commands, of which images are taken."""

    def __init__(self, seed: int, modes: tuple[Consistency, ...], **guards: bool) -> None:
        self.rng = np.random.default_rng([seed, 7])
        self.shard = Shard(0, 1, dataclasses.replace(ALL_GUARDS, **guards))
        self.shard.server = ME
        self.kept = Kept(self.shard)
        self.stream = Stream(seed, self.shard, lead=int(self.rng.integers(1, 5)))
        self.stream.modes = modes
        self.stream.weights |= BRUTAL
        if BSP("mean") in modes:  # a rank that left and joins again is no part of earlier clocks
            self.stream.weights["join"] = 0

    def go_on(self, commands: int) -> None:
        for _ in range(commands):
            self.kept.apply(self.stream.next())

    def cut(self, number: int, **fields: bool) -> Cut:
        """A cut a little above all that is here."""
        clocks = tuple(
            (n, job.ledger.furthest() + int(self.rng.integers(0, 3)))
            for n, job in sorted(self.shard.jobs.items())
        )
        cut = Cut(number, clocks, ME, **fields)
        command = Command(Kind.CUT, n=number, text=cut.to_json().encode())
        answer = self.kept.apply(command)
        assert (answer.status, answer.text) == (Status.OK, ME.encode())
        return cut

    def reach(self) -> ShardImage:
        """Go on until the image is reached."""
        image = self.shard.image
        assert image is not None
        usual = self.stream.weights
        self.stream.weights = usual | {"tick": 15, "open_job": 0}
        for _ in range(3000):
            if image.reached:
                self.stream.weights = usual
                return image
            assert image.waits_for()
            self.go_on(1)
        raise AssertionError(image.waits_for())

    def take(self, image: ShardImage, base: Content) -> Content:
        """The rest of the image, in pieces between which the shard goes on."""
        piece_bytes = int(self.rng.choice([300, 3_000, 100_000]))
        found = {number: dict(rows) for number, rows in base.items()}
        while (piece := image.next_piece(piece_bytes)) is not None:
            add(found.setdefault(piece.table, {}), piece, self.shard)
            if self.rng.random() < min(1.0, piece_bytes / 20_000):
                self.go_on(int(self.rng.integers(0, 4)))
        assert not image.failed
        return found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(3))
def test_an_image_is_the_shard_without_what_is_behind_the_cut(mode: str, seed: int) -> None:
    run = Run(seed, (MODES[mode],))
    image, cut, content = whole_image(run)
    assert_is(image, content, run.kept.without_the_rest(cut))


@pytest.mark.parametrize("seed", range(20, 24))
def test_jobs_of_all_kinds_are_cut_at_clocks_of_their_own(seed: int) -> None:
    run = Run(seed, tuple(MODES.values()))
    image, cut, content = whole_image(run)
    assert_is(image, content, run.kept.without_the_rest(cut))


def whole_image(run: Run) -> tuple[ShardImage, Cut, Content]:
    run.go_on(int(run.rng.integers(20, 200)))
    cut = run.cut(1)
    image = run.reach()
    run.go_on(int(run.rng.integers(0, 60)))
    image.start({})
    run.go_on(int(run.rng.integers(0, 60)))
    return image, cut, run.take(image, {})


def test_without_overlays_images_are_wrong() -> None:
    """A negative control: the comparison finds it out."""
    for mode in MODES.values():
        run = Run(1, (mode,), cut_overlay=False)
        image, cut, content = whole_image(run)
        with pytest.raises(AssertionError):
            assert_is(image, content, run.kept.without_the_rest(cut))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", [43])
def test_deltas_over_an_image_are_the_next_one(mode: str, seed: int) -> None:
    run = Run(seed, (MODES[mode],))
    content: Content = {}
    base, deltas, full = 0, 0, 0
    for number in range(1, 5):
        run.go_on(int(run.rng.integers(20, 100)))
        cut = run.cut(number)
        image = run.reach()
        run.go_on(int(run.rng.integers(0, 30)))
        while not image.survey(base):
            run.go_on(1)
        rows = {n: image.delta_rows(n, base) for n, *_ in image.head()[0]}
        known = {n: base for n, count in rows.items() if count is not None}
        image.start(known)
        kept = {n: content.get(n, {}) for n in known}
        content = run.take(image, kept)
        assert_is(image, content, run.kept.without_the_rest(cut))
        deltas, full, base = deltas + len(known), full + len(rows) - len(known), number
    assert deltas > 6
    assert full > 4


def test_an_image_changes_nothing_of_its_shard() -> None:
    run = Run(3, (SSP(2), BSP()))
    other = Shard(0, 1)
    whole_image(run)
    for said in run.kept.log:
        other.apply(Entry(Position(EPOCH, other.lsn + 1), said.command))
    assert other.image is None
    other.lsn = run.shard.lsn  # refused commands were entries as well
    assert other.digest() == run.shard.digest()
