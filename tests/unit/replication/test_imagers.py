"""The primary names the server that takes the image of a cut."""

from __future__ import annotations

import pytest

from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.records import Member
from resilient_ps.cut import Cut
from resilient_ps.messages import Command, Kind
from resilient_ps.replication.home import Home
from resilient_ps.replication.imagers import with_imager
from resilient_ps.shard import Shard

ME, B, C = Member("s1", 1), Member("s2", 2), Member("s3", 3)
CUT = Cut(3, ((1, 5),), "elsewhere", hold=True, base="1-2-00000000")


def home(leases: tuple[Member, ...], leaving: tuple[Member, ...] = ()) -> Home:
    made = Home(ME, ClusterKeys("test"), 4, lambda bits: 0)
    made.leases = dict.fromkeys(leases, 7)
    made.leaving = frozenset(leaving)
    return made


def named(in_sync: tuple[Member, ...], where: Home, shard: int = 0) -> str:
    command = Command(Kind.CUT, n=3, text=CUT.to_json().encode())
    cut = Cut.from_json(with_imager(command, in_sync, where, shard).text)
    assert (cut.number, cut.clocks, cut.hold, cut.base) == (3, ((1, 5),), True, "1-2-00000000")
    return cut.by


def test_a_backup_takes_the_image_so_that_the_primary_feels_nothing() -> None:
    assert named((ME, B), home((ME, B))) == "s2"
    assert named((B, ME), home((ME, B))) == "s2"


@pytest.mark.parametrize(
    "where", [home((ME,)), home((ME, B), leaving=(B,)), home((ME, Member("s2", 99)))]
)
def test_a_backup_without_a_lease_or_about_to_end_does_not(where: Home) -> None:
    assert named((ME, B), where) == "s1"


def test_it_takes_the_image_itself_where_there_is_no_other() -> None:
    assert named((ME,), home((ME, B))) == "s1"


def test_shards_are_spread_over_the_backups_and_each_keeps_its_own() -> None:
    where = home((ME, B, C))
    first = [named((ME, C, B), where, shard) for shard in range(4)]
    assert first == ["s2", "s3", "s2", "s3"]
    assert [named((B, ME, C), where, shard) for shard in range(4)] == first


def test_what_is_no_cut_is_left_as_it_is() -> None:
    command = Command(Kind.CUT, n=3, text=b"{}")
    assert with_imager(command, (ME, B), home((ME, B)), 0) is command


def test_a_shard_knows_on_which_server_it_is() -> None:
    where = home((ME,))
    where.overlay_bytes_max = 5
    shard = where.housed(Shard(0, 4))
    assert (shard.server, shard.overlay_bytes_max) == ("s1", 5)
    assert where.new_shard(2).server == "s1"
