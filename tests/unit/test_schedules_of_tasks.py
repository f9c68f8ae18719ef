"""Schedules: what each task works on, and that every order that the graph allows is a good one.

Orders are drawn at random from all those that the edges allow, by an oracle that knows edges alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilient_ps.coordinator.graph import Graph
from resilient_ps.errors import BadInput
from resilient_ps.schedules import Free, Pipeline, Rotation, Schedule, Wavefront

SMALL = st.integers(1, 4)
Draw = Callable[[int], int]
Order = list[tuple[int, int]]


def ready(graph: Graph, done: list[int]) -> Iterator[int]:
    """The lanes whose next step may be done, when so many of each lane's are."""
    spaces = {space.name: space for space in graph.namespaces}
    for lane in graph.lanes:
        step = done[lane.rank] + 1
        if step <= graph.steps and all(
            done[rank] >= step - edge.lag
            for edge in graph.edges
            if edge.namespace == lane.namespace
            for rank in spaces[edge.predecessor].ranks
            if edge.shift is None
            or rank - spaces[edge.predecessor].first
            == (lane.n + edge.shift) % spaces[edge.predecessor].width
        ):
            yield lane.rank


def any_order(graph: Graph, draw: Draw) -> Order:
    """All tasks, in an order that the edges allow."""
    done, order = [0] * graph.lanes_total, []
    while True:
        lanes = list(ready(graph, done))
        if not lanes:
            return order
        rank = lanes[draw(len(lanes) - 1)]
        done[rank] += 1
        order.append((rank, done[rank]))


def drawing(data: st.DataObject) -> Draw:
    return lambda most: data.draw(st.integers(0, most))


def are_serial(schedule: Schedule[Any], order: Order, conflict: Callable[[Any, Any], bool]) -> bool:
    """Do all tasks that touch the same come in the serial order?"""
    at = {task: number for number, task in enumerate(order)}
    places = {task: schedule.place(*task) for task in order}
    return all(
        at[first] < at[second]
        for first, second in combinations(schedule.graph.serial_order(), 2)
        if conflict(places[first], places[second])
    )


@given(st.data(), SMALL, SMALL, st.integers(1, 3))
def test_a_wavefront_is_as_good_as_the_serial_order(
    data: st.DataObject, blocks: int, data_shards: int, epochs: int
) -> None:
    wave = Wavefront(blocks, data_shards, epochs)
    order = any_order(wave.graph, drawing(data))
    places = Counter(wave.place(*task) for task in order)
    assert len(places) == blocks * data_shards * epochs
    assert set(places.values()) == {1}
    assert are_serial(wave, order, lambda a, b: a.block == b.block or a.data_shard == b.data_shard)


def test_the_serial_order_of_a_wavefront_is_epoch_then_data_then_block() -> None:
    wave = Wavefront(blocks=2, data_shards=3, epochs=2)
    places = [wave.place(*task) for task in wave.graph.serial_order()]
    assert [(p.epoch, p.data_shard, p.block) for p in places] == [
        (epoch, data_shard, block)
        for epoch in (0, 1)
        for data_shard in (0, 1, 2)
        for block in (0, 1)
    ]


def test_a_wavefront_without_the_edge_between_epochs_is_not_serial() -> None:
    wave = Wavefront(blocks=2, data_shards=1, epochs=2)
    loose = Graph("loose", steps=2)
    loose.add("block-0")
    loose.add("block-1")
    loose.after("block-1", "block-0")
    order = any_order(loose, lambda _most: 0)  # block 0 runs ahead
    assert not are_serial(wave, order, lambda a, b: a.data_shard == b.data_shard)


@given(st.data(), st.integers(1, 6), st.integers(1, 3))
def test_in_a_rotation_nobody_shares_a_block_and_everybody_meets_all(
    data: st.DataObject, parts: int, epochs: int
) -> None:
    rotation = Rotation(parts, epochs)
    order = any_order(rotation.graph, drawing(data))
    met = Counter(rotation.place(*task) for task in order)
    assert len(met) == parts * parts * epochs
    assert set(met.values()) == {1}
    assert are_serial(rotation, order, lambda a, b: a.block == b.block or a.part == b.part)


@given(st.data(), SMALL, st.integers(1, 6), SMALL)
def test_a_pipeline_has_a_bounded_number_of_micro_batches_under_way(
    data: st.DataObject, stages: int, micro_batches: int, in_flight: int
) -> None:
    pipeline = Pipeline(stages, micro_batches, in_flight)
    under_way = 0
    seen: dict[int, list[tuple[str, int]]] = {}
    for task in any_order(pipeline.graph, drawing(data)):
        place = pipeline.place(*task)
        if place.micro_batch is None:
            continue
        seen.setdefault(place.micro_batch, []).append((place.direction, place.stage))
        under_way += {"forward": 1, "backward": -1}[place.direction] * (place.stage == 0)
        assert under_way <= min(in_flight, stages)
    forth = [("forward", stage) for stage in range(stages)]
    assert len(seen) == micro_batches
    assert all(way == forth + [("backward", s) for _, s in forth[::-1]] for way in seen.values())


@given(st.data(), SMALL, st.integers(1, 6), SMALL)
def test_which_updates_a_stage_of_a_pipeline_sees_is_fixed(
    data: st.DataObject, stages: int, micro_batches: int, in_flight: int
) -> None:
    pipeline = Pipeline(stages, micro_batches, in_flight)
    updated = [0] * stages  # how many micro-batches have come back through the stage
    for task in any_order(pipeline.graph, drawing(data)):
        stage, direction, micro_batch = pipeline.place(*task)
        if micro_batch is not None and direction == "forward":
            assert updated[stage] == max(0, micro_batch - pipeline.delay(stage))
        elif micro_batch is not None:
            assert updated[stage] == micro_batch
            updated[stage] += 1


@given(st.data(), SMALL, SMALL)
def test_with_one_in_flight_a_pipeline_is_plain_gradient_descent(
    data: st.DataObject, stages: int, micro_batches: int
) -> None:
    pipeline = Pipeline(stages, micro_batches, in_flight=1)
    order = any_order(pipeline.graph, drawing(data))
    batches = [pipeline.place(*task).micro_batch for task in order]
    assert batches == sorted(batches, key=lambda batch: -1 if batch is None else batch)
    assert None not in batches


@given(st.data(), SMALL, SMALL)
def test_free_workers_wait_for_nobody(data: st.DataObject, workers: int, steps: int) -> None:
    free = Free(workers, steps)
    assert len(list(ready(free.graph, [0] * workers))) == workers
    turns = [free.place(*task) for task in any_order(free.graph, drawing(data))]
    for worker in range(workers):
        assert [place.turn for place in turns if place.worker == worker] == list(range(steps))


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda: Wavefront(0, 1), r"blocks=0: a whole number from 1 to 1000"),
        (lambda: Wavefront(1, 2, 10**6), r"data_shards x epochs = 2000000 steps"),
        (lambda: Rotation(True), r"parts=True"),
        (lambda: Pipeline(2, 5, in_flight=0), r"in_flight=0"),
        (lambda: Free(1, 1.5), r"steps=1\.5"),  # type: ignore[arg-type]
        (lambda: Wavefront(1, 1, name="a/b").graph, r"'a/b' cannot name a graph"),
    ],
)
def test_what_is_no_schedule_is_refused_with_its_bounds(
    wrong: Callable[[], Any], told: str
) -> None:
    with pytest.raises(BadInput, match=told):
        wrong()


def test_a_schedule_has_one_graph() -> None:
    wave = Wavefront(3, 2)
    assert wave.graph is wave.graph
    assert wave.graph.to_json() == Wavefront(3, 2).graph.to_json()
