"""Orphan removal: a scan every so often; nothing in the metadata tells whether there are orphans."""

from __future__ import annotations

from datetime import datetime, timedelta

from icewright.core import policy
from icewright.core.cost import service_cost, storage_benefit
from icewright.core.policy import Knobs, Operation
from icewright.core.runs import REFUSED, LastRun, OperationState
from icewright.core.steps import Blocked, Due, NotDue, RemoveOrphans, Verdict, Work
from icewright.core.table import TableFacts


def evaluate(facts: TableFacts, knobs: Knobs, last: LastRun | None, now: datetime) -> Verdict:
    """Due when the last scan is `every_hours` ago, or a first finding waits for its confirmation."""
    if facts.metadata.properties.get("gc.enabled", "true").lower() == "false":
        return Blocked("gc.enabled is false on the table")
    mode = knobs[policy.ORPHAN_MODE]
    if last is not None and last.reason.startswith(REFUSED):
        again = last.finished + timedelta(hours=knobs[policy.ORPHAN_EVERY])
        if now < again:
            return Blocked(f"{last.reason} (looked at again at {again:%Y-%m-%d %H:%M} UTC)")
    scanned = last.finished if last is not None and last.state is OperationState.COMMITTED else None
    if scanned is not None and last is not None:
        waiting = mode == "confirm" and last.metrics.get("orphans_found", 0) > last.metrics.get("orphans_removed", 0)
        wait = knobs[policy.CONFIRM_HOURS] if waiting else knobs[policy.ORPHAN_EVERY]
        again = scanned + timedelta(hours=wait)
        if now < again:
            return NotDue(f"scanned at {scanned:%Y-%m-%d %H:%M} UTC, next scan at {again:%Y-%m-%d %H:%M} UTC", again)
    files = facts.data_files + facts.delete_files + facts.manifest_count
    why = f"the last scan was at {scanned:%Y-%m-%d %H:%M} UTC" if scanned else "never scanned for orphans"
    found = last.metrics.get("orphans_found", 0) if last is not None else 0
    return Due(
        Work(Operation.REMOVE_ORPHANS, (step(knobs, now),)),
        benefit=storage_benefit(max(1, int(found))),
        cost=service_cost(2 * files),
        why=f"{why}; mode {mode}",
    )


def step(knobs: Knobs, now: datetime) -> RemoveOrphans:
    """What the knobs say of a scan that begins now."""
    return RemoveOrphans(
        older_than=now - timedelta(hours=knobs[policy.ORPHAN_AGE]),
        mode=knobs[policy.ORPHAN_MODE],
        confirm_before=now - timedelta(hours=knobs[policy.CONFIRM_HOURS]),
        equal_schemes=knobs[policy.EQUAL_SCHEMES],
        equal_authorities=knobs[policy.EQUAL_AUTHORITIES],
        max_delete_ratio=knobs[policy.MAX_DELETE_RATIO],
        max_concurrent_deletes=knobs[policy.ORPHAN_CONCURRENCY],
        inventory=knobs[policy.INVENTORY],
        check_totals=knobs[policy.CHECK_TOTALS],
        max_files=knobs[policy.MAX_ORPHANS],
    )
