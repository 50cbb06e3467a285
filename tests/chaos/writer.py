"""A live writer: appends to random tables until its input ends, and prints each commit that landed."""

from __future__ import annotations

import json
import random
import sys
import threading
from pathlib import Path

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException

from tests.chaos.fleet import NAMESPACE, Fleet


def main() -> None:
    """Arguments: the fleet's folder, how many tables it has, the first id to write, a seed."""
    home, tables, first, seed = Path(sys.argv[1]), *(int(a) for a in sys.argv[2:])
    asked = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), asked.set()), daemon=True).start()  # type: ignore[func-returns-value]
    rng, catalog, number = random.Random(seed), Fleet(home).catalog(), first
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while not asked.wait(0.2):
        name = f"t{rng.randrange(tables):03d}"
        try:
            table = catalog.load_table((NAMESPACE, name))
            table.append(pa.table({"id": pa.array([number], pa.int64())}))
        except CommitFailedException:
            continue  # somebody else was first: nothing was written
        sys.stdout.write(json.dumps([name, number]) + "\n")
        sys.stdout.flush()
        number += 1


if __name__ == "__main__":
    main()
