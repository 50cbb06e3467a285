"""Find the progress of streaming writers, which they record in the summaries of the snapshots that they commit.

A writer that starts again walks from the head of its branch, parent by parent, to the newest snapshot that has its own
keys, and takes what that one records for committed. The walk ends at the first parent that the metadata has not. So the
newest state of each writer is needed with every snapshot between it and the head:

- Flink: `SinkUtil.getMaxCommittedCheckpointId`; without it a job cannot be restored from a savepoint
- Spark: `SparkWrite.BaseStreamingWrite.findLastCommittedEpochId`; without it a batch is written twice
- Kafka Connect: `Coordinator.lastCommittedOffsetsForTable`; without it records are written twice
- Redpanda: `get_iceberg_committed_offset`; without it files are appended twice. Its tag keeps no way to the snapshot
- Materialize: `retrieve_upper_from_snapshots`; without it the sink writes all rows again
- RisingWave, Fluss and AutoMQ look for their last commit by a key too
- Flink's `ConvertEqualityDeletes`: `EqualityConvertPlanner.discoverLastCommittedWork` finds which snapshot of the
  staging branch it converted last, and walks that branch back to it: what is gone in between is lost, and without the
  last one it converts twice

Flink, Kafka Connect and others also keep the names of files that they have written and not committed, in a checkpoint
or a topic, and commit them when they start again, without a look at whether they are there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from icewright.core.numbers import count_in
from icewright.core.table import Snapshot, TableMetadata
from icewright.core.words import wildcard

_FLINK_JOB, _FLINK_OPERATOR = "flink.job-id", "flink.operator-id"
_FLINK_CHECKPOINT = "flink.max-committed-checkpoint-id"
_SPARK_QUERY, _SPARK_EPOCH = "spark.sql.streaming.queryId", "spark.sql.streaming.epochId"
_KAFKA_OFFSETS = "kafka.connect.offsets."
_KAFKA_TIMES = ("kafka.connect.valid-through-ts", "kafka.connect.vtts")  # the second one before Iceberg had the sink
_CONVERTED = "equality-convert-staging-snapshot"
_OTHERS: Mapping[str, str] = {
    "redpanda.commit-metadata": "Redpanda",
    "risingwave.commit.epoch": "RisingWave, epoch",
    "fluss-offsets": "Fluss, offsets",
    "automq.commit.id": "AutoMQ, commit",
    "mz-frontier": "Materialize, frontier",
    _CONVERTED: "Flink's conversion of equality deletes, staging snapshot",
}
# those whose writers write again what they had not committed, and need no file of it
_WRITTEN_AGAIN = frozenset({_SPARK_QUERY, "mz-frontier", _CONVERTED})
_BEFORE_COMMIT = timedelta(hours=1)  # by which a file may be older than the commit before its own
_SHOWN = 40  # characters of a value that people see
_NAME_SHOWN = 200  # of a writer with its progress: ids and names of keys may have any length
_Identity = tuple[str, str, str | None]  # a summary key; of Flink and Spark with the ids that are its value


@dataclass(frozen=True, slots=True)
class WriterStateRule:
    """The time for which the newest state of a writer is kept after its commit, and other keys of such states."""

    max_age: timedelta
    keys: tuple[str, ...] = ()  # names of summary keys, with wildcards


@dataclass(frozen=True, slots=True)
class WriterState:
    """The newest snapshot of a branch in which one writer recorded its progress."""

    snapshot: Snapshot
    depth: int  # how many snapshots of the branch are newer
    writer: str  # for people, such as "Flink job 54b43d2b, checkpoint 6"
    commits_later: bool = False  # files that it wrote since then, when it starts again

    @property
    def uncommitted_since(self) -> datetime:
        """Return since when files are written that the writer may not have committed."""
        return self.snapshot.timestamp - _BEFORE_COMMIT

    @property
    def converted(self) -> int | None:
        """Return the snapshot of another branch up to which the writer has taken over what that branch has."""
        return count_in(self.snapshot.writer_properties.get(_CONVERTED, ""))


def newest_states(newest_first: Iterable[Snapshot], keys: tuple[str, ...]) -> list[WriterState]:
    """Return the newest state of each writer of a branch, whose snapshots are given from its head on."""
    states: dict[_Identity, WriterState] = {}
    for depth, snapshot in enumerate(newest_first):
        properties = snapshot.writer_properties
        for identity in _identities(properties, keys) if properties else ():
            if identity not in states:
                name, later = _text(identity, properties)[:_NAME_SHOWN], identity[0] not in _WRITTEN_AGAIN
                states[identity] = WriterState(snapshot, depth, name, later)
    return list(states.values())


def _identities(properties: Mapping[str, str], keys: tuple[str, ...]) -> Iterator[_Identity]:
    """Yield by what each writer that recorded a state in a snapshot looks for it."""
    job = properties.get(_FLINK_JOB)
    if job is not None and _FLINK_CHECKPOINT in properties:  # a snapshot without a checkpoint does not end the walk
        yield _FLINK_JOB, job, properties.get(_FLINK_OPERATOR)
    if (query := properties.get(_SPARK_QUERY)) is not None:
        yield _SPARK_QUERY, query, None
    for key in properties:
        known = key.startswith(_KAFKA_OFFSETS) or key in _KAFKA_TIMES or key in _OTHERS
        if known or (keys and any(wildcard(pattern).fullmatch(key) for pattern in keys)):
            yield key, "", None


def staged_ids(metadata: TableMetadata) -> dict[int, str]:
    """Return under which id each snapshot is staged that waits for its publication (write-audit-publish)."""
    ids = {s.snapshot_id: s.summary["wap.id"] for s in metadata.snapshots if "wap.id" in s.summary}
    published = {s.summary.get("published-wap-id") for s in metadata.snapshots} if ids else set()
    return {snapshot_id: wap_id for snapshot_id, wap_id in ids.items() if wap_id not in published}


def writer_name(snapshot: Snapshot) -> str:
    """Return who wrote a snapshot, for people: a stream by its id, else the engine that the summary names."""
    properties = snapshot.writer_properties
    if _FLINK_JOB in properties:
        return f"Flink job {properties[_FLINK_JOB][:_SHOWN]}"
    if _SPARK_QUERY in properties:
        return f"Spark stream {properties[_SPARK_QUERY][:_SHOWN]}"
    if any(key.startswith(_KAFKA_OFFSETS) or key in _KAFKA_TIMES for key in properties):
        return "Kafka Connect"
    if other := next((_OTHERS[key] for key in properties if key in _OTHERS), None):
        return other.partition(",")[0]
    return snapshot.summary.get("engine-name", "")[:_SHOWN].capitalize() or "writers that give no name"


def summary_number(snapshot: Snapshot, key: str) -> int:
    """Return a number of a snapshot's summary; 0 where its writer wrote none, or something else."""
    return stated_number(snapshot, key) or 0


def stated_number(snapshot: Snapshot, key: str) -> int | None:
    """Return a number of a snapshot's summary; None where its writer wrote none, or something else."""
    return count_in(snapshot.summary.get(key, ""))


def total_files(snapshot: Snapshot) -> int | None:
    """Return how many files the summary says the snapshot has; None where its writer did not count them."""
    data, deletes = (stated_number(snapshot, f"total-{what}-files") for what in ("data", "delete"))
    return None if data is None or deletes is None else data + deletes


def _text(identity: _Identity, properties: Mapping[str, str]) -> str:
    """Return writer and progress for people."""
    key, writer, _ = identity
    if writer and key == _FLINK_JOB:
        return f"Flink job {writer}, checkpoint {properties[_FLINK_CHECKPOINT]}"
    if writer and key == _SPARK_QUERY:
        return f"Spark stream {writer}, epoch {properties.get(_SPARK_EPOCH, 'unknown')}"
    value = properties[key][:_SHOWN]
    if key.startswith(_KAFKA_OFFSETS):
        return f"Kafka Connect {key.removeprefix(_KAFKA_OFFSETS)}, offsets {value}"
    if key in _OTHERS:
        return f"{_OTHERS[key]} {value}"
    return f"Kafka Connect, valid through {value}" if key in _KAFKA_TIMES else f"writer key {key}, {value}"
