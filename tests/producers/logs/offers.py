"""Generates the included log: clicks on ten randomly shown offers, with known click probabilities.

A shop shows each visitor one of K = 10 offers, uniformly at random (propensity 1/10). Seconds to minutes later, the
shop learns whether the visitor clicked. If x is the context and a is the offer,

    P(click | x, a) = 1 / (1 + exp(-(b_a + c_{a, device} + s_{a, region} + w_a · hours)))

where `hours` is the time since the last visit, scaled to [0, 1], and b, c, s, w are random constants. The delay is
exponential with a mean of 30 seconds. One outcome in twenty is missing, independently of the offer and the context.

In a clone, `python -m tests.producers.logs.offers FOLDER` writes the two files.
"""

import csv
import gzip
import io
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream.wire.records import FloatArray

ROWS = 2_000
N_OFFERS = 10
OFFERS = tuple(f"offer-{place:02}" for place in range(N_OFFERS))
DEVICES = ("desktop", "phone", "tablet")
REGIONS = ("centre", "east", "north", "south", "west")
SEED = 20_240_229
GAP_MEAN_S = 9.0
DELAY_MEAN_S = 30.0
UNKNOWN_SHARE = 0.05
BEGIN = datetime(2024, 3, 1, 8, 0, 0, tzinfo=UTC)

LOG_NAME = "offers.csv.gz"
MAPPING_NAME = "offers.toml"

MAPPING = """\
# Columns of offers.csv.gz.
id = "visit"
timestamp = "shown_at"
action = "action"
propensity = "propensity"
reward = "clicked"
feedback_time = "heard_at"
classes = [
  "offer-00", "offer-01", "offer-02", "offer-03", "offer-04",
  "offer-05", "offer-06", "offer-07", "offer-08", "offer-09",
]

[features]
numeric = ["one", "hours_away"]
categorical = ["device", "region"]
"""


class Truth(NamedTuple):
    """The coefficients of P(click | x, a) for each offer."""

    base: FloatArray  # float64[K]
    device: FloatArray  # float64[K, 3]
    region: FloatArray  # float64[K, 5]
    hours: FloatArray  # float64[K]

    def click(self, visits: "Visits") -> FloatArray:
        """Return P(click | x, a) for each visit and offer, float64[n, K]."""
        logit = self.base + self.device.T[visits.devices] + self.region.T[visits.regions]
        return 1.0 / (1.0 + np.exp(-(logit + visits.hours[:, np.newaxis] * self.hours)))


class Visits(NamedTuple):
    """The visits' contexts."""

    devices: NDArray[np.int64]  # [n], indices in DEVICES
    regions: NDArray[np.int64]  # [n], indices in REGIONS
    hours: FloatArray  # float64[n], in [0, 1], multiples of 0.001


def truth() -> Truth:
    """Return the coefficients for the included log."""
    draw = np.random.Generator(np.random.PCG64([SEED, 0]))
    return Truth(
        base=draw.normal(-2.2, 0.4, N_OFFERS),
        device=draw.normal(0.0, 0.8, (N_OFFERS, len(DEVICES))),
        region=draw.normal(0.0, 0.8, (N_OFFERS, len(REGIONS))),
        hours=draw.normal(0.0, 1.0, N_OFFERS),
    )


def visits(rows: int = ROWS, stream: int = 1) -> Visits:
    """Return the contexts in the included log, or those of other visitors for a stream above 2."""
    draw = np.random.Generator(np.random.PCG64([SEED, stream]))
    return Visits(
        draw.choice(len(DEVICES), rows, p=(0.35, 0.5, 0.15)),
        draw.integers(0, len(REGIONS), rows),
        np.round(draw.beta(1.0, 2.0, rows), 3),
    )


def content(rows: int = ROWS) -> bytes:
    """Return the log as CSV."""
    seen = visits(rows)
    draw = np.random.Generator(np.random.PCG64([SEED, 2]))
    offers = draw.integers(0, N_OFFERS, rows)
    clicked = draw.random(rows) < truth().click(seen)[np.arange(rows), offers]
    unknown = draw.random(rows) < UNKNOWN_SHARE
    shown_s = np.cumsum(draw.exponential(GAP_MEAN_S, rows))
    heard_s = shown_s + draw.exponential(DELAY_MEAN_S, rows)
    file = io.StringIO(newline="")
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(
        ("visit", "shown_at", "device", "region", "hours_away", "one", "action", "propensity", "clicked", "heard_at")
    )
    for row in range(rows):
        outcome = ("", "") if unknown[row] else (int(clicked[row]), _time(heard_s[row]))
        writer.writerow(
            (
                f"visit-{row:05}", _time(shown_s[row]), DEVICES[seen.devices[row]], REGIONS[seen.regions[row]],
                f"{seen.hours[row]:.3f}", 1, OFFERS[offers[row]], 1 / N_OFFERS, *outcome,
            )
        )  # fmt: skip
    return file.getvalue().encode()


def write(folder: Path) -> None:
    """Write the log and its mapping."""
    (folder / LOG_NAME).write_bytes(gzip.compress(content(), mtime=0))
    (folder / MAPPING_NAME).write_text(MAPPING)


def _time(since_begin_s: float) -> str:
    time = BEGIN + timedelta(milliseconds=round(float(since_begin_s) * 1_000))
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
