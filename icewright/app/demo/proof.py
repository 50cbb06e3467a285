"""Prove for the demo that rows are the same before and after, and that an expiry is undone while its files wait."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from icewright.app.bootstrap import Application
from icewright.app.demo.lake import UNDONE
from icewright.core.policy import DELETION_DELAY, Operation
from icewright.core.predicates import quoted, text_literal
from icewright.core.runs import JobState
from icewright.core.table import TableMetadata, TableRef
from icewright.flow.execute import execute
from icewright.flow.operation import Request
from icewright.flow.undo import undo

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PARALLEL_READS = 4  # tables that are read at the same time


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The number of rows of a table, and a 128-bit sum over all of them in hexadecimal."""

    rows: int
    checksum: str


def fingerprint(spark: SparkSession, table: str, version: str | int | None = None) -> Fingerprint:
    """Read the table once, or what a snapshot id, tag or branch of it holds, and sum up every column of every row."""
    source = ".".join(quoted(part) for part in TableRef.parse(table).parts)
    if version is not None:
        source += f" VERSION AS OF {version if isinstance(version, int) else text_literal(version)}"
    schema = spark.sql(f"SELECT * FROM {source}").schema.jsonValue()  # noqa: S608 - quoted
    columns = [part for f in schema["fields"] for part in hashable(quoted(f["name"]), f["type"], itertools.count())]
    everything = ", ".join(columns)
    # Halves of the hashes, centred on zero: their sums do not overflow, which Spark would take for an error.
    sums = ", ".join(f"sum(shiftright({h}, 32)), sum(({h} & 4294967295) - 2147483648)" for h in ("`h1`", "`h2`"))
    row = spark.sql(
        f"SELECT count(*), {sums} FROM "  # noqa: S608
        f"(SELECT xxhash64({everything}) AS `h1`, xxhash64(1, {everything}) AS `h2` FROM {source})"
    ).head()
    rows, *parts = (value or 0 for value in row or ())
    return Fingerprint(rows, _total(rows, *parts[:2]) + _total(rows, *parts[2:]))


def fingerprints(spark: SparkSession, tables: Iterable[str]) -> dict[str, Fingerprint]:
    """Return the fingerprint of each table, several at a time: small ones leave most of Spark idle."""
    names = list(tables)
    with ThreadPoolExecutor(_PARALLEL_READS) as pool:
        return dict(zip(names, pool.map(lambda table: fingerprint(spark, table), names), strict=True))


def hashable(value: str, kind: str | Mapping[str, Any], names: Iterator[int]) -> list[str]:
    """Return SQL expressions that together give a whole value to `xxhash64`; `kind` is a type in Spark's JSON.

    A hash passes over nulls and refuses maps and variants, so each nullable thing says whether it is null, and
    a map becomes its sorted entries.
    """
    absent = f"isnull({value})"
    if kind == "variant":
        return [absent, f"cast({value} AS string)"]
    if isinstance(kind, str):
        return [absent, value]
    if kind["type"] == "struct":
        fields = [part for f in kind["fields"] for part in hashable(f"{value}.{quoted(f['name'])}", f["type"], names)]
        return [absent, *fields]
    item = f"`x{next(names)}`"
    if kind["type"] == "array":
        parts = hashable(item, kind["elementType"], names)
        return [absent, f"transform({value}, {item} -> struct({', '.join(parts)}))"]
    parts = hashable(f"{item}.`key`", kind["keyType"], names) + hashable(f"{item}.`value`", kind["valueType"], names)
    return [absent, f"array_sort(transform(map_entries({value}), {item} -> struct({', '.join(parts)})))"]


def _total(rows: int, high: int, low: int) -> str:
    """Return the sum of all hashes modulo 2^64, from the sums of their halves."""
    return f"{((high << 32) + low + (rows << 31)) % (1 << 64):016x}"


@dataclass(frozen=True)
class Past:
    """A table before its expiry: metadata, and the fingerprint of its oldest snapshot."""

    ref: TableRef
    metadata: TableMetadata
    rows: Fingerprint


def remember(app: Application, spark: SparkSession) -> Past:
    """Return the table whose expiry is undone, as it is now."""
    ref = TableRef.parse(UNDONE)
    metadata = app.runtime.catalog(ref).load(ref)
    return Past(ref, metadata, fingerprint(spark, UNDONE, metadata.snapshots[0].snapshot_id))


def show_undo(app: Application, spark: SparkSession, past: Past, console: Any) -> Mapping[str, Any] | None:  # noqa: ANN401
    """Undo the expiry, compare with the past, and expire again; None where no job expired snapshots."""
    runtime, ref = app.runtime, past.ref
    job = next((job for job in runtime.store.jobs.list(ref) if runtime.store.ledger.removals(job.job_id)), None)
    if job is None:
        return None
    done = undo(runtime, job.job_id)
    console.print(
        f"[bold]Undo[/]: the expiry of {UNDONE} is undone: {len(done.back.snapshots)} snapshots return "
        f"and {done.back.files} waiting files stay. Then the table expires again, and its files are deleted at once"
    )
    now = runtime.catalog(ref).load(ref)
    restored = {s.snapshot_id for s in past.metadata.snapshots} <= now.by_id.keys() and set(past.metadata.refs) <= set(
        now.refs
    )
    restored = restored and fingerprint(spark, UNDONE, past.metadata.snapshots[0].snapshot_id) == past.rows
    runtime.store.rules.put(ref.parts, {DELETION_DELAY.name: 0}, runtime.trigger.actor, runtime.clock.now(), None)
    second_expiry = execute(runtime, Request(ref, (Operation.EXPIRE_SNAPSHOTS,), manual=True))
    return {
        "table": UNDONE,
        "job_id": job.job_id,
        "undone_by": done.undone_by,
        "snapshots": len(done.back.snapshots),
        "files": done.back.files,
        "bytes": done.back.bytes,
        "same": restored,
        "expired_again": second_expiry.state is JobState.SUCCEEDED,
    }
