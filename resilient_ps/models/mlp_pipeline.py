"""A multi-layer perceptron in a pipeline: each layer is a stage, trained by tasks of its own.

Micro-batches go forward through the stages and backward again, several of them at a time, in the
order of `schedules.Pipeline` (one forward, one backward: PipeDream, Narayanan et al., SOSP 2019).
What goes from stage to stage, outputs forward and slopes backward, goes through tables, so any
process can do any task, and the next one finds what a killed one had to hand on.

A stage goes forward with weights that lack the updates of the micro-batches that are in flight
behind it, and backward with its present ones: pipelined backpropagation (Petrowski, Dreyfus and
Girault, 1993). With one micro-batch in flight that is plain gradient descent.

**The result is that of the serial order, byte for byte**: each stage's tasks alternate in a fixed
order, and what one hands on, one task takes. It is handed on exactly: rows to which it is added are
zero before, and who takes it last adds its negative, which leaves zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilient_ps.data.batch import Batch
from resilient_ps.data.dataset import Dataset
from resilient_ps.errors import BadInput
from resilient_ps.models.api import DenseTable, Progress, Table, TableOpener, Tasks
from resilient_ps.models.losses import class_targets, cross_entropies, row_weight
from resilient_ps.models.mlp import MLP, layer_gradient, layer_outputs, score_slope, slope_below
from resilient_ps.schedules import Pipeline, PipelinePlace
from resilient_ps.tables.optimisers import Sum
from resilient_ps.tables.spec import MAX_DIM

MICRO_BATCH_ROWS_MAX = 1 << 16
_ROW_BITS = 32


@dataclass(frozen=True)
class PipelinedMLP:
    """`model`, trained as a pipeline: every epoch is cut into `micro_batches`.

    `in_flight`: how many of them are under way at most; None: as many as there are layers. Layers
    are the tables of `MLP`; what is handed on lies in `{table}/forward/{i}` and
    `{table}/backward/{i}`. Raises `BadInput` for layers wider than 4,096.
    """

    model: MLP
    micro_batches: int = 32
    in_flight: int | None = None

    def __post_init__(self) -> None:
        widest = max(outputs for _, outputs in self.model.shapes)
        if widest > MAX_DIM:
            raise BadInput(f"a layer of {widest} outputs: in a pipeline at most {MAX_DIM}")
        if self.micro_batches < 1 or (self.in_flight is not None and self.in_flight < 1):
            raise BadInput(
                f"micro_batches={self.micro_batches}, in_flight={self.in_flight}: at least 1"
            )

    @property
    def stages(self) -> int:
        """One for each layer."""
        return len(self.model.shapes)

    def schedule(self, *, epochs: int = 1, name: str = "mlp") -> Pipeline:
        """The tasks of so many epochs."""
        in_flight = self.in_flight or self.stages
        return Pipeline(self.stages, self.micro_batches * epochs, in_flight, name)

    def train(
        self,
        tasks: Tasks,
        dataset: Dataset,
        *,
        epochs: int = 1,
        on_task: Callable[[Progress], None] | None = None,
    ) -> list[DenseTable]:
        """Take tasks until none is left: `client.tasks(pipelined.schedule(epochs=...).graph)`.

        Any number of processes do the same, with the same arguments; more than two for each layer
        have nothing to do. `on_task` is told of each micro-batch whose loss this process computed.
        """
        schedule = self.schedule(epochs=epochs)
        program = PipelinedProgram(self, tasks, dataset, schedule)
        samples = 0

        def work(task: Any) -> None:
            nonlocal samples
            rows, loss = program.work(schedule.place(task.rank, task.step))
            samples += rows
            if on_task is not None and rows:
                on_task(Progress(task.rank, task.step, rows, samples, loss / rows))

        tasks.run(work)
        return program.layers


class PipelinedProgram:
    """What a task does. Nothing is kept between tasks."""

    def __init__(
        self, pipelined: PipelinedMLP, opener: TableOpener, dataset: Dataset, schedule: Pipeline
    ) -> None:
        self._model = pipelined.model
        self._per_epoch = pipelined.micro_batches
        self._dataset = dataset
        self._slots = schedule.delay(0) + 1
        self._last = pipelined.stages - 1
        self.layers = self._model.open(opener)
        self._forward = [self._handed_on(opener, "forward", i) for i in range(self._last)]
        self._backward = [self._handed_on(opener, "backward", i) for i in range(self._last + 1)]

    def _handed_on(self, opener: TableOpener, direction: str, stage: int) -> Table:
        """Outputs of a stage, or slopes by them: the rows of some micro-batches."""
        name = f"{self._model.table}/{direction}/{stage}"
        return opener.sparse_table(name, dim=self._model.shapes[stage][1], optimiser=Sum())

    def work(self, place: PipelinePlace) -> tuple[int, float]:
        """Go one stage forward or backward with a micro-batch.

        Rows and their summed loss, where it becomes known: at the end of the way forward.
        """
        if place.micro_batch is None:
            return 0, 0.0
        batch = self._micro_batch(place.micro_batch)
        if batch is None:
            return 0, 0.0
        slot = place.micro_batch % self._slots
        keys = (np.arange(len(batch)) | slot << _ROW_BITS).astype(np.uint64)
        if place.direction == "backward":
            self._go_backward(place.stage, batch, keys)
            return 0, 0.0
        return self._go_forward(place, batch, keys)

    def _go_forward(
        self, place: PipelinePlace, batch: Batch, keys: NDArray[np.uint64]
    ) -> tuple[int, float]:
        stage = place.stage
        outputs = layer_outputs(self.layers[stage].pull(), self._below(stage, batch, keys))
        if not np.isfinite(outputs).all():
            raise BadInput(
                f"layer {stage} of {self._model.table!r} gives numbers that are not finite for "
                f"micro-batch {place.micro_batch}: use a lower learning rate"
            )
        if stage < self._last:
            self._forward[stage].push(keys, np.maximum(outputs, 0.0))
            return 0, 0.0
        targets = class_targets(batch.labels, self._model.classes)
        scores = outputs.astype(np.float64)
        self._backward[stage].push(keys, score_slope(scores, targets).astype(np.float32))
        return len(batch), float(cross_entropies(scores, targets).sum())

    def _go_backward(self, stage: int, batch: Batch, keys: NDArray[np.uint64]) -> None:
        slope = self._backward[stage].pull(keys)
        below = self._below(stage, batch, keys)
        if stage > 0:
            weights = self.layers[stage].pull()
            self._backward[stage - 1].push(keys, slope_below(weights, slope, below))
            self._forward[stage - 1].push(keys, -below)
        self._backward[stage].push(keys, -slope)
        gradient = layer_gradient(below, slope) * row_weight(len(batch), self._model.reduction)
        self.layers[stage].push(gradient.astype(np.float32))

    def _below(self, stage: int, batch: Batch, keys: NDArray[np.uint64]) -> NDArray[np.float32]:
        """The inputs of a stage."""
        if stage == 0:
            return self._model.rows(batch)
        return self._forward[stage - 1].pull(keys)

    def _micro_batch(self, number: int) -> Batch | None:
        """Its rows: those of one of `micro_batches` ranks in an epoch. None where it has none."""
        epoch, place = divmod(number, self._per_epoch)
        start = self._dataset.beginning(place, self._per_epoch, epoch)
        batches = self._dataset.batches(
            place, self._per_epoch, MICRO_BATCH_ROWS_MAX, epoch + 1, cursor=start
        )
        batch = next(batches, None)
        if next(batches, None) is not None:
            raise BadInput(
                f"a micro-batch of more than {MICRO_BATCH_ROWS_MAX} rows: more micro-batches than "
                f"{self._per_epoch} an epoch are needed"
            )
        return batch
