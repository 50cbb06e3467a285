"""Manifests and manifest lists changed as a faulty writer would have left them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import fastavro


def unchanged(_: Any) -> None:
    """Change nothing."""


def rewrite(
    path: Path, change: Callable[[list[Any]], None] = unchanged, schema: Callable[[dict[str, Any]], None] = unchanged
) -> None:
    """Change the records of an Avro file and its schema in place."""
    with path.open("rb") as source:
        reader = fastavro.reader(source)
        records, header, written = list(reader), dict(reader.metadata), json.loads(reader.metadata["avro.schema"])
    change(records)
    schema(written)
    header = {key: value for key, value in header.items() if not key.startswith("avro.")}
    with path.open("wb") as out:
        fastavro.writer(out, written, records, codec="deflate", metadata=header)


def tamper_manifest(
    folder: Path,
    path: Path,
    change: Callable[[list[Any]], None] = unchanged,
    schema: Callable[[dict[str, Any]], None] = unchanged,
) -> None:
    """Change the entries of a manifest and its schema, and its length in all lists of the metadata folder."""
    rewrite(path, change, schema)

    def with_length(rows: list[Any]) -> None:
        for row in rows:
            if row["manifest_path"].endswith(path.name):
                row["manifest_length"] = path.stat().st_size

    for manifest_list in folder.glob("snap-*.avro"):
        rewrite(manifest_list, with_length)


def in_map(values: list[Mapping[str, Any]], column: int, value: Any) -> list[Mapping[str, Any]]:
    """A map of an entry, by column id, with another value of one column."""
    return [{"key": pair["key"], "value": value if pair["key"] == column else pair["value"]} for pair in values]
