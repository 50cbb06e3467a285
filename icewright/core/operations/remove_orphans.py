"""Orphan removal: a scan at intervals, as no metadata tells whether there are orphans."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from icewright.core import policy
from icewright.core.cost import service_cost, storage_benefit
from icewright.core.effective import Knobs
from icewright.core.policy import Operation
from icewright.core.retention import uncommitted_files, writer_state_rule
from icewright.core.runs import REFUSED, LastRun
from icewright.core.steps import SWITCHED_OFF, Blocked, Due, NotDue, RemoveOrphans, Verdict, Work
from icewright.core.table import TableFacts
from icewright.core.vacuum import collected_by, gc_enabled
from icewright.core.words import count

START_HOURS, LEAST_HOURS, MOST_HOURS = 7 * 24, 24, 90 * 24  # what `auto` begins with, and its bounds
MANY = 0.01  # share of orphans that asks for more scans


def evaluate(facts: TableFacts, knobs: Knobs, last: LastRun | None, now: datetime) -> Verdict:
    """Return Due when the last scan is `every_hours` ago, or a first finding waits for its confirmation."""
    if not gc_enabled(facts.metadata.properties):
        return Blocked(f"gc.{SWITCHED_OFF} on the table{collected_by(facts.metadata.properties)}")
    if facts.sharing:
        others = ", ".join(map(str, facts.sharing))
        return Blocked(
            f"{REFUSED}: {facts.ref}: the location {facts.metadata.location} overlaps that of {others}; give each "
            "table a location of its own [shared_location]"
        )
    mode = knobs[policy.ORPHAN_MODE]
    if last is not None and last.reason.startswith(REFUSED):
        next_scan = last.finished + timedelta(hours=cadence(knobs, last))
        if now < next_scan:
            return Blocked(f"{last.reason} (next attempt at {next_scan:%Y-%m-%d %H:%M} UTC)")
    last_scan = last.worked if last is not None else None
    if last_scan is not None and last is not None:
        removed = last.learned.get("orphans_removed", 0)
        unconfirmed = mode == "confirm" and last.learned.get("orphans_found", 0) > removed
        wait = knobs[policy.CONFIRM_HOURS] if unconfirmed else cadence(knobs, last)
        next_scan = last_scan + timedelta(hours=wait)
        if now < next_scan:
            times = f"scanned at {last_scan:%Y-%m-%d %H:%M} UTC, next scan at {next_scan:%Y-%m-%d %H:%M} UTC"
            left = int(last.learned.get("orphans_found", 0) - removed) if mode == "report" else 0
            return NotDue(f"{times}; mode report leaves {count(left, 'orphan file')}" if left else times, next_scan)
    files = facts.data_files + facts.delete_files + facts.manifest_count
    learned = last.learned if last is not None else {}
    if last_scan is None:
        why = "requested manually" if learned else "never scanned for orphans"
    else:
        why = f"the last scan was at {last_scan:%Y-%m-%d %H:%M} UTC"
    orphans_found = learned.get("orphans_found", 0)
    scan = step(knobs, now, last)
    older_than, notes = uncommitted_files([facts.metadata], writer_state_rule(knobs), now, scan.older_than)
    return Due(
        Work(Operation.REMOVE_ORPHANS, (replace(scan, older_than=older_than),), notes),
        benefit=storage_benefit(max(1, int(orphans_found))),
        cost=service_cost(2 * files),
        why=f"{why}; mode {mode}",
    )


def cadence(knobs: Knobs, last: LastRun | None) -> int:
    """Return the hours between two scans.

    `auto` begins with a week; a scan that finds more than 1 % of the files orphan halves the time, one that finds
    none doubles it, from 1 to 90 days.
    """
    every_hours = knobs[policy.ORPHAN_EVERY]
    if not isinstance(every_hours, str):
        return every_hours
    if last is None or not last.learned.get("files_scanned"):
        return START_HOURS
    adapted = last.learned.get("every_hours", START_HOURS)
    share = last.learned.get("orphans_found", 0) / last.learned["files_scanned"]
    if share > MANY:
        adapted /= 2
    elif not share:
        adapted *= 2
    return int(min(MOST_HOURS, max(LEAST_HOURS, adapted)))


def step(knobs: Knobs, now: datetime, last: LastRun | None = None) -> RemoveOrphans:
    """Return the step of a scan that begins now, by the settings.

    No write of ours is older than its time-out, so a file that is may be called an orphan.
    """
    age = max(timedelta(hours=knobs[policy.ORPHAN_AGE]), timedelta(seconds=knobs[policy.TIMEOUT]))
    return RemoveOrphans(
        older_than=now - age,
        every_hours=cadence(knobs, last),
        mode=knobs[policy.ORPHAN_MODE],
        confirm_before=now - timedelta(hours=knobs[policy.CONFIRM_HOURS]),
        equal_schemes=knobs[policy.EQUAL_SCHEMES],
        equal_authorities=knobs[policy.EQUAL_AUTHORITIES],
        max_delete_ratio=knobs[policy.MAX_DELETE_RATIO],
        max_concurrent_deletes=knobs[policy.ORPHAN_CONCURRENCY],
        inventory=knobs[policy.INVENTORY],
        check_totals=knobs[policy.CHECK_TOTALS],
        max_files=knobs[policy.MAX_ORPHANS],
        delay=timedelta(hours=knobs[policy.DELETION_DELAY]),
        prefix_mismatch=knobs[policy.PREFIX_MISMATCH],
    )
