"""Measure the speed and memory use of reading decision logs.

    python benchmarks/log_reading.py [--rows 1000000] [--format parquet|jsonl|csv] [--own-ids]

Generates a log in a temporary folder: 20 actions, three numeric and three categorical columns (75 features in total),
times, propensities, rewards and delays. A separate process reads the log, and prints the CPU time of the first pass,
the rows per second of CPU time, and the maximum resident memory. With --own-ids, event ids are read from the log and
checked for duplicates. This script requires Linux, because it reads the memory use from /proc.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
from pyarrow import csv, parquet

from producers.datasets.logs.mapping import mapping_of
from producers.datasets.logs.reading import open_log

CHUNK_ROWS = 100_000
MAPPING = {
    "timestamp": "timestamp", "action": "action", "propensity": "propensity", "reward": "reward", "delay": "delay_ms",
    "features": {"numeric": ["price", "age", "score"], "categorical": ["country", "device", "hour"]},
}  # fmt: skip


def chunk(first_row: int) -> pa.Table:
    draw = np.random.Generator(np.random.PCG64(first_row))
    n = CHUNK_ROWS
    start_ms = 1_700_000_000_000 + first_row * 50
    return pa.table(
        {
            "id": [f"event-{first_row + row:09}" for row in range(n)],
            "timestamp": start_ms + np.arange(n) * 50,
            "action": [f"a{number}" for number in draw.integers(0, 20, n).tolist()],
            "propensity": np.full(n, 0.05),
            "reward": draw.integers(0, 2, n),
            "delay_ms": draw.integers(0, 9_999, n),
            "price": draw.normal(size=n).round(3),
            "age": draw.integers(18, 80, n),
            "score": draw.random(n).round(4),
            "country": [f"c{number}" for number in draw.integers(0, 45, n).tolist()],
            "device": [f"d{number}" for number in draw.integers(0, 3, n).tolist()],
            "hour": draw.integers(0, 24, n),
        }
    )


def generate(path: Path, rows: int, kind: str) -> None:
    chunks = (chunk(first_row) for first_row in range(0, rows, CHUNK_ROWS))
    if kind == "jsonl":
        with path.open("wb") as file:
            for table in chunks:
                file.write(b"".join(orjson.dumps(row) + b"\n" for row in table.to_pylist()))
        return
    schema = chunk(0).schema
    with parquet.ParquetWriter(path, schema) if kind == "parquet" else csv.CSVWriter(path, schema) as writer:
        for table in chunks:
            writer.write_table(table)


def read(path: Path, *, own_ids: bool) -> None:
    started_s = time.process_time()
    log = open_log(path, mapping_of({**MAPPING, "id": "id"} if own_ids else MAPPING, "of the benchmark"))
    opened_s = time.process_time()
    rows = sum(len(batch.ids) for batch in log.batches())
    rate = rows / (time.process_time() - opened_s)
    # `getrusage` is not used, because it also counts the memory that the parent used when it started this process.
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    resident_mb = int(status["VmHWM"].split()[0]) / 1_024
    sys.stdout.write(
        f"{log.format}: {rows:,} rows, first pass {opened_s - started_s:.1f} s, then {rate:,.0f} rows/s, "
        f"{resident_mb:.0f} MB resident\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--format", choices=("parquet", "jsonl", "csv"), default="parquet")
    parser.add_argument("--own-ids", action="store_true")
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.read is not None:
        read(given.read, own_ids=given.own_ids)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        generate(path, given.rows, given.format)
        flags = ["--own-ids"] if given.own_ids else []
        subprocess.run([sys.executable, __file__, "--read", path, *flags], check=True)


if __name__ == "__main__":
    main()
