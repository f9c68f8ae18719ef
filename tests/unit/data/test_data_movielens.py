"""MovieLens 100k: what the file says, where it comes from, and what is said where it cannot."""

from __future__ import annotations

import zipfile

import numpy as np
import pytest

from resilient_ps.data.movielens import FILE, _usual_folder, movielens_100k
from resilient_ps.data.ratings import Ratings
from resilient_ps.errors import BadInput, NotFound
from resilient_ps.hashing import hash_text

IN_WHEEL = f"recbole/dataset_example/ml-100k/{FILE}"
HEAD = b"user_id:token\titem_id:token\trating:float\ttimestamp:float\n"


@pytest.fixture(scope="module")
def ratings():
    try:
        return movielens_100k()
    except NotFound as offline:
        pytest.skip(str(offline))


@pytest.fixture
def no_index(monkeypatch):
    """pip has nowhere to download from."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    for name in ("PIP_FIND_LINKS", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")


def test_it_has_a_hundred_thousand_ratings_of_943_users_and_1682_films(ratings):
    assert len(ratings) == 100_000
    assert len(np.unique(ratings.users)) == ratings.users.max() == 943
    assert len(np.unique(ratings.items)) == ratings.items.max() == 1682
    assert np.bincount(ratings.ratings.astype(int)).tolist() == [
        0,
        6110,
        11370,
        27145,
        34174,
        21201,
    ]
    assert (ratings.users[0], ratings.items[0], ratings.ratings[0]) == (196, 242, 3)
    assert ratings.times.min() == 874724710


def test_a_split_takes_every_rating_once_and_is_the_same_for_a_seed(ratings):
    train, test = ratings.split(0.2, seed=4)
    assert (len(train), len(test)) == (80_000, 20_000)
    both = np.concatenate((train.times * 10_000 + train.items, test.times * 10_000 + test.items))
    assert np.sort(both).tolist() == np.sort(ratings.times * 10_000 + ratings.items).tolist()
    assert ratings.split(0.2, seed=4)[1].users.tolist() == test.users.tolist()
    assert ratings.split(0.2, seed=5)[1].users.tolist() != test.users.tolist()


def test_rows_have_the_users_feature_and_the_films(ratings):
    batch = next(ratings.dataset().batches(0, 1, 2))
    names = ("user=196", "item=242", "user=186", "item=302")
    assert batch.keys.tolist() == [hash_text(name) for name in names]
    assert batch.labels.tolist() == [3, 3]
    assert batch.values.tolist() == [1, 1, 1, 1]
    assert len(next(ratings.dataset(shuffle_seed=1).batches(0, 1, 500))) == 500


def test_a_wheel_in_the_folder_is_read_and_the_file_kept(ratings, tmp_path, no_index):
    """The real file, in a wheel as small as can be."""
    wheel = tmp_path / "recbole-1.2.1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(_usual_folder() / FILE, IN_WHEEL)
    assert len(movielens_100k(tmp_path)) == 100_000
    wheel.unlink()
    assert len(movielens_100k(tmp_path)) == 100_000
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_without_a_network_the_remedy_is_named(tmp_path, no_index):
    with pytest.raises(NotFound, match=r"pip download recbole==.* --no-deps.*put the wheel into"):
        movielens_100k(tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_another_file_is_refused_and_named(tmp_path, no_index):
    (tmp_path / FILE).write_bytes(HEAD + b"1\t2\t3\t4\n")
    with pytest.raises(BadInput, match=f"{FILE} is not the file of recbole"):
        movielens_100k(tmp_path)


def test_a_damaged_wheel_is_refused_and_named(tmp_path, no_index):
    (tmp_path / "recbole-1.2.1-py3-none-any.whl").write_bytes(b"PK\x03\x04 torn")
    with pytest.raises(BadInput, match=r"recbole-1\.2\.1-py3-none-any\.whl is damaged"):
        movielens_100k(tmp_path)


@pytest.mark.parametrize(("held_out", "seed"), [(0.0, 0), (1.0, 0), (0.5, -1), (0.01, 0)])
def test_splits_that_cannot_be_are_refused(held_out, seed):
    few = Ratings(np.arange(3), np.arange(3), np.ones(3, np.float32), np.zeros(3, np.int64))
    with pytest.raises(BadInput, match="held_out"):
        few.split(held_out, seed)
