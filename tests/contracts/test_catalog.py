"""What every catalog does: list its tables and load them. See `icewright.ports.Catalog`."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.table.metadata import TableMetadataV2

from icewright.adapters.metadata.parsing import parse
from icewright.core.errors import MetadataUnreadable, TableNotFound
from icewright.core.table import MAIN, RefKind, TableMetadata, TableRef
from icewright.ports import Catalog, Pointer, RemoveSnapshots
from icewright.testing.contracts import CatalogTests
from icewright.testing.contracts.catalog import MakeTable
from tests.contracts.bench import Bench, any_name, deep, edit, file_of, json_of, only_sql
from tests.contracts.nessie_bench import NessieBench
from tests.examples import examples

ODD_NAMES = [
    "with space",
    "a.b",
    "it's",
    'dou"ble',
    "back`tick",
    "grün-表-é",
    "e\u0301",
    "100%",
    "%20",
    "%s :name",
    "x; DROP TABLE iceberg_tables; --",
    "_under",
    "UPPER",
    "\\",
]


class TestCatalog(CatalogTests):
    """Each catalog passes the suite of its port."""

    @pytest.fixture(autouse=True)
    def _removes(self, bench: Bench) -> None:
        self.removes = not isinstance(bench, NessieBench)

    @pytest.fixture
    def catalog(self, bench: Bench) -> Catalog:
        """Return the client of the catalog under test."""
        client: Catalog = bench.catalog
        return client

    @pytest.fixture
    def make_table(self, bench: Bench) -> MakeTable:
        """Return the maker of tables whose snapshots are an hour apart."""
        return bench.craft


def test_lists_tables_with_their_metadata_files(bench: Bench) -> None:
    """A pointer is a table's name and the metadata file that PyIceberg names as current."""
    tables = [bench.create("sales", name) for name in ("orders", "payments")]
    assert sorted(bench.catalog.pointers(), key=lambda p: p.ref) == [
        Pointer(bench.ref("sales", name), table.metadata_location)
        for name, table in zip(("orders", "payments"), tables, strict=True)
    ]


@only_sql
def test_views_are_not_listed(bench: Bench) -> None:
    """Rows of type VIEW are left out; TABLE and no type at all are tables."""
    location = bench.create("sales", "typed").metadata_location
    bench.insert("sales", "untyped", location)
    bench.insert("sales", "report", location.replace(".metadata.json", ".view.json"), iceberg_type="VIEW")
    assert {p.ref.name for p in bench.catalog.pointers()} == {"typed", "untyped"}


@only_sql
def test_listings_follow_names(bench: Bench) -> None:
    """A table that was renamed since the last listing has its new name; one that is as it was is the same object."""
    bench.create("sales", "orders")
    (before,) = bench.catalog.pointers()
    assert bench.catalog.pointers()[0] is before
    bench.execute("UPDATE iceberg_tables SET table_namespace = 'sold'")
    assert [p.ref for p in bench.catalog.pointers()] == [bench.ref("sold", "orders")]
    bench.execute("UPDATE iceberg_tables SET table_name = 'kept'")
    assert [p.ref for p in bench.catalog.pointers()] == [bench.ref("sold", "kept")]


@only_sql
def test_other_catalogs_in_the_database_are_not_listed(bench: Bench) -> None:
    """The catalog's name is part of the key: another catalog's tables are neither listed nor loaded."""
    bench.create("sales", "orders")
    bench.execute("UPDATE iceberg_tables SET catalog_name = 'pond'")
    assert not bench.catalog.pointers()
    with pytest.raises(TableNotFound):
        bench.catalog.load(bench.ref("sales", "orders"))


@only_sql
def test_a_row_without_metadata_file_is_not_listed(bench: Bench) -> None:
    """Some clients insert the row before the table: it is none yet."""
    bench.insert("sales", "unborn", None)
    assert not bench.catalog.pointers()
    with pytest.raises(TableNotFound, match="unborn"):
        bench.catalog.load(bench.ref("sales", "unborn"))


@deep
def test_nested_namespaces(bench: Bench) -> None:
    """A namespace of several levels is read back with its levels, and tables of one name are kept apart."""
    deep = bench.create("eu", "sales", "2026", "orders").metadata.table_uuid
    flat = bench.create("eu", "orders").metadata.table_uuid
    found = {p.ref: bench.catalog.load(p.ref).table_uuid for p in bench.catalog.pointers()}
    assert found == {bench.ref("eu", "sales", "2026", "orders"): str(deep), bench.ref("eu", "orders"): str(flat)}


@any_name
@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_table_names(bench: Bench, name: str) -> None:
    """A name of any characters is listed as it is, can be typed as it is printed, and loads its own table."""
    table, other = bench.create("odd", name), bench.create("odd", "other")
    refs = {p.ref for p in bench.catalog.pointers()}
    assert refs == {bench.ref("odd", name), bench.ref("odd", "other")}
    ref = TableRef.parse(str(bench.ref("odd", name)))
    assert bench.catalog.load(ref).table_uuid == str(table.metadata.table_uuid) != str(other.metadata.table_uuid)


@any_name
@pytest.mark.parametrize("name", [name for name in ODD_NAMES if name != "a.b"])
def test_odd_namespaces(bench: Bench, name: str) -> None:
    """A namespace with odd signs is listed and read, too."""
    table = bench.create(name, "orders")
    (pointer,) = bench.catalog.pointers()
    assert pointer.ref == bench.ref(name, "orders")
    assert bench.catalog.load(pointer.ref).table_uuid == str(table.metadata.table_uuid)


@only_sql
def test_a_dot_in_a_namespace(bench: Bench) -> None:
    """The database cannot tell a level with a dot from two levels: what is listed loads all the same."""
    table = bench.create("a.b", "orders")
    (pointer,) = bench.catalog.pointers()
    assert bench.catalog.load(pointer.ref).table_uuid == str(table.metadata.table_uuid)


@only_sql
def test_a_name_that_not_every_database_takes(bench: Bench) -> None:
    """The state may be in PostgreSQL, which refuses NUL: the table is listed by a name that can be written down."""
    if bench.database.dialect.name == "sqlite":
        bench.insert("sa\0les", "or\0ders", "file:///w/\0.metadata.json")
        (pointer,) = bench.catalog.pointers()
        assert (pointer.ref, pointer.metadata_location) == (
            bench.ref("sa\ufffdles", "or\ufffdders"),
            "file:///w/\ufffd.metadata.json",
        )


@only_sql
def test_schema_v0_without_types(bench: Bench) -> None:
    """Tables of the older schema, which has no column `iceberg_type`, are listed, loaded and committed to."""
    base = bench.craft("sales.orders")
    bench.start_over("V0")
    bench.insert("sales", "orders", base.metadata_location)
    assert [p.metadata_location for p in bench.catalog.pointers()] == [base.metadata_location]
    loaded = bench.catalog.load(base.ref)
    assert loaded == base
    after = bench.catalog.commit(loaded, RemoveSnapshots(frozenset({base.snapshots[0].snapshot_id}), frozenset()))
    assert bench.rows()["sales", "orders"] == (after.metadata_location, base.metadata_location)


def test_loads_what_pyiceberg_loads(bench: Bench) -> None:
    """Snapshots, refs, properties, specs and places are those that PyIceberg reads from the same file."""
    bench.craft("sales.orders", 3)
    table = bench.read("sales", "orders")
    first = table.snapshots()[0].snapshot_id
    table.manage_snapshots().create_tag(first, "v1", max_ref_age_ms=5000).create_branch(first, "dev").commit()
    table.transaction().set_properties({"owner": "me"}).commit_transaction()
    loaded, theirs = bench.catalog.load(bench.ref("sales", "orders")), bench.read("sales", "orders").metadata
    assert (loaded.table_uuid, loaded.location) == (str(theirs.table_uuid), theirs.location)
    assert isinstance(theirs, TableMetadataV2)
    assert (loaded.format_version, loaded.last_sequence_number) == (2, theirs.last_sequence_number)
    assert loaded.metadata_length == file_of(loaded.metadata_location).stat().st_size
    assert dict(loaded.properties) == theirs.properties | bench.overlaid
    assert [s.snapshot_id for s in loaded.snapshots] == [s.snapshot_id for s in theirs.snapshots]
    assert [s.manifest_list for s in loaded.snapshots] == [s.manifest_list for s in theirs.snapshots]
    assert [s.parent_id for s in loaded.snapshots] == [s.parent_snapshot_id for s in theirs.snapshots]
    assert loaded.current_snapshot_id == theirs.current_snapshot_id
    assert {r.name: r.snapshot_id for r in loaded.refs} == {n: r.snapshot_id for n, r in theirs.refs.items()}
    (tag,) = (r for r in loaded.refs if r.kind is RefKind.TAG)
    assert (tag.name, tag.max_ref_age and tag.max_ref_age.total_seconds()) == ("v1", 5)
    assert list(loaded.metadata_log) == [entry.metadata_file for entry in theirs.metadata_log]
    assert loaded.log_since == datetime.fromtimestamp(theirs.metadata_log[0].timestamp_ms / 1000, UTC)


@only_sql
def test_an_empty_table_has_no_snapshot(bench: Bench) -> None:
    """A table that nobody wrote to has no current snapshot and no ref; older writers say -1."""
    table = bench.create("sales", "orders")
    edit(table.metadata_location, current_snapshot_id=-1)
    loaded = bench.catalog.load(bench.ref("sales", "orders"))
    assert (loaded.current_snapshot, loaded.current_snapshot_id, loaded.refs) == (None, None, ())


@only_sql
def test_main_is_the_current_snapshot_where_no_ref_says_so(bench: Bench) -> None:
    """Metadata of older writers has no refs: main is the current snapshot."""
    base = bench.craft("sales.orders", 2)
    document = json_of(base.metadata_location)
    del document["refs"]
    file_of(base.metadata_location).write_text(json.dumps(document), encoding="utf-8")
    (ref,) = bench.catalog.load(base.ref).refs
    assert (ref.name, ref.snapshot_id) == (MAIN, base.current_snapshot_id)


def _cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def _flip(content: bytes) -> bytes:
    zipped = bytearray(gzip.compress(content))
    zipped[len(zipped) // 2] ^= 0xFF
    return bytes(zipped)


BROKEN: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "truncated": _cut,
    "without its last byte": lambda content: content[:-1],
    "not JSON": lambda _: b"PAR1\x00\xff\xfe",
    "not text": lambda content: content.replace(b"location", b"loc\xff\xfetion"),
    "a list": lambda _: b"[]",
    "a word": lambda _: b"null",
    "foreign JSON": lambda _: b'{"version": 1, "commitInfo": {}}',
    "a view": lambda _: b'{"view-uuid": "x", "format-version": 1, "location": "file:///x", "versions": []}',
    "truncated gzip": lambda content: _cut(gzip.compress(content)),
    "broken gzip": _flip,
    "nonsense that begins like gzip": lambda content: gzip.compress(content)[:10] + b"\xff" * 40,
    "bottomless": lambda _: b'{"a":' * 100_000,
}


@only_sql
@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_metadata_file_is_named(bench: Bench, how: str) -> None:
    """A metadata file that cannot be read as one is an error with its path, never a half-read table."""
    location = bench.create("sales", "orders").metadata_location
    file_of(location).write_bytes(BROKEN[how](file_of(location).read_bytes()))
    with pytest.raises(MetadataUnreadable) as caught:
        bench.catalog.load(bench.ref("sales", "orders"))
    assert location in str(caught.value)


@only_sql
def test_a_missing_metadata_file_is_named(bench: Bench) -> None:
    """So is one that is gone."""
    location = bench.create("sales", "orders").metadata_location
    file_of(location).unlink()
    with pytest.raises(MetadataUnreadable) as caught:
        bench.catalog.load(bench.ref("sales", "orders"))
    assert location in str(caught.value)


def _is_whole(metadata: TableMetadata) -> bool:
    return all(getattr(metadata, f.name) is not Ellipsis for f in fields(metadata))


@examples(150)
@given(data=st.data())
def test_wrong_values_are_named(data: st.DataObject) -> None:
    """A value of a wrong type anywhere in the file is an error with its path, or it does not matter."""
    document: Any = json.loads(json.dumps(_DOCUMENT))
    at: Any = document
    while True:
        key = data.draw(st.sampled_from(sorted(at) if isinstance(at, dict) else list(range(len(at)))))
        if not at[key] or not isinstance(at[key], dict | list) or data.draw(st.booleans()):
            break
        at = at[key]
    at[key] = data.draw(st.sampled_from([None, "x", "", -1, 1 << 62, 1.5, 1e300, [], [1], ["x"], {}, {"a": 1}, True]))
    ref = TableRef("lake", ("sales",), "orders")
    try:
        assert _is_whole(parse(ref, "file:///there.metadata.json", json.dumps(document).encode()))
    except MetadataUnreadable as error:
        assert "file:///there.metadata.json" in str(error)  # noqa: PT017 - either outcome is right


_DOCUMENT: dict[str, Any] = {
    "format-version": 2,
    "table-uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1",
    "location": "file:///t",
    "last-sequence-number": 1,
    "last-updated-ms": 1_600_000_000_000,
    "last-column-id": 1,
    "schemas": [{"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "x", "type": "long"}]}],
    "current-schema-id": 0,
    "partition-specs": [
        {"spec-id": 0, "fields": [{"source-id": 1, "field-id": 1000, "name": "x", "transform": "identity"}]}
    ],
    "default-spec-id": 0,
    "sort-orders": [{"order-id": 1, "fields": [{"source-id": 1, "transform": "identity", "direction": "asc"}]}],
    "default-sort-order-id": 1,
    "properties": {"a": "b"},
    "current-snapshot-id": 7,
    "refs": {"main": {"snapshot-id": 7, "type": "branch", "max-ref-age-ms": 1}},
    "snapshots": [
        {
            "snapshot-id": 7,
            "timestamp-ms": 1_600_000_000_000,
            "sequence-number": 1,
            "summary": {"operation": "append"},
            "manifest-list": "file:///l",
        }
    ],
    "metadata-log": [{"metadata-file": "file:///m", "timestamp-ms": 1}],
    "statistics": [{"snapshot-id": 7, "statistics-path": "file:///s", "file-size-in-bytes": 1}],
}
