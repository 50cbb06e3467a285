"""Checks of a table's files: of those that are new since the last check, and at times of all. Off by default."""

from __future__ import annotations

from datetime import datetime, timedelta

from icewright.core.cost import (
    READ_MB_PER_SECOND,
    SERVICE_FILES_PER_SECOND,
    SERVICE_JOB_SECONDS,
    SERVICE_MEMORY_GB,
    gb_hours,
    spark_cost,
)
from icewright.core.effective import Knobs
from icewright.core.integrity import CheckLevel
from icewright.core.policy import CHECK_ENGINE, CHECK_EVERY, CHECK_FULL, CHECK_LEVEL, MEGABYTE, Operation
from icewright.core.runs import LastRun
from icewright.core.steps import CheckFiles, Due, NotDue, Verdict, Work
from icewright.core.table import TableFacts
from icewright.core.writer_state import stated_number

IN_SERVICE_BYTES = 10 * 1024 * MEGABYTE  # rows of more are read by Spark
_BENEFIT_MB = 50.0  # an assumption: nothing measures what early knowledge is worth
_HOUR = timedelta(hours=1)


def evaluate(facts: TableFacts, knobs: Knobs, last: LastRun | None, now: datetime) -> Verdict:
    """Return Due when the last check is too old; a full check after faults, or when the last full one is too old."""
    metadata = facts.metadata
    if not metadata.snapshots:
        return NotDue("no snapshot whose files could be checked")
    level = CheckLevel(knobs[CHECK_LEVEL])
    checked = last.worked if last is not None else None
    if last is None or checked is None:
        return _due(facts, knobs, level, None, 0.0, "no earlier check to go on from: all is read")
    every = timedelta(hours=knobs[CHECK_EVERY])
    if now < checked + every and last.learned.get("level", 0) >= level.depth:
        hours = (now - checked) / _HOUR
        return NotDue(f"the files were checked {hours:.0f} h ago, fewer than check.every_hours", checked + every)
    before = last.learned
    since, full_hours = int(before.get("sequence_number", 0)), before.get("full_hours", 0.0) + (now - checked) / _HOUR
    if before.get("faults_found"):
        why = "the last check found faults"
    elif before.get("level", 0) < level.depth:
        why = f"no check at level {level} was made yet"
    elif not 0 < since <= metadata.last_sequence_number:
        why = "the table has no sequence numbers that say what is new"
    elif full_hours >= knobs[CHECK_FULL] * 24:
        why = f"the last check that read all is {full_hours / 24:.0f} days old"
    else:
        newer = sum(snapshot.sequence_number > since for snapshot in metadata.snapshots)
        why = f"the last check is {(now - checked) / _HOUR:.0f} h old; {newer} snapshots came since"
        return _due(facts, knobs, level, since, full_hours, why)
    return _due(facts, knobs, level, None, 0.0, f"{why}: all is read")


def _due(facts: TableFacts, knobs: Knobs, level: CheckLevel, since: int | None, full_hours: float, why: str) -> Due:
    rows = _bytes_to_read(facts, since) if level is CheckLevel.ROWS else 0
    engine = knobs[CHECK_ENGINE]
    by_spark = level is CheckLevel.ROWS and (engine == "spark" or (engine == "auto" and rows > IN_SERVICE_BYTES))
    seconds = SERVICE_JOB_SECONDS + sum(p.data_files for p in facts.partitions) / SERVICE_FILES_PER_SECOND
    seconds += 0 if by_spark else rows / MEGABYTE / READ_MB_PER_SECOND
    return Due(
        Work(Operation.CHECK, (CheckFiles(level, since, full_hours, by_spark),)),
        benefit=_BENEFIT_MB,
        cost=gb_hours(seconds, SERVICE_MEMORY_GB) + (spark_cost(rows) if by_spark else 0.0),
        why=why,
    )


def _bytes_to_read(facts: TableFacts, since: int | None) -> int:
    """Return the bytes of data files that were added since; of all files where a summary lacks them."""
    if since is None:
        return facts.data_bytes
    newer = [snapshot for snapshot in facts.metadata.snapshots if snapshot.sequence_number > since]
    sizes = [stated_number(s, "added-files-size") for s in newer if "added-files-size" in s.summary]
    return facts.data_bytes if None in sizes else sum(filter(None, sizes))
