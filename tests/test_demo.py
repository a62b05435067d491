"""The synthetic weather of the demo has the features that its map should show."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from demo.weather import Weather

LATITUDES, LONGITUDES = np.linspace(90, -90, 61), np.arange(0, 360, 3.0)


@pytest.fixture(scope="module")
def weather() -> Weather:
    return Weather(LATITUDES, LONGITUDES)


def at(field: Any, latitude: float, longitude: float) -> Any:
    """Return the values at a point of the grid."""
    return field[..., latitude == LATITUDES, longitude % 360 == LONGITUDES][..., 0]


def month(weather: Weather, start: str) -> Any:
    """Temperatures of 20 days, every 6 hours."""
    begin = np.datetime64(start, "h")
    return weather.temperature(np.arange(begin, begin + np.timedelta64(20, "D"), np.timedelta64(6, "h")))


def test_demo_temperatures_depend_only_on_time_and_place(weather: Weather) -> None:
    times = np.array(["2024-03-01T00", "2024-03-01T06"], "M8[h]")

    both = weather.temperature(times)
    alone = Weather(LATITUDES, LONGITUDES).temperature(times[1:])

    assert np.array_equal(both[1], alone[0])


def test_summers_are_warmer_over_continents(weather: Weather) -> None:
    january, july = (month(weather, start).mean(axis=0) for start in ("2024-01-10", "2024-07-10"))
    siberia, atlantic, australia = ((60, 102), (45, -30), (-24, 132))

    assert at(july - january, *siberia) > 30
    assert 2 < at(july - january, *atlantic) < 15
    assert at(july - january, *australia) < -5


def test_daily_cycle_occurs_only_on_land(weather: Weather) -> None:
    april = month(weather, "2024-04-01").reshape(20, 4, len(LATITUDES), len(LONGITUDES)).mean(axis=0)

    assert at(april, 24, 15).argmax() == 2  # Sahara: warmest at 12 UTC
    assert at(april, 24, 15).max() - at(april, 24, 15).min() > 6
    assert at(april, 15, -141).max() - at(april, 15, -141).min() < 2


def test_weather_changes_most_in_the_storm_tracks(weather: Weather) -> None:
    change = month(weather, "2024-01-10").std(axis=0).mean(axis=1)

    assert change[np.abs(LATITUDES - 48) < 8].mean() > 2.5 * change[np.abs(LATITUDES) < 10].mean()


def test_demo_values_are_realistic(weather: Weather) -> None:
    for start in ("2024-01-10", "2024-07-10"):
        field = month(weather, start)
        assert -80 < field.min() < -45
        assert 33 < field.max() < 55
        weights = np.cos(np.radians(LATITUDES))[:, None]
        mean = (field * weights).sum() / (weights.sum() * field[:, 0].size)
        assert 10 < mean < 20
