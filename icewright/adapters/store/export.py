"""The ledger of one job as a Parquet file, for whoever wants to keep or query what was deleted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet

_SCHEMA = pa.schema(
    [
        ("job_id", pa.string()),
        ("table", pa.string()),
        ("path", pa.string()),
        ("bytes", pa.int64()),
        ("kind", pa.string()),
        ("state", pa.string()),
        ("planned_at", pa.timestamp("us", "UTC")),
        ("settled_at", pa.timestamp("us", "UTC")),
        ("delete_after", pa.timestamp("us", "UTC")),
        ("reason", pa.string()),
    ]
)


def write_ledger(folder: Path, job_id: str, rows: Iterable[Mapping[str, Any]]) -> Path:
    """Return the rows as `<job id>.parquet`, whole or not at all. Raises `OSError`."""
    folder.mkdir(parents=True, exist_ok=True)
    target, fresh = folder / f"{job_id}.parquet", folder / f".{uuid4().hex}.tmp"
    try:
        pa.parquet.write_table(pa.Table.from_pylist(list(rows), _SCHEMA), fresh, compression="zstd")
        fresh.rename(target)
    finally:
        fresh.unlink(missing_ok=True)
    return target
