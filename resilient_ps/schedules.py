"""Schedules: in which order the parts of a model are trained, as task graphs.

A schedule names what a task works on. A lane of its graph does one task after the other; what must
come before what is said by the graph's edges, and all else may happen at the same time.

* `Wavefront`: blocks of parameters over parts of the data, as if one process did all in order.
* `Rotation`: workers exchange blocks, so that no two work on the same one (as STRADS and DSGD do).
* `Pipeline`: stages of a deep model over micro-batches, a bounded number of them in flight.
* `Free`: nothing waits for anything (data parallel, asynchronous).

Any object with a `graph` and a `place` is a schedule (`Schedule`). Steps begin at 1, as the clocks
of ranks do; all other numbers begin at 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from resilient_ps.coordinator.graph import LANES_MAX, NAMESPACES_MAX, STEPS_MAX, Graph
from resilient_ps.errors import BadInput

PlaceT_co = TypeVar("PlaceT_co", covariant=True)
Direction: TypeAlias = Literal["forward", "backward"]


class Schedule(Protocol[PlaceT_co]):
    """What a training program needs of a schedule."""

    @property
    def graph(self) -> Graph:
        """The tasks, and what each waits for; the same one at every call."""

    def place(self, rank: int, step: int) -> PlaceT_co:
        """What the task of lane `rank` at `step` (from 1) works on."""


class WavefrontPlace(NamedTuple):
    """A block of the parameters, and the part of the data that it is trained on."""

    block: int
    data_shard: int
    epoch: int


@dataclass(frozen=True)
class Wavefront:
    """Blocks k over parts of the data s; task (k, s) is after (k, s - 1) and after (k - 1, s).

    Tasks run at the same time only where they share neither a block nor a part of the data. So,
    when a task touches nothing but its block and what belongs to its part of the data, the result
    is that of the loop "for each epoch, for each part of the data, for each block", byte for byte.
    """

    blocks: int
    data_shards: int
    epochs: int = 1
    name: str = "wavefront"

    def __post_init__(self) -> None:
        _check("blocks", self.blocks, NAMESPACES_MAX)
        _check("data_shards", self.data_shards, STEPS_MAX)
        _check_steps(self.data_shards, "data_shards", self.epochs)

    @cached_property
    def graph(self) -> Graph:
        """A namespace of one lane for each block: `block-0` and so on."""
        graph = Graph(self.name, steps=self.data_shards * self.epochs)
        for block in range(self.blocks):
            graph.add(f"block-{block}")
        for block in range(1, self.blocks):
            graph.after(f"block-{block}", f"block-{block - 1}")
        if self.blocks > 1:  # an epoch's first block meets what the last one has left
            graph.after("block-0", f"block-{self.blocks - 1}", lag=self.data_shards)
        return graph

    def place(self, rank: int, step: int) -> WavefrontPlace:
        """The block is the lane's own; parts of the data come in order, again in each epoch."""
        epoch, data_shard = divmod(step - 1, self.data_shards)
        return WavefrontPlace(rank, data_shard, epoch)


class RotationPlace(NamedTuple):
    """A part of the data, and the block of parameters that it is trained on."""

    part: int
    block: int
    epoch: int


@dataclass(frozen=True)
class Rotation:
    """As many blocks as parts of the data; in each sub-step every part has another block.

    Lane p at step t works on block (p + t) mod `parts`, which lane p + 1 had the step before: so
    blocks go round, no two lanes ever hold the same one, and in each epoch every part meets every
    block once. The stratification is that of Gemulla et al. (KDD 2011), the hand-over that of
    STRADS (Lee et al., 2014): a lane waits for its next block, not for all lanes.
    """

    parts: int
    epochs: int = 1
    name: str = "rotation"

    def __post_init__(self) -> None:
        _check("parts", self.parts, LANES_MAX)
        _check_steps(self.parts, "parts", self.epochs)

    @cached_property
    def graph(self) -> Graph:
        """One namespace, `part`, with a lane for each part of the data."""
        graph = Graph(self.name, steps=self.parts * self.epochs)
        graph.add("part", width=self.parts)
        if self.parts > 1:
            graph.after("part", "part", lag=1, shift=1)
        return graph

    def place(self, rank: int, step: int) -> RotationPlace:
        """See the class."""
        return RotationPlace(rank, (rank + step) % self.parts, (step - 1) // self.parts)


class PipelinePlace(NamedTuple):
    """A stage of the model, the way through it, and which micro-batch; None: there is none left.

    While the pipeline fills and empties, tasks without a micro-batch have nothing to do.
    """

    stage: int
    direction: Direction
    micro_batch: int | None


@dataclass(frozen=True)
class Pipeline:
    """Stages of a model; each micro-batch goes forward through all of them, and backward.

    Every stage does one forward and one backward in turn (1F1B; PipeDream, Narayanan et al., SOSP
    2019), the backward `delay` micro-batches behind: as many as stages follow, but less than
    `in_flight`. So no more than `in_flight` micro-batches are under way, all stages are busy once
    the pipeline is full, and which updates a forward sees is fixed: those of all micro-batches up
    to its own - 1 - `delay`. The result is that of the serial order, byte for byte; with
    `in_flight=1` it is plain gradient descent. `micro_batches` counts those of all epochs together.
    """

    stages: int
    micro_batches: int
    in_flight: int = 4
    name: str = "pipeline"

    def __post_init__(self) -> None:
        _check("stages", self.stages, NAMESPACES_MAX // 2)
        _check("micro_batches", self.micro_batches, STEPS_MAX - NAMESPACES_MAX)
        _check("in_flight", self.in_flight, STEPS_MAX)

    def delay(self, stage: int) -> int:
        """How many micro-batches the stage's backward is behind its forward."""
        return min(self.stages - 1 - stage, self.in_flight - 1)

    @cached_property
    def graph(self) -> Graph:
        """For each stage the namespaces `forward-<stage>` and `backward-<stage>`, one lane each."""
        graph = Graph(self.name, steps=self.micro_batches + self.delay(0))
        for stage in range(self.stages):
            graph.add(f"forward-{stage}")
            graph.add(f"backward-{stage}")
            graph.after(f"backward-{stage}", f"forward-{stage}")
            graph.after(f"forward-{stage}", f"backward-{stage}", lag=1)
        for stage in range(self.stages - 1):
            graph.after(f"forward-{stage + 1}", f"forward-{stage}")
            lag = self.delay(stage) - self.delay(stage + 1)
            graph.after(f"backward-{stage}", f"backward-{stage + 1}", lag=lag)
        return graph

    def place(self, rank: int, step: int) -> PipelinePlace:
        """Even lanes go forward, odd ones backward."""
        stage, backward = divmod(rank, 2)
        micro_batch = step - 1 - (self.delay(stage) if backward else 0)
        there = 0 <= micro_batch < self.micro_batches
        way: Direction = "backward" if backward else "forward"
        return PipelinePlace(stage, way, micro_batch if there else None)


class FreePlace(NamedTuple):
    """Which of the workers, and which of its steps (from 0)."""

    worker: int
    turn: int


@dataclass(frozen=True)
class Free:
    """Workers that wait for nobody; a lane's own steps come in order."""

    workers: int
    steps: int
    name: str = "free"

    def __post_init__(self) -> None:
        _check("workers", self.workers, LANES_MAX)
        _check("steps", self.steps, STEPS_MAX)

    @cached_property
    def graph(self) -> Graph:
        """One namespace, `worker`, and no edges."""
        graph = Graph(self.name, steps=self.steps)
        graph.add("worker", width=self.workers)
        return graph

    def place(self, rank: int, step: int) -> FreePlace:
        """The lane's number and step."""
        return FreePlace(rank, step - 1)


def _check(what: str, number: int, most: int) -> None:
    if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= most:
        raise BadInput(f"{what}={number!r}: a whole number from 1 to {most}")


def _check_steps(each: int, what: str, epochs: int) -> None:
    _check("epochs", epochs, STEPS_MAX)
    if each * epochs > STEPS_MAX:
        raise BadInput(f"{what} x epochs = {each * epochs} steps of a lane: at most {STEPS_MAX}")
