"""Checks whose rows Spark reads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from icewright.adapters.engines.checking import _Rows
from icewright.adapters.engines.service.content_file import ContentFile
from icewright.core.errors import EngineUnavailable
from icewright.core.integrity import FileFaultKind


def test_executors_that_cannot_read_most_files_are_at_fault() -> None:
    """The error quotes what an executor met at the first file that it could not read, not at the first of all."""
    unreadable = [(n, [(FileFaultKind.UNREADABLE, f"file {n}: no route")], None) for n in range(1, 102)]
    spark = SimpleNamespace(read_rows=lambda *_: ([(0, [], None), *unreadable], 0.0))
    checking: Any = SimpleNamespace(spark=spark)
    base: Any = SimpleNamespace(ref="lake.shop.orders")
    check: Any = None
    files = [ContentFile("m", 0, 1, 1, {100: f"{n}.parquet", 104: 1}) for n in range(102)]
    with pytest.raises(EngineUnavailable, match=r"lake.shop.orders: executors cannot read 101 files: file 1: no route"):
        list(_Rows(checking, base, "tag", lambda: None, by_spark=True).read(check, files))
