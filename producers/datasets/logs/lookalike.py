"""The log that ships with the program: clicks on ten offers, shown at random, with a truth that is known.

A shop shows one of K = 10 offers to each visitor, uniformly at random (propensity 1/10), and some seconds to minutes
later it hears whether the visitor clicked. With x the context and a the offer,

    P(click | x, a) = 1 / (1 + exp(-(b_a + c_{a, device} + s_{a, region} + w_a · hours)))

where `hours` is how long the visitor has been away, in [0, 1], and b, c, s, w were drawn once. The delay is
exponential, with a mean of 30 seconds. Of one decision in twenty no outcome is known, whatever offer and context.

Run as `python -m producers.datasets.logs.lookalike FOLDER`, this module writes the two files that ship.
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

from stream.wire.events import FloatArray

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
# Which column of offers.csv.gz says what.
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
    """The coefficients of P(click | x, a), for each offer."""

    base: FloatArray  # float64[K]
    device: FloatArray  # float64[K, 3]
    region: FloatArray  # float64[K, 5]
    hours: FloatArray  # float64[K]

    def click(self, visits: "Visits") -> FloatArray:
        """P(click | x, a) of every visit and offer, float64[n, K]."""
        logit = self.base + self.device.T[visits.devices] + self.region.T[visits.regions]
        return 1.0 / (1.0 + np.exp(-(logit + visits.hours[:, np.newaxis] * self.hours)))


class Visits(NamedTuple):
    """The contexts."""

    devices: NDArray[np.int64]  # [n], places in DEVICES
    regions: NDArray[np.int64]  # [n], places in REGIONS
    hours: FloatArray  # float64[n], in [0, 1], of a thousandth


def truth() -> Truth:
    """What holds in the shipped log."""
    draw = np.random.Generator(np.random.PCG64([SEED, 0]))
    return Truth(
        base=draw.normal(-2.2, 0.4, N_OFFERS),
        device=draw.normal(0.0, 0.8, (N_OFFERS, len(DEVICES))),
        region=draw.normal(0.0, 0.8, (N_OFFERS, len(REGIONS))),
        hours=draw.normal(0.0, 1.0, N_OFFERS),
    )


def visits(rows: int = ROWS) -> Visits:
    """The contexts of the shipped log."""
    draw = np.random.Generator(np.random.PCG64([SEED, 1]))
    return Visits(
        draw.choice(len(DEVICES), rows, p=(0.35, 0.5, 0.15)),
        draw.integers(0, len(REGIONS), rows),
        np.round(draw.beta(1.0, 2.0, rows), 3),
    )


def content(rows: int = ROWS) -> bytes:
    """The log as CSV."""
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
