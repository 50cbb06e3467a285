"""Which delete files apply to a data file where rows are looked for, to be erased."""

from __future__ import annotations

from typing import Any

import pytest

from icewright.adapters.engines.service.content_file import ContentFile
from icewright.adapters.engines.service.row_search import applies

DATA, POSITIONS, KEYS = 0, 1, 2


def _file(content: int, sequence: int, partition: Any, spec_id: int = 0) -> ContentFile:
    values = {100: f"{content}.parquet", 101: "PARQUET", 102: {"p": float(partition)}, 134: content}
    return ContentFile("m.avro", spec_id, 1, sequence, values)


@pytest.mark.parametrize("content", [POSITIONS, KEYS])
@pytest.mark.parametrize(
    ("of_data", "of_delete", "apply"),
    [("1", "1", True), ("1", "2", False), ("nan", "nan", True), ("0.0", "-0.0", False), ("-0.0", "-0.0", True)],
)
def test_deletes_apply_to_files_of_their_partition(content: int, of_data: str, of_delete: str, apply: bool) -> None:
    """NaN is one partition, though not equal to itself; zeros of both signs are two, though equal."""
    assert applies(_file(content, 2, of_delete), _file(DATA, 1, of_data), ()) is apply


def test_equality_deletes_without_a_partition_apply_everywhere() -> None:
    """So do those of a spec whose fields were all dropped, which still has a value for each: null."""
    delete, data = _file(KEYS, 2, "1", spec_id=1), _file(DATA, 1, "2")
    assert applies(delete, data, {1})
    assert not applies(delete, data, {2})
    assert not applies(delete, _file(DATA, 2, "2"), {1})
    assert not applies(_file(POSITIONS, 2, "1", spec_id=1), data, {1})
