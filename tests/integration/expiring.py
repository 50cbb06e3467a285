"""Expiry in-service against Spark's procedure: the metadata file, word for word, and the deleted files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from icewright.app.demo.files import local
from icewright.core.policy import Operation
from icewright.core.runs import JOB_ID, OperationState
from tests.integration.bench import Bench, paths, spark_time

_UNORDERED = frozenset({"snapshots", "schemas", "partition-specs", "statistics", "partition-statistics"})


@dataclass(frozen=True)
class Left:
    """What an expiry left of a table, and which files it took."""

    document: Mapping[str, Any]
    gone: frozenset[str]


def left(bench: Bench, name: str, before: frozenset[str]) -> Left:
    """The metadata as it is now, and the files that it had before and has no more."""
    location = bench.metadata(name).metadata_location
    document = _said(json.loads(local(location).read_text(encoding="utf-8")))
    del document["last-updated-ms"]
    for listed in _UNORDERED & document.keys():
        document[listed].sort(key=lambda one: json.dumps(one, sort_keys=True))
    return Left(document, before - bench.files(name))


def _said(node: Any) -> Any:
    """JSON without what means nothing: nulls, what is empty, and the sequence number of v1's snapshots."""
    if isinstance(node, dict):
        said = {key: _said(value) for key, value in node.items() if (key, value) != ("sequence-number", 0)}
        return {key: value for key, value in said.items() if value not in (None, [], {})}
    return [_said(value) for value in node] if isinstance(node, list) else node


def expired(bench: Bench, name: str, hours: float, keep: int) -> frozenset[str]:
    """Icewright leaves the metadata that Spark leaves, and deletes the same files, which its dry run said: these."""
    before = bench.files(name)
    if any(JOB_ID in s.summary for s in bench.metadata(name).snapshots):
        keep = 1  # Icewright does not count its own rewrites, Spark does: both agree on the head alone
    cutoff = spark_time(datetime.now(UTC) - timedelta(hours=hours))
    saved = bench.save(name)
    bench.call("expire_snapshots", name, f"older_than => {cutoff}, retain_last => {keep}")
    theirs = left(bench, name, before)
    saved.restore()
    shutil.rmtree(saved.copy)
    knobs = {
        "deletion.delay_hours": 0,
        "expire_snapshots.retention_hours": hours,
        "expire_snapshots.min_snapshots_to_keep": keep,
    }
    result = bench.run(name, Operation.EXPIRE_SNAPSHOTS, knobs, dry_run=True)
    assert bench.files(name) == before
    done = bench.run(name, Operation.EXPIRE_SNAPSHOTS, knobs)
    assert done.state in (OperationState.COMMITTED, OperationState.SKIPPED), done
    ours = left(bench, name, before)
    assert ours.gone == theirs.gone, (done.reason, done.notes, sorted(ours.gone ^ theirs.gone))
    assert ours.document == theirs.document
    assert paths(file.path for file in result.files) == paths(file.path for file in done.files) == paths(ours.gone)
    return ours.gone
