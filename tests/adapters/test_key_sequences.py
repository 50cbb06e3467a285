"""Keys of equality deletes: which rows they name, and which files need not be read for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from icewright.adapters.engines.arrow import key_sequences
from icewright.adapters.engines.arrow.key_sequences import Bounds, KeySequences, read_key_sequences
from icewright.adapters.engines.arrow.live_deletes import LiveData, LiveDelete
from icewright.adapters.engines.arrow.opening import Opener
from icewright.adapters.engines.arrow.position_scan import PositionScan
from icewright.adapters.engines.arrow.tasks import DeleteFile, DeleteKind
from icewright.adapters.engines.arrow.types import Field, arrow_type
from icewright.adapters.engines.service.manifest_files import EQUALITY_DELETES, Entry
from icewright.core.errors import CommitConflict
from icewright.core.table import PartitionField, PartitionSpec
from icewright.testing.builders import metadata
from tests.adapters.arrow_tables import Folder, column

NUMBER, DAY, TEXT, FLOAT = (column(i, k, k) for i, k in enumerate(("long", "date", "string", "double"), 1))
EPOCH = date(1970, 1, 1)
VALUES: dict[str, Sequence[Any]] = {
    "long": [None, -(2**63), -1, 0, 7, 2**63 - 1],
    "date": [None, date(1, 1, 1), EPOCH, date(2026, 1, 2)],
    "string": [None, "", "a", "é"],
    "double": [None, float("nan"), -0.0, 0.0, 1.5],
}


def _shares(
    folder: Folder, fields: Sequence[Field], *deletes: tuple[Sequence[Sequence[Any]], int]
) -> list[KeySequences]:
    """The keys of delete files, each with its sequence number."""
    folder.of(schema={"type": "struct", "fields": list(fields)})
    files = []
    for keys, sequence in deletes:
        rows = [{f["name"]: value for f, value in zip(fields, key, strict=True)} for key in keys]
        files.append((folder.write(rows, fields), sequence))
    return list(read_key_sequences(folder.layout, Opener({}), [f["id"] for f in fields], files))


def _stored(value: Any) -> bytes:
    """A bound as manifests store it."""
    if isinstance(value, date):
        return (value - EPOCH).days.to_bytes(4, "little", signed=True)
    return bytes(value.to_bytes(8, "little", signed=True))


def _bounds(fields: Sequence[Field], rows: Sequence[Sequence[Any]], *, counts: bool) -> Bounds:
    """The bounds of a file of these rows, with null counts or without; texts and floats have none that are used."""
    found = {}
    for at, field in enumerate(fields):
        values = [row[at] for row in rows if row[at] is not None]
        nulls = len(rows) - len(values) if counts else None
        if values and field["type"] in ("long", "date"):
            found[field["id"]] = (_stored(min(values)), _stored(max(values)), nulls)
    return found


@pytest.mark.cases(144)
@pytest.mark.parametrize(
    ("keys", "bounds", "read"),
    [
        ([(1,), (30,)], (10, 20, 0), False),
        ([(1,), (10,)], (10, 20, 0), True),
        ([(20,), (30,)], (10, 20, 0), True),
        ([(1,), (None,)], (10, 20, 0), False),
        ([(1,), (None,)], (10, 20, 1), True),
        ([(1,), (None,)], (10, 20, None), True),
        ([(None,)], (10, 20, 0), False),
        ([(1,)], (None, None, None), True),
    ],
)
def test_files_whose_bounds_hold_no_key_are_not_read(
    keys: Sequence[Sequence[Any]], bounds: tuple[int | None, int | None, int | None], read: bool, tmp_path: Path
) -> None:
    """A file is read when a key lies between its bounds, or a key is null and it has nulls or does not say."""
    (share,) = _shares(Folder(tmp_path), [NUMBER], (keys, 2))
    lower, upper, nulls = bounds
    known = {1: (None if lower is None else _stored(lower), None if upper is None else _stored(upper), nulls)}
    assert share.may_match(1, known) is read
    assert not share.may_match(2, known)  # the delete is not newer than the file


def test_a_timestamp_with_bounds_of_dates_is_read(tmp_path: Path) -> None:
    """Bounds of an earlier type of the column are not compared."""
    (share,) = _shares(Folder(tmp_path), [column(1, "at", "timestamptz")], ([(datetime(2026, 1, 2, tzinfo=UTC),)], 2))
    assert share.may_match(1, {1: (_stored(EPOCH), _stored(EPOCH), 0)})
    assert not share.may_match(1, {1: (_stored(0), _stored(1), 0)})


@pytest.mark.cases(144)
@pytest.mark.parametrize("seed", range(40))
def test_rows_that_newer_deletes_name(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the keys and their part of the memory, all rows that newer deletes name are found, in files read."""
    chance, folder = Random(seed), Folder(tmp_path)
    monkeypatch.setattr(key_sequences, "_MEMORY_SHARE", chance.choice([8, 1 << 30]))
    fields = chance.sample([NUMBER, DAY, TEXT, FLOAT], chance.randrange(1, 3))

    def some(most: int) -> list[tuple[Any, ...]]:
        return [tuple(chance.choice(VALUES[f["type"]]) for f in fields) for _ in range(chance.randrange(most))]

    deletes = [(some(4), chance.randrange(1, 6)) for _ in range(3)]
    shares = _shares(folder, fields, *deletes)
    for sequence in range(6):
        rows = some(8)
        newer = {
            repr(key) for keys, number in deletes if number > sequence for key in keys
        }  # NaN is NaN, 0.0 is not -0.0
        expected = {at for at, row in enumerate(rows) if repr(row) in newer}
        arrays = {f["id"]: pa.array([r[i] for r in rows], arrow_type(f["type"])) for i, f in enumerate(fields)}
        bounds = _bounds(fields, rows, counts=chance.random() < 0.5)
        found = [s.deleted_rows(arrays, sequence).to_list() for s in shares if s.may_match(sequence, bounds)]
        assert {at for share in found for at in share} == expected


@pytest.mark.cases(144)
def test_a_file_that_is_added_again_is_a_conflict(tmp_path: Path) -> None:
    """Another delete may name its rows then; a file that stays is read once."""
    folder = Folder(tmp_path, [NUMBER])
    data, keys = folder.write([{"long": 1}, {"long": 2}]), folder.write([{"long": 2}])
    entry = Entry(1, 3, 3, b"", 1, b"")
    size = Path(keys).stat().st_size
    by_key = DeleteFile(DeleteKind.EQUALITY, keys, equality_ids=(1,))
    delete = LiveDelete(entry, "m", (0, b""), by_key, size, EQUALITY_DELETES, "PARQUET", False, None)
    scan = PositionScan(folder.layout, Opener({}), metadata(), [delete], lambda: None)
    file = LiveData(data, (0, b""), (), 1, 2, Path(data).stat().st_size, True, {1: (None, None, None)})
    for _ in range(2):
        scan.scan([file])
    assert {path: list(rows) for path, rows in scan.matched.items()} == {data: [1]}
    with pytest.raises(CommitConflict, match="added it again"):
        scan.scan([replace(file, sequence=2)])


def test_keys_by_a_dropped_partition_column_find_their_rows(tmp_path: Path) -> None:
    """Files that Hive wrote lack the column: its values are those of their partitions, as Iceberg's reader has them."""
    folder = Folder(tmp_path, [NUMBER])
    data, keys = folder.write([{"long": 1}]), folder.write([{"string": "x"}], [TEXT])
    size = Path(keys).stat().st_size
    entry = Entry(1, 3, 3, b"", 1, b"")
    by_key = DeleteFile(DeleteKind.EQUALITY, keys, equality_ids=(3,))
    delete = LiveDelete(entry, "m", (0, b""), by_key, size, EQUALITY_DELETES, "PARQUET", False, None)
    spec = PartitionSpec(0, (PartitionField(TEXT["id"], 1000, "string", "identity"),))
    base = metadata(specs=(spec,), schema={"type": "struct", "fields": [NUMBER]})
    layout = replace(folder.layout, older_fields={TEXT["id"]: TEXT})
    for value, named in (("x", {data}), ("y", set())):
        scan = PositionScan(layout, Opener({}), base, [delete], lambda: None)
        bounds = {TEXT["id"]: (None, None, None)}
        scan.scan([LiveData(data, (0, b""), (value,), 1, 1, Path(data).stat().st_size, True, bounds)])
        assert scan.matched.keys() == named
