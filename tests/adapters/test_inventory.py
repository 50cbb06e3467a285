"""Inventories of object stores in place of a listing: S3's own shapes, and plain ones."""

from __future__ import annotations

import gzip
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from icewright.adapters.files.inventory import read_inventory
from icewright.adapters.files.local import LocalStorage
from icewright.core.errors import MetadataUnreadable, Refused

THEN = datetime(2026, 11, 1, 12, 30, tzinfo=UTC)
KEYS = ["w/t/data/a b.parquet", "w/t/data/a+b.parquet", "w/t/é%25.parquet", "w/t_archive/x.parquet", "other/y"]
RAW = """\
"lake","w/t/data/a+b.parquet","11","2026-11-01T12:30:00.000Z","STANDARD"
"lake","w/t/data/a%2Bb.parquet","11","2026-11-01T12:30:00.000Z","STANDARD"
"lake","w/t/%C3%A9%2525.parquet","11","2026-11-01T12:30:00.000Z","STANDARD"
"lake","w/t_archive/x.parquet","11","2026-11-01T12:30:00.000Z","STANDARD"
"another","w/t/data/not-here.parquet","11","2026-11-01T12:30:00.000Z","STANDARD"
"""


def found(path: Path, location: str = "s3://lake/w/t") -> list[dict[str, Any]]:
    """The rows below the location."""
    batches = read_inventory(LocalStorage(), f"file://{path}", location)
    return [row for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize(
    "form", ["raw.csv", "raw.csv.gz", "plain.csv", "times.parquet", "dashes.parquet", "texts.parquet"]
)
def test_every_form(form: str, tmp_path: Path) -> None:
    """Keys below the location come out as paths with bytes and time; siblings and other buckets do not."""
    path = tmp_path / form
    frame = pl.DataFrame({"Key": KEYS, "Size": [11] * 5, "last_modified": [THEN] * 5})
    match form:
        case "raw.csv":
            path.write_text(RAW)
        case "raw.csv.gz":
            path.write_bytes(gzip.compress(RAW.encode()))
        case "plain.csv":
            frame.with_columns(pl.col("last_modified").dt.strftime("%Y-%m-%dT%H:%M:%SZ")).write_csv(path)
        case "times.parquet":
            frame.write_parquet(path)
        case "dashes.parquet":
            frame.rename({"last_modified": "Last-Modified"}).write_parquet(path)
        case "texts.parquet":
            frame.with_columns(pl.col("last_modified").dt.strftime("%Y-%m-%dT%H:%M:%S.000Z")).write_parquet(path)
    assert found(path) == [{"path": f"s3://lake/{key}", "bytes": 11, "modified": THEN} for key in KEYS[:3]]


def test_a_folder_of_files(tmp_path: Path) -> None:
    """All files of a folder together are the inventory."""
    for number in range(3):
        row = {"key": [f"w/t/{number}"], "size": [1], "last_modified_date": [THEN]}
        pl.DataFrame(row).write_parquet(tmp_path / f"{number}.parquet")
    (tmp_path / "manifest.checksum").write_text("x")
    assert [row["path"] for row in found(tmp_path)] == [f"s3://lake/w/t/{n}" for n in range(3)]


def test_a_time_that_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    """Without a time nobody knows how old a file is: null, which keeps it."""
    frame = pl.DataFrame({"key": ["w/t/a"], "size": [1], "last_modified": ["yesterday"]})
    frame.write_parquet(tmp_path / "i.parquet")
    assert found(tmp_path / "i.parquet")[0]["modified"] is None


@pytest.mark.parametrize("content", [b"PAR1 but broken", b""])
def test_what_is_no_inventory(content: bytes, tmp_path: Path) -> None:
    """A broken file, one of another place or without the columns and a folder without any are errors with the name."""
    (tmp_path / "broken.parquet").write_bytes(content)
    with pytest.raises(MetadataUnreadable, match=r"broken\.parquet"):
        found(tmp_path / "broken.parquet")
    (tmp_path / "empty").mkdir()
    with pytest.raises(MetadataUnreadable, match="no inventory"):
        found(tmp_path / "empty")
    (tmp_path / "secrets.csv").write_text("key,size,last_modified_date\nroot:hush\n", encoding="utf-8")
    with pytest.raises(MetadataUnreadable, match=r"secrets\.csv: not a readable inventory \(ArrowInvalid\)"):
        found(tmp_path / "secrets.csv")  # and none of its lines is quoted
    pl.DataFrame({"key": ["w/other"], "size": [1], "last_modified": [THEN]}).write_parquet(tmp_path / "other.parquet")
    with pytest.raises(Refused, match="no file below s3://lake/w/t"):
        found(tmp_path / "other.parquet")
    pl.DataFrame({"name": ["w/t/a"]}).write_parquet(tmp_path / "columns.parquet")
    with pytest.raises(MetadataUnreadable, match="key, size"):
        found(tmp_path / "columns.parquet")
