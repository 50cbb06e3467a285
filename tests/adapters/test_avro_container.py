"""Containers of records that are bytes already are read by others."""

from __future__ import annotations

import io

import fastavro
import pytest

from icewright.adapters.engines.service.avro_records import container


@pytest.mark.parametrize("count", [0, 1, 3, 20_000])
def test_containers_are_read_by_others(count: int) -> None:
    """Another reader finds every record in its order, over several blocks too, and the header's own properties."""
    schema = {"type": "record", "name": "r", "fields": [{"name": "n", "type": "long"}, {"name": "t", "type": "string"}]}
    records = []
    for number in range(count):
        out = io.BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema(schema), {"n": number, "t": "é" * (number % 9)})
        records.append(out.getvalue())
    found = fastavro.reader(io.BytesIO(container(schema, {"format-version": "2"}, records)))
    assert found.metadata["format-version"] == "2"
    assert [(r["n"], r["t"]) for r in found if isinstance(r, dict)] == [(n, "é" * (n % 9)) for n in range(count)]
