"""Facts and evaluations as JSON."""

from __future__ import annotations

import json
from datetime import date, timedelta

import pytest

from icewright.core.describe import (
    SHOWN_PARTITIONS,
    evaluation_document,
    facts_document,
    facts_summary,
    verdict_document,
)
from icewright.core.effective import Knobs
from icewright.core.policy import MEGABYTE, Operation
from icewright.core.steps import Blocked, Due, NotDue, Unsupported, Verdict, Work
from icewright.core.table import RefKind, SnapshotRef
from icewright.core.verdicts import evaluate
from icewright.testing import LOCATION, NOW, UUID, facts, manifests, metadata, partition, spec

DAYS = metadata(specs=(spec(ts="day"),), refs=[SnapshotRef("v1", RefKind.TAG, 1)])
TABLE = facts(
    partition(date(2026, 11, 20), files=10, deletion_vectors=2, deleted_rows=2500),
    partition(date(2026, 11, 21), files=2, mb=600, last_write=None),
    of=DAYS,
    manifests_of=[manifests(3, mb=1)],
)


def test_summary() -> None:
    """The counts that every run shows before and after."""
    assert facts_summary(TABLE) == {
        "snapshot_id": 2,
        "files": 12,
        "bytes": 1210 * MEGABYTE,
        "records": 12_000,
        "delete_files": 2,
        "deleted_rows": 2500,
        "partitions": 2,
        "manifests": 3,
        "manifest_bytes": 3 * MEGABYTE,
        "snapshots": 2,
        "refs": {"main": "branch", "v1": "tag"},
        "metadata_bytes": 10_000,
        "format_version": 2,
        "last_updated": "2026-11-21T10:00:00+00:00",
    }


def test_document() -> None:
    """File sizes by bucket, and the partitions that have most to gain first."""
    document = facts_document(TABLE)
    assert document["target_file_size_bytes"] == 512 * MEGABYTE
    assert document["file_sizes"] == {"<8MB": 10, "<1024MB": 2}
    worst = document["worst_partitions"]
    assert [p["partition"] for p in worst] == ["ts_0=2026-11-20", "ts_0=2026-11-21"]
    assert worst[0]["deleted_ratio"] == 0.25
    assert [p["last_write"] for p in worst] == ["2026-11-20T12:00:00+00:00", None]


def test_only_the_worst_partitions_are_shown() -> None:
    """A table of thousands of partitions has a document of bounded size."""
    many = facts(*(partition(i, files=i) for i in range(100)), of=metadata(specs=(spec(id="identity"),)))
    shown = facts_document(many)["worst_partitions"]
    assert [p["files"] for p in shown] == list(range(99, 99 - SHOWN_PARTITIONS, -1))


@pytest.mark.parametrize(
    ("verdict", "document"),
    [
        (
            Due(Work(Operation.COMPACT, (), ("a note",)), 12.34567, 0.12345678, "many files"),
            {
                "verdict": "due",
                "reason": "many files",
                "benefit_mb": 12.346,
                "cost_gb_hours": 0.123457,
                "steps": 0,
                "notes": ["a note"],
            },
        ),
        (NotDue("nothing"), {"verdict": "not_due", "reason": "nothing"}),
        (
            NotDue("hot", NOW + timedelta(hours=1)),
            {"verdict": "not_due", "reason": "hot", "revisit": "2026-11-21T13:00:00+00:00"},
        ),
        (Blocked("gc"), {"verdict": "blocked", "reason": "gc"}),
        (Unsupported("v4"), {"verdict": "unsupported", "reason": "v4"}),
    ],
)
def test_verdicts(verdict: Verdict, document: dict[str, object]) -> None:
    """Each verdict has its name and reason, a due one its worth, one that waits its time."""
    assert verdict_document("compact", verdict) == {"operation": "compact", **document}


def test_an_evaluation_is_json() -> None:
    """What `icewright health --json` prints has the specified keys, and is JSON indeed."""
    document = evaluation_document(evaluate(TABLE, Knobs(), {}, NOW))
    read = json.loads(json.dumps(document))
    assert {"table", "snapshot_id", "health", "parts", "facts", "verdicts"} <= set(read)
    assert (read["table"], read["table_uuid"]) == ("lake.sales.orders", UUID)
    assert read["metadata_location"].startswith(LOCATION)
    assert [v["operation"] for v in read["verdicts"]] == [str(op) for op in Operation]
    assert set(read["parts"]["orphans"]) == {"score", "behind"}
