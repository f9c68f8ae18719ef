"""Which rows were touched since a moment."""

from __future__ import annotations

import numpy as np
import pytest

from resilient_ps.tables import sparse
from resilient_ps.tables.optimisers import SGD
from resilient_ps.tables.sparse import SparseShard
from resilient_ps.tables.spec import SparseSpec
from resilient_ps.tables.survey import Survey


def pushed(shard: SparseShard, keys: object) -> None:
    numbers = np.array(keys, np.uint64)
    shard.push(numbers, np.ones((numbers.size, 2), np.float32))


@pytest.fixture
def shard() -> SparseShard:
    made = SparseShard(SparseSpec("t", 2, "float32", SGD(0.1)))
    pushed(made, range(1000))
    return made


def touched(survey: Survey) -> list[int] | None:
    found = survey.finish()
    return None if found is None else np.flatnonzero(found).tolist()


def test_pushes_and_loads_touch_rows_and_pulls_do_not(shard: SparseShard) -> None:
    mark = shard.mark()
    shard.pull(np.arange(50, dtype=np.uint64))
    shard.row_numbers(np.arange(50, dtype=np.uint64))
    assert touched(Survey(shard, mark, len(shard))) == []
    pushed(shard, [7, 3, 7])
    shard.load(np.array([9], np.uint64), np.zeros((1, 2), np.float32))
    pushed(shard, [1000])
    assert touched(Survey(shard, mark, len(shard))) == [3, 7, 9, 1000]
    assert touched(Survey(shard, mark, 9)) == [3, 7]
    assert touched(Survey(shard, shard.mark(), len(shard))) == []


def test_a_survey_goes_on_in_small_steps(shard: SparseShard) -> None:
    mark = shard.mark()
    pushed(shard, range(0, 1000, 3))
    survey = Survey(shard, mark, len(shard))
    steps = 0
    while not survey.step(64):
        steps += 1
    assert steps > 20
    assert touched(survey) == list(range(0, 1000, 3))


def test_it_begins_again_when_the_index_has_grown(shard: SparseShard) -> None:
    mark = shard.mark()
    pushed(shard, range(0, 1000, 3))
    survey = Survey(shard, mark, len(shard))
    for _ in range(10):
        survey.step(64)
    before = shard.entries
    pushed(shard, range(5000, 9000))
    assert shard.entries is not before
    assert touched(survey) == list(range(0, 1000, 3))


def test_nothing_is_known_when_stamps_began_anew(
    shard: SparseShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = shard.mark()
    survey = Survey(shard, mark, len(shard))
    survey.step(64)
    monkeypatch.setattr(sparse, "_MAX_STAMP", 1500)
    pushed(shard, range(1000))
    assert touched(survey) is None
    assert touched(Survey(shard, mark, len(shard))) is None
    assert touched(Survey(shard, shard.mark(), len(shard))) == []


def test_nothing_is_known_after_a_push_was_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    shard = SparseShard(SparseSpec("t", 2, "float32", SGD(0.1)), max_rows=100)
    pushed(shard, range(90))
    mark = shard.mark()
    with pytest.raises(ValueError, match="more than 100 rows"):
        pushed(shard, range(200))
    assert touched(Survey(shard, mark, len(shard))) is None


@pytest.mark.parametrize(("share", "is_known"), [(1.0, False), (0.9, False), (0.6, True)])
def test_where_most_rows_were_touched_a_sample_is_looked_at_and_no_more(
    share: float, is_known: bool
) -> None:
    shard = SparseShard(SparseSpec("t", 2, "float32", SGD(0.1)))
    pushed(shard, range(20_000))
    mark, count = shard.mark(), int(20_000 * share)
    pushed(shard, range(count))
    survey, steps = Survey(shard, mark, len(shard)), 1
    while not survey.step(4096):
        steps += 1
    assert touched(survey) == (list(range(count)) if is_known else None)
    assert (steps > shard.entries_count // 4096) is is_known


def test_of_few_rows_all_are_looked_at(shard: SparseShard) -> None:
    mark = shard.mark()
    pushed(shard, range(1000))
    survey = Survey(shard, mark, len(shard))
    while not survey.step(64):
        pass
    assert touched(survey) == list(range(1000))
