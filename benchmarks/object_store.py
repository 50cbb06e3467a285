"""Snapshot expiry on an object store that is far away, against Spark's procedure.

Prints one JSON line. The store is versitygw, which is built once by Go, behind a relay that holds each request for
30 ms: as long as one takes on its way to a store and back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.expire_snapshots import Shape, compare
from benchmarks.kit.bench import bench, options
from benchmarks.kit.report import Comparison
from tests.s3 import versitygw
from tests.servers.relay import relay

DELAY = 0.03  # seconds


@contextmanager
def far_store(folder: Path) -> Iterator[Mapping[str, str]]:
    """Serve the folder as long as the block lasts; the properties of a catalog that lead to it through the relay."""
    with versitygw(folder) as s3, relay(urlsplit(s3["s3.endpoint"]).port or 0, DELAY) as before:
        yield {**s3, "s3.endpoint": f"http://127.0.0.1:{before.port}"}


def main() -> None:
    """Seed, measure, print."""
    chosen = options(__doc__, "200 snapshots instead of 500").parse_args()
    shape = Shape("far", 200 if chosen.quick else 500, 10)
    with bench(chosen, store=far_store) as sides:
        saved = shape.seed(sides.lake, chosen.layout)

        def compared() -> Comparison:
            found = compare(shape, saved, sides)
            return replace(found, benchmark="object_store", shape=f"{shape}; {DELAY * 1000:g} ms for each request")

        sides.add(compared)


if __name__ == "__main__":
    main()
