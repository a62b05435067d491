"""Synthetic 2 m temperature for the demo: invented, but with the features of real weather.

Continents, oceans, mountains, deserts and currents give the mean; the season and the time of day shift it;
moving eddies in the storm tracks stir warm and cold air and form fronts. Each value depends on place and time
alone, so the files are the same on every machine and can be written in any order.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from icefloe.coastlines import select_coastlines

Field = Any
"""An array of numbers in single or double precision."""

# Bumps: latitude and longitude of the centre, radius in degrees north and east, height.
MOUNTAINS_KM = (
    (33, 88, 4, 10, 5.0), (43, 80, 3, 11, 2.0), (36, 72, 3, 4, 3.0), (33, 52, 5, 7, 1.4),
    (40, -110, 8, 6, 2.2), (56, -125, 8, 5, 1.4), (23, -103, 6, 3, 1.8), (-17, -68, 7, 2, 4.0),
    (-36, -70, 9, 2, 2.6), (2, -76, 6, 2, 2.2), (74, -40, 7, 11, 3.0), (-84, 60, 9, 90, 3.0),
    (-77, 95, 6, 40, 1.6), (-82, -110, 5, 35, 1.4), (9, 39, 4, 3, 2.3), (-28, 28, 4, 4, 1.4),
    (46, 10, 2, 4, 1.6), (63, 10, 3, 4, 0.8), (64, 140, 5, 16, 0.9), (51, 100, 5, 12, 1.3),
    (61, -148, 3, 8, 1.2), (38, 42, 3, 6, 1.6), (-5, 139, 2, 5, 1.5), (2, 36, 4, 4, 1.2),
    (65, 60, 5, 2, 0.6),
)  # fmt: skip
CURRENTS_AND_DESERTS_K = (
    (68, 8, 6, 22, 9.0), (59, -18, 8, 18, 3.5), (40, -58, 5, 12, 3.5), (39, 150, 5, 12, 3.0),
    (-15, -82, 9, 8, -5.0), (-20, 7, 9, 7, -4.5), (28, -120, 7, 7, -4.0), (57, -56, 7, 7, -5.0),
    (22, 5, 6, 18, 7.0), (21, 46, 6, 8, 6.0), (-24, 130, 6, 10, 5.0), (39, 60, 4, 8, 3.5),
    (29, 71, 4, 4, 3.5), (33, -112, 4, 4, 3.5), (4, 135, 9, 30, 1.5), (-1, -105, 3, 30, -2.5),
    (20, -20, 6, 5, -3.0), (48, 155, 6, 8, -2.5), (-45, -55, 6, 8, -3.0), (-37, 28, 4, 8, 2.5),
    (0, 20, 6, 9, -3.5), (-3, -62, 7, 9, -2.0), (54, 10, 6, 14, 3.0), (-22, 24, 5, 5, 3.0),
)  # fmt: skip
DAYS_PER_YEAR = 366
LAPSE_RATE_K_PER_KM = 5.5
LARGEST_ANOMALY_K = np.float32(14)


@dataclass(frozen=True)
class Weather:
    """Temperatures of an Earth-like planet, on a grid that includes both poles."""

    latitudes: Field
    """Must be odd, because eddies are computed on every second row."""
    longitudes: Field

    def temperature(self, times: Any) -> Field:
        """Compute degrees Celsius for an array of times, of shape (time, latitude, longitude)."""
        hours = (times - np.datetime64("2024-01-01")) / np.timedelta64(1, "h")
        return np.stack([self._temperature_at(hour) for hour in hours.tolist()])

    def _temperature_at(self, hour: float) -> Field:
        winter, late_winter = (
            np.float32(np.cos(2 * np.pi * (hour / 24 - day) / DAYS_PER_YEAR)) for day in (25, 55)
        )
        surface = self._mean - self._land_swing * winter - self._sea_swing * late_winter
        noon = np.clip(np.cos(np.radians(self.latitudes + 21 * winter)), 0, 1)[:, None]
        clock = np.cos(2 * np.pi * (hour - 14.5 + self.longitudes / 15) / 24)  # warmest at 14:30 local time
        air = self._air - self._air_swing * winter
        anomaly = self._stirred(air, hour, winter) - air
        felt = self._exposure * LARGEST_ANOMALY_K * np.tanh(anomaly / LARGEST_ANOMALY_K)
        return surface + self._daily * (noon * clock).astype("f4") + felt

    def _stirred(self, air: Field, hour: float, winter: Field) -> Field:
        """Replace the air by the air that the eddies carry here."""
        strength = self._storminess * (1 + 0.25 * winter * np.sign(self.latitudes))
        north, east = self._eddies.displacement(hour, strength[::2, None].astype("f4"))
        return _sampled(air, _refined(north), _refined(east))

    @cached_property
    def _eddies(self) -> Eddies:
        return Eddies(self.latitudes[::2], self.longitudes[::2])

    @cached_property
    def _land(self) -> Field:
        """Return 1 on land and 0 at sea: an odd number of coastlines separates land from the North Pole."""
        crossings = np.zeros((len(self.latitudes), len(self.longitudes)), int)
        for line in select_coastlines(0, 360):
            west, east = line[:-1, :1], line[1:, :1]
            segment, column = np.nonzero((west <= self.longitudes) != (east <= self.longitudes))
            share = (self.longitudes[column] - west[segment, 0]) / (east - west)[segment, 0]
            latitude = line[segment, 1] + share * (line[segment + 1, 1] - line[segment, 1])
            for at, where in zip(latitude.tolist(), column.tolist(), strict=True):
                crossings[self.latitudes < at, where] += 1
        return (crossings % 2).astype("f4")

    @cached_property
    def _inland(self) -> Field:
        """Return values from 0 far out at sea to 1 in the middle of a continent."""
        return np.clip(1.3 * self._smoothed(self._land, 5) - 0.15, 0, 1) * (0.3 + 0.7 * self._land)

    @cached_property
    def _frozen(self) -> Field:
        """Return the fraction of sea ice, where winters are nearly as cold as on land."""
        arctic = np.clip((-0.3 - self._sea) / 1.5, 0, 1) * (self.latitudes > 0)[:, None]
        antarctic = np.clip((-self.latitudes - 63) / 6, 0, 1)[:, None]
        return np.maximum(arctic, antarctic) * (1 - self._land)

    @cached_property
    def _sea(self) -> Field:
        warm = np.clip(np.cos(np.radians(1.22 * self.latitudes)), 0, 1) ** 1.35
        return (-2 + 29 * warm[:, None] + self._bumps(CURRENTS_AND_DESERTS_K)).astype("f4")

    @cached_property
    def _mean(self) -> Field:
        """Return the annual mean."""
        height = self._bumps(MOUNTAINS_KM) * self._smoothed(self._land, 1)
        noise = self._texture * (0.4 + self._land)
        return (self._at_sea_level - LAPSE_RATE_K_PER_KM * height + noise).astype("f4")

    @cached_property
    def _at_sea_level(self) -> Field:
        """Return the annual mean of a world without mountains."""
        warm = np.cos(np.radians(self.latitudes)) ** 1.5
        ground = -23 + 49.5 * warm[:, None] + self._bumps(CURRENTS_AND_DESERTS_K)
        like_ground = np.maximum(self._land, 0.75 * self._frozen)
        return like_ground * ground + (1 - like_ground) * self._sea

    @cached_property
    def _land_swing(self) -> Field:
        """Return half the difference between July and January, on land and on ice."""
        sine = np.sin(np.radians(self.latitudes))[:, None]
        like_ground = np.maximum(self._inland, 0.45 * self._frozen)
        return (np.sign(sine) * (1 + 23 * np.abs(sine) ** 1.2) * like_ground).astype("f4")

    @cached_property
    def _sea_swing(self) -> Field:
        return (3.2 * np.sin(2 * np.radians(self.latitudes))[:, None] * (1 - self._land)).astype("f4")

    @cached_property
    def _daily(self) -> Field:
        """Return half the difference between afternoon and night under a high sun."""
        dry = np.clip(self._bumps(CURRENTS_AND_DESERTS_K), 0, 6)
        return (0.3 + self._land * (2.5 + 2.0 * self._inland + 0.5 * dry)).astype("f4")

    @cached_property
    def _air(self) -> Field:
        """Return the mean temperature of the air that eddies stir: smooth except for the polar fronts."""
        front = -4 * np.tanh((np.abs(self.latitudes) - 47) / 3)[:, None]
        return (self._smoothed(self._at_sea_level, 4) + front + self._texture).astype("f4")

    @cached_property
    def _air_swing(self) -> Field:
        return self._smoothed(self._land_swing, 4).astype("f4")

    @cached_property
    def _exposure(self) -> Field:
        """Return how much of the temperature of passing air reaches the ground."""
        return (0.5 + 0.4 * self._smoothed(np.maximum(self._land, self._frozen), 2)).astype("f4")

    @cached_property
    def _storminess(self) -> Field:
        """Return the strength of the eddies, which is greatest in the storm tracks of both hemispheres."""
        distance = np.abs(self.latitudes) - 48
        return 0.25 + np.exp(-((distance / np.where(distance > 0, 14, 16)) ** 2))

    @cached_property
    def _texture(self) -> Field:
        """Return smooth noise of about 1 K."""
        draw = np.random.default_rng(7)
        noise = sum(
            self._smoothed(draw.normal(size=self._land.shape), radius) * radius for radius in (1.5, 3, 6)
        )
        return np.asarray(noise * 0.8, "f4")

    def _bumps(self, bumps: tuple[tuple[float, ...], ...]) -> Field:
        found = np.zeros((len(self.latitudes), len(self.longitudes)))
        for north, east, height, width, top in bumps:
            turn = (self.longitudes - east + 180) % 360 - 180
            down = np.exp(-(((self.latitudes - north) / height) ** 2))
            found += top * down[:, None] * np.exp(-((turn / width) ** 2))
        return found

    def _smoothed(self, field: Field, radius: float) -> Field:
        """Average over a neighbourhood of some degrees."""
        north = np.exp(-(((self.latitudes[:, None] - self.latitudes) / radius) ** 2))
        turn = (self.longitudes[:, None] - self.longitudes + 180) % 360 - 180
        east = np.exp(-((turn / (1.3 * radius)) ** 2))
        return (north / north.sum(axis=1, keepdims=True)) @ field @ (east / east.sum(axis=0))


class Eddies:
    """Compute a stream function of random waves that travel east, grow and decay."""

    def __init__(self, latitudes: Field, longitudes: Field) -> None:
        draw = np.random.default_rng(2024)
        wave, mode = np.arange(2, 26)[:, None, None], np.arange(1, 22)[:, None]
        shape = (len(wave), len(mode), 3)  # a sum of three frequencies each, so that eddies come and go
        size = 1.8 / (1 + (wave / 7) ** 2.6) / (1 + (mode / 9) ** 3)
        self._size = (size * draw.normal(size=shape)).astype("f4")
        self._phase = draw.uniform(0, 2 * np.pi, shape)
        eastward = wave * 2 * np.pi / 360 * 9 / 24  # 9 degrees a day
        self._frequency = eastward + draw.normal(0, 2 * np.pi / 150, shape)
        angle = np.radians(latitudes + 90) * mode
        self._modes, self._slopes = np.sin(angle).astype("f4"), (mode * np.cos(angle)).astype("f4")
        self._wave = wave[:, 0, 0]
        self._narrowing = 1 / np.maximum(np.cos(np.radians(latitudes)), 0.4)[:, None].astype("f4")
        self._columns = len(longitudes)

    def displacement(self, hour: float, strength: Field) -> tuple[Field, Field]:
        """Trace the air back in two steps, and return its displacement in rows and columns."""
        now = (self._size * np.exp(1j * (self._phase - self._frequency * hour))).sum(axis=2).astype("c8")
        north = self._field(1j * self._wave[:, None] * now, self._modes) * self._narrowing * strength
        east = self._field(now, self._slopes) * self._narrowing * strength
        return north + _sampled(north, north, east), east + _sampled(east, north, east)

    def _field(self, waves: Any, modes: Field) -> Field:
        spectrum = np.zeros((modes.shape[1], self._columns // 2 + 1), "c8")
        spectrum[:, self._wave] = modes.T @ waves.T
        return (np.fft.irfft(spectrum, self._columns) * self._columns / 60).astype("f4")


def _refined(coarse: Field) -> Field:
    """Interpolate between every second row and column; displacements are in cells, which halve."""
    rows, columns = coarse.shape
    found = np.empty((2 * rows - 1, 2 * columns), "f4")
    found[::2, ::2] = 2 * coarse
    found[1::2, ::2] = coarse[1:] + coarse[:-1]
    even = found[:, ::2]
    found[:, 1::2] = (even + np.roll(even, -1, axis=1)) / 2
    return found


def _sampled(field: Field, down: Field, across: Field) -> Field:
    """Interpolate a field at a displacement from each cell. Columns are periodic."""
    height, width = field.shape
    rows = np.clip(np.arange(height, dtype="f4")[:, None] + down, 0, height - 1.001)
    columns = np.arange(width, 2 * width, dtype="f4") + across
    top, left = rows.astype("i4"), columns.astype("i4")
    down, across = rows - top, columns - left
    first = top * (width + 1) + left % width
    around = np.concatenate([field, field[:, :1]], axis=1).ravel()
    upper, lower = around[first], around[first + (width + 1)]
    upper += (around[first + 1] - upper) * across
    lower += (around[first + (width + 2)] - lower) * across
    return upper + (lower - upper) * down
