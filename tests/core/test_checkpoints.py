"""Which snapshot is pinned for a Spark stream, by the offsets in its checkpoint."""

from __future__ import annotations

import json

import pytest

from icewright.core.checkpoints import snapshot_to_pin, source_offsets
from icewright.core.errors import UsageError
from icewright.testing.builders import lineage, metadata, snapshot

HISTORY = metadata(snapshots=lineage((9, 8, 7, 6), first_id=3))
EMPTY = metadata(())


def offset(number: int) -> str:
    """Iceberg's offset at a snapshot."""
    return json.dumps({"version": 1, "snapshot_id": number, "position": 0, "scan_all_files": False})


def batch(*offsets: str) -> str:
    """Spark's log of a batch, with the offset of each source."""
    return "\n".join(("v1", "{}", *offsets))


@pytest.mark.cases(142)
@pytest.mark.parametrize(
    ("first", "done", "available_now", "processing_time"),
    [
        ({0: offset(3)}, None, 3, 3),
        ({0: offset(3)}, batch(offset(5)), 3, 5),
        ({0: offset(-1)}, None, 3, 3),
        ({0: offset(-1)}, batch(offset(5)), 5, 5),
        ({0: offset(-1)}, batch(offset(-1)), 3, 3),
        ({0: offset(4)}, batch("-"), 4, 4),
        ({0: offset(4)}, "v1", 4, 4),
        ({1: offset(4)}, batch('{"topic":{"0":7}}', offset(5)), 4, 5),
        ({1: offset(4)}, batch('{"path":"a\u2028b"}', offset(5)), 4, 5),
        ({0: offset(71), 1: offset(4)}, batch(offset(72), offset(5)), 4, 5),
        ({0: offset(5), 1: offset(4)}, batch(offset(6), offset(4)), 4, 4),
    ],
)
def test_the_oldest_snapshot_that_a_stream_needs(
    first: dict[int, str], done: str | None, available_now: int, processing_time: int
) -> None:
    """The stream goes on from the newest batch that is done, and with AvailableNow plans from its first offset."""
    sources = source_offsets(first, "offsets/7", done)
    assert snapshot_to_pin(HISTORY, sources, available_now=True) == available_now
    assert snapshot_to_pin(HISTORY, sources, available_now=False) == processing_time


@pytest.mark.cases(142)
@pytest.mark.parametrize(
    ("first", "done", "words"),
    [
        ({0: offset(1)}, batch(offset(2)), "has no snapshot that the stream goes on from (2): it has expired"),
        ({0: offset(1)}, batch(offset(5)), "has no snapshot 1 any more, from which Trigger.AvailableNow plans"),
        ({0: '{"topic":{}}'}, None, "(of no Iceberg table)"),
        ({0: "not JSON"}, None, "(of no Iceberg table)"),
        ({0: offset(3)}, "v9\n{}\n" + offset(3), "offsets/7 has the version 'v9' and not 'v1'"),
        ({0: offset(3)}, "cut", "offsets/7 has the version 'cut' and not 'v1'"),
        ({0: offset(9), 1: offset(5)}, batch(offset(3), offset(5)), "has no snapshot 9 any more"),
    ],
)
def test_streams_that_cannot_go_on(first: dict[int, str], done: str | None, words: str) -> None:
    """A stream whose snapshot is gone needs a new checkpoint, and is told so."""
    with pytest.raises(UsageError) as refused:
        snapshot_to_pin(HISTORY, source_offsets(first, "offsets/7", done), available_now=True)
    assert words in str(refused.value)


@pytest.mark.cases(142)
def test_nothing_to_pin() -> None:
    """An empty table has nothing to pin, and snapshots of two histories have no oldest one."""
    with pytest.raises(UsageError, match="has no snapshot yet"):
        snapshot_to_pin(EMPTY, source_offsets({0: offset(-1)}, "", None), available_now=True)
    forked = metadata(snapshots=(*lineage((3, 2), first_id=3), snapshot(5, age=1, parent_id=3)))
    with pytest.raises(UsageError, match="of the snapshots 4, 5 none is before all others"):
        snapshot_to_pin(forked, source_offsets({0: offset(4)}, "", batch(offset(5))), available_now=True)
