"""Names of a checkpoint's objects: what is made is read back; what is not ours is left alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilient_ps.errors import BadInput
from resilient_ps.storage import names
from resilient_ps.storage.names import CheckpointId, Located
from resilient_ps.storage.requests import check_name

CLUSTERS = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._:-]{0,99}\Z")
IDS = st.builds(
    CheckpointId.of,
    st.integers(1, names.MAX_INCARNATION),
    st.integers(1, names.MAX_CUT),
    st.integers(0, 2**32 - 1),
)
SHARDS, PROCESSES = st.integers(0, names.MAX_SHARD), st.integers(1, names.UINT64_MAX)


@given(IDS)
def test_an_id_is_read_back_from_its_text(checkpoint: CheckpointId) -> None:
    assert CheckpointId.parse(str(checkpoint)) == checkpoint


@given(st.text(max_size=40))
def test_any_text_is_an_id_or_refused(text: str) -> None:
    try:
        parsed = str(CheckpointId.parse(text))
    except BadInput as error:
        parsed = text if "looks like" in str(error) else ""
    assert parsed == text


@given(CLUSTERS, IDS, SHARDS, PROCESSES, st.integers(1, names.MAX_OBJECT))
def test_every_name_is_possible_in_all_stores_and_says_what_it_is(
    cluster: str, checkpoint: CheckpointId, shard: int, process: int, n: int
) -> None:
    made = {
        names.manifest_name(cluster, checkpoint): Located("manifest", id=checkpoint),
        names.chunks_name(cluster, checkpoint, shard, process, n): Located(
            "chunks", 0, checkpoint, shard, process
        ),
        names.index_name(cluster, checkpoint, shard, process): Located(
            "index", 0, checkpoint, shard, process
        ),
        names.marker_name(cluster, checkpoint.incarnation): Located(
            "marker", checkpoint.incarnation
        ),
    }
    for name, located in made.items():
        check_name(name)
        assert names.locate(cluster, name) == located
        assert names.locate(cluster + "x", name) is None


def test_a_clusters_names_do_not_begin_with_anothers() -> None:
    assert not names.checkpoints_prefix("ab").startswith(names.checkpoints_prefix("a"))
    assert names.checkpoints_prefix("a:b") != names.checkpoints_prefix("a-b")


@pytest.mark.parametrize(
    "below",
    [
        "markers/1",
        "markers/00000000",
        "checkpoints/1-17-3fa9c2d1",
        "checkpoints/1-17-3fa9c2d1/other.json",
        "checkpoints/1-17-3fa9c2d1/shard-1024/00000000000000ff-000001.chunks",
        "checkpoints/1-17-3fa9c2d1/shard-0001/ff-000001.chunks",
        "checkpoints/1-17-3fa9c2d1/shard-0001/00000000000000ff-index.json/more",
        "checkpoints/01-17-3fa9c2d1/manifest.json",
        "leases/1",
    ],
)
def test_what_nobody_writes_is_not_ours(below: str) -> None:
    assert names.locate("c", f"c/{below}") is None


def test_markers_stand_in_the_order_of_incarnations() -> None:
    made = [names.marker_name("c", incarnation) for incarnation in (1, 9, 10, 12345)]
    assert made == sorted(made)


@pytest.mark.parametrize("cluster", ["", "-a", "a/b", "a" * 101, "ä"])
def test_a_cluster_that_cannot_be_named_is_refused(cluster: str) -> None:
    with pytest.raises(BadInput, match="cannot name a cluster"):
        names.checkpoints_prefix(cluster)


def test_numbers_out_of_range_are_refused() -> None:
    checkpoint = CheckpointId.of(1, 2, 3)
    for bad in (
        lambda: names.marker_name("c", 0),
        lambda: names.chunks_name("c", checkpoint, 1024, 1, 1),
        lambda: names.chunks_name("c", checkpoint, 0, 0, 1),
        lambda: names.chunks_name("c", checkpoint, 0, 1, 10**6),
        lambda: CheckpointId.of(0, 1, 1),
    ):
        with pytest.raises(BadInput):
            bad()
