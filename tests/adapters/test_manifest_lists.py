"""Long histories of manifest lists: what each says is found, however much of it the lists before it said."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icewright.adapters.files.local import LocalStorage
from icewright.adapters.files.manifest_lists import read_lists
from icewright.core.errors import MetadataUnreadable
from tests.examples import examples

SCHEMA = fastavro.parse_schema(
    {
        "type": "record",
        "name": "manifest_file",
        "fields": [
            {"name": "manifest_path", "type": "string", "field-id": 500},
            {"name": "manifest_length", "type": "long", "field-id": 501},
            {"name": "partition_spec_id", "type": "int", "field-id": 502},
            {"name": "added_files_count", "type": "int", "field-id": 504},
            {"name": "existing_files_count", "type": "int", "field-id": 505},
            {"name": "key_metadata", "type": ["null", "bytes"], "default": None, "field-id": 519},
        ],
    }
)
Row = dict[str, Any]


def row(number: int, key: bytes | None = None) -> Row:
    """One row, a live file for each of its number."""
    return {
        "manifest_path": f"m{number}.avro",
        "manifest_length": number + 1,
        "partition_spec_id": 0,
        "added_files_count": number,
        "existing_files_count": 0,
        "key_metadata": key,
    }


def write(path: Path, rows: list[Row], block: int = 64_000) -> None:
    """A manifest list; a block ends with the record that reaches `block` bytes."""
    with path.open("wb") as out:
        fastavro.writer(out, SCHEMA, rows, codec="deflate", sync_interval=block)


def encoded(one: Row) -> bytes:
    """The bytes of a row."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, SCHEMA, one)
    return out.getvalue()


@pytest.mark.parametrize("in_front", [True, False])
@pytest.mark.parametrize("block", [1, 60, 64_000])
def test_random_histories(tmp_path: Path, block: int, in_front: bool) -> None:
    """Whatever each commit adds and drops, wherever it puts rows: the union of all lists, and the files of each."""

    @examples(15)
    @given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.booleans()), max_size=12))
    def holds(commits: list[tuple[int, int, bool]]) -> None:
        rows: list[Row] = []
        made, lists, every = 0, dict[str, int](), set[str]()
        for number, (added, dropped, again) in enumerate(commits):
            fresh = [row(made + n) for n in range(added)]
            made += added
            rows = [] if again and number % 3 == 0 else rows[dropped:]
            rows = [*fresh, *rows] if in_front else [*rows, *fresh]
            file = tmp_path / f"{number}.avro"
            write(file, rows, block)
            lists[str(file)] = sum(r["added_files_count"] for r in rows)
            every |= {r["manifest_path"] for r in rows}
        found = read_lists(LocalStorage(), lists)
        assert sorted(found["path"]) == sorted(every)
        assert all(name == f"m{files}.avro" for name, files in found.select("path", "added_files").rows())
        for path, files in list(lists.items())[-2:]:
            with pytest.raises(MetadataUnreadable, match=rf"names {files} live files where .* counts {files + 1}"):
                read_lists(LocalStorage(), {**lists, path: files + 1})

    holds()


def test_a_list_of_neither_data_nor_deletes_is_unreadable(tmp_path: Path) -> None:
    """Deletes that nobody applies would let rows come back; the list is named."""
    path = tmp_path / "list.avro"
    fields: list[Row] = [
        {"name": "manifest_path", "type": "string", "field-id": 500},
        {"name": "manifest_length", "type": "long", "field-id": 501},
        {"name": "partition_spec_id", "type": "int", "field-id": 502},
        {"name": "content", "type": "int", "field-id": 517},
    ]
    schema = fastavro.parse_schema({"type": "record", "name": "listed", "fields": fields})
    with path.open("wb") as out:
        fastavro.writer(out, schema, [{**row(1), "content": 2}])
    with pytest.raises(MetadataUnreadable, match=r"list\.avro.*neither of data nor of deletes"):
        read_lists(LocalStorage(), {str(path): None})


def test_bytes_that_only_look_like_the_list_before(tmp_path: Path) -> None:
    """A list whose last bytes are those of the list before, inside a value of its own, is read as what it is."""
    before = [row(1)]
    twin = row(2, key=encoded(row(1)))
    after = [row(3), row(4, key=encoded(row(1)))]
    assert encoded(twin).endswith(encoded(before[0]))
    write(tmp_path / "1.avro", before)
    write(tmp_path / "2.avro", [twin])
    write(tmp_path / "3.avro", after)
    for second, names in (("2.avro", {"m1.avro", "m2.avro"}), ("3.avro", {"m1.avro", "m3.avro", "m4.avro"})):
        found = read_lists(LocalStorage(), {str(tmp_path / n): None for n in ("1.avro", second)})
        assert set(found["path"]) == names
