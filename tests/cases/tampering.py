"""Manifests and manifest lists changed as a faulty writer would have left them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import fastavro


def rewrite(path: Path, change: Callable[[list[Any]], None]) -> None:
    """Change the records of an Avro file in place."""
    with path.open("rb") as source:
        reader = fastavro.reader(source)
        records, header, schema = list(reader), dict(reader.metadata), reader.writer_schema
    change(records)
    header = {key: value for key, value in header.items() if not key.startswith("avro.")}
    with path.open("wb") as out:
        fastavro.writer(out, schema, records, codec="deflate", metadata=header)


def tamper_manifest(folder: Path, path: Path, change: Callable[[list[Any]], None]) -> None:
    """Change the entries of a manifest, and its length in all lists of the metadata folder."""
    rewrite(path, change)

    def with_length(rows: list[Any]) -> None:
        for row in rows:
            if row["manifest_path"].endswith(path.name):
                row["manifest_length"] = path.stat().st_size

    for manifest_list in folder.glob("snap-*.avro"):
        rewrite(manifest_list, with_length)


def in_map(values: list[Mapping[str, Any]], column: int, value: Any) -> list[Mapping[str, Any]]:
    """A map of an entry, by column id, with another value of one column."""
    return [{"key": pair["key"], "value": value if pair["key"] == column else pair["value"]} for pair in values]
