"""Which signs are conditions: one table of cases for each rule."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from icewright.core.alerts import AlertRule, default_terms
from icewright.core.breakers import after_failure
from icewright.core.conditions import (
    REPORTED,
    AlertInputs,
    CatalogInputs,
    Failure,
    IdleWork,
    LoopInputs,
    ProcessInputs,
    Spending,
    TableInputs,
    conditions,
)
from icewright.core.policy import Operation
from icewright.core.table import TableRef
from icewright.testing import NOW, REF

BREAKER = after_failure(None, "catalog lake", "", "refused", NOW, 0.5)
OTHER = TableRef("lake", ("sales",), "other")
HOUR, MINUTE, SECOND = timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1)
TABLE = str(REF)
NEVER = LoopInputs("detect", 0, None, timedelta(0))


def table(**signs: Any) -> AlertInputs:
    """One table."""
    return AlertInputs(tables=[replace(TableInputs(REF), **signs)])


def reported(rule: AlertRule, reason: str) -> AlertInputs:
    """One table that checks or verdicts report."""
    return AlertInputs(reported={rule: {REF: reason}})


def catalog(up: timedelta | None = 99 * HOUR, **signs: Any) -> AlertInputs:
    """One catalog that is asked every minute, last a minute ago; a service that is up for so long looks at it."""
    since = None if up is None else NOW - up
    return AlertInputs(catalogs=[replace(CatalogInputs("lake", MINUTE, NOW - MINUTE), **signs)], serving_since=since)


def process(
    silent: timedelta = SECOND, loop: LoopInputs = NEVER, holder: str = "host:1:2", idle: timedelta | None = None
) -> ProcessInputs:
    """A service, perhaps with a job that makes no progress."""
    work = () if idle is None else (IdleWork("job 1", TABLE, idle, "read"),)
    return ProcessInputs(holder, "service", NOW - silent, 4, (loop,), idle=work)


def configured(holder: str, configuration: dict[str, str], silent: timedelta = SECOND) -> ProcessInputs:
    """A service with the hashes of a configuration."""
    return replace(process(silent, holder=holder), configuration=configuration)


def loop(**signs: Any) -> AlertInputs:
    """A process with one loop."""
    return AlertInputs(processes=[process(loop=replace(NEVER, **signs))])


@pytest.mark.parametrize(
    ("signs", "found"),
    [
        (AlertInputs(), {}),
        (AlertInputs(failures=[Failure(REF, Operation.COMPACT, "no space")]), {"job_failed": TABLE}),
        (AlertInputs(failures=[Failure(REF, None, "")]), {"job_failed": TABLE}),
        (reported(AlertRule.CHECK_FAILED, "checked 4 files: 1 fault"), {"check_failed": TABLE}),
        (table(paused="by hand"), {"table_paused": TABLE}),
        (table(paused="3 jobs failed in a row"), {"table_paused": TABLE}),
        (table(paused="verification failed: 1 row is gone"), {"verification_failed": TABLE}),
        (table(health=49), {"table_unhealthy": TABLE}),
        (table(health=50), {}),
        (table(health=None), {}),
        (table(overdue_since=NOW - 24 * HOUR), {"stale": TABLE}),
        (table(overdue_since=NOW - 24 * HOUR + SECOND), {}),
        (table(overdue_since=NOW - 99 * HOUR, paused="by hand"), {"table_paused": TABLE}),
        (table(overdue_since=NOW - 99 * HOUR, windows="sun 02:00-04:00"), {}),
        (table(overdue_since=NOW - 99 * HOUR, windows="fri 11:00-12:00"), {"stale": TABLE}),
        (table(overdue_since=NOW - 99 * HOUR, windows="sat 11:00-13:00"), {}),
        (table(overdue_since=NOW - 24 * HOUR - MINUTE, windows="fri 08:00-12:00"), {}),
        (table(overdue_since=NOW - 7 * 24 * HOUR, windows="fri 08:00-12:00"), {"stale": TABLE}),
        (table(overdue_since=NOW - 8 * 24 * HOUR - MINUTE, windows="fri 08:00-12:00"), {"stale": TABLE}),
        (table(overdue_since=NOW - 62 * HOUR, windows="22:00-06:00"), {"stale": TABLE}),
        (table(overdue_since=NOW - 61 * HOUR, windows="22:00-06:00; 23:00-05:00"), {}),
        (table(overdue_since=NOW - 24 * HOUR, windows="sat Europe/Atlantis"), {"stale": TABLE}),
        (table(error="MetadataUnreadable: m1"), {"unmaintainable": TABLE}),
        (reported(AlertRule.UNMAINTAINABLE, "the table is encrypted"), {"unmaintainable": TABLE}),
        (reported(AlertRule.TABLE_BLOCKED, "refused: x [shared_location]"), {"table_blocked": TABLE}),
        (reported(AlertRule.READER_UNPINNED, "snapshot 1 goes: a query read it"), {"reader_unpinned": TABLE}),
        (AlertInputs(spending=[Spending("pool default", 10, 9.5)]), {"budget_spent": "pool default"}),
        (AlertInputs(spending=[Spending("pool default", 10, 9.49)]), {}),
        (catalog(), {}),
        (catalog(failures=1, error="refused"), {"catalog_unreachable": "lake"}),
        (catalog(failures=9, error="refused", detected_at=NOW - HOUR), {"catalog_unreachable": "lake"}),
        (catalog(detected_at=NOW - 10 * MINUTE), {}),
        (catalog(detected_at=NOW - 10 * MINUTE - SECOND), {"no_detection": "lake"}),
        (catalog(up=10 * MINUTE, detected_at=NOW - HOUR), {}),
        (catalog(up=10 * MINUTE + SECOND, detected_at=NOW - HOUR), {"no_detection": "lake"}),
        (catalog(up=None, detected_at=NOW - HOUR), {}),
        (catalog(detected_at=NOW - 2 * HOUR, interval=HOUR), {}),
        (catalog(detected_at=None), {}),
        (AlertInputs(queued=1, oldest_queued=NOW - 30 * MINUTE), {}),
        (AlertInputs(queued=1, oldest_queued=NOW - 31 * MINUTE), {"queue_stuck": "queue"}),
        (loop(failures=2, error="x"), {}),
        (loop(failures=3, error="x"), {"loop_failing": "loop detect"}),
        (loop(lag=30 * MINUTE), {}),
        (loop(lag=31 * MINUTE), {"loop_failing": "loop detect"}),
        (AlertInputs(processes=[process(idle=9 * MINUTE)]), {}),
        (AlertInputs(processes=[process(idle=10 * MINUTE)]), {"job_stalled": TABLE}),
        (AlertInputs(processes=[process(HOUR, idle=HOUR)]), {"worker_lost": "service"}),
        (AlertInputs(processes=[process(5 * MINUTE)]), {}),
        (AlertInputs(processes=[process(6 * MINUTE)]), {"worker_lost": "service"}),
        (AlertInputs(processes=[process(HOUR, replace(NEVER, failures=9))]), {"worker_lost": "service"}),
        (AlertInputs(breakers=[BREAKER]), {"resource_unavailable": "catalog lake"}),
        (AlertInputs(breakers=[replace(BREAKER, failures=2)]), {}),
        (replace(catalog(failures=1), breakers=[BREAKER]), {"catalog_unreachable": "lake"}),
        (table(error="CatalogUnavailable: refused"), {}),
        (table(error="MetadataUnreadable: broken"), {"unmaintainable": TABLE}),
    ],
)
def test_conditions(signs: AlertInputs, found: dict[str, str]) -> None:
    """Each rule looks at its own signs, at its own bounds."""
    assert {str(c.rule): c.subject for c in conditions(signs, default_terms(), NOW)} == found


def test_what_is_said() -> None:
    """Every failed operation of a table, with its reason, in one condition of the table."""
    failures = [
        Failure(REF, Operation.COMPACT, "no space"),
        Failure(OTHER, None, "the catalog is away"),
        Failure(REF, Operation.EXPIRE_SNAPSHOTS, "lost"),
    ]
    said = {c.subject: c.message for c in conditions(AlertInputs(failures=failures), default_terms(), NOW)}
    assert said == {
        str(REF): "compact failed: no space; expire_snapshots failed: lost",
        str(OTHER): "the job failed: the catalog is away",
    }


def test_health_must_be_bad_for_hours() -> None:
    """The condition holds at once, and is raised when it has lasted as long as the rule says."""
    (condition,) = conditions(table(health=3), default_terms(), NOW)
    assert condition.lasting == 6 * HOUR


@pytest.mark.cases(118)
def test_a_lost_process_that_was_replaced() -> None:
    """One that was started since replaces one that is silent; the others are one alert, by the names of their hosts."""

    def at(host: str, started: int, silent: int) -> ProcessInputs:
        return ProcessInputs(
            f"{host}.0a1b2c:{started}:99", "worker", NOW - silent * MINUTE, 4, started=NOW - started * MINUTE
        )

    def lost(*processes: ProcessInputs) -> list[str]:
        return [c.message for c in conditions(AlertInputs(processes=processes), default_terms(), NOW)]

    assert lost(at("pod-a", 90, 60), at("pod-b", 59, 0)) == []
    assert lost(at("pod-a", 90, 60), at("pod-a", 59, 30), at("pod-a", 29, 0)) == [], "killed twice"
    assert lost(at("pod-a", 90, 60), at("pod-b", 99, 0)) == [
        "no heartbeat from 1 process of kind worker: pod-a (since 2026-11-21 11:00 UTC)"
    ]
    (message,) = lost(at("pod-a", 90, 60), at("pod-b", 90, 40), at("pod-c", 39, 0), at("pod-d", 99, 30))
    assert message.startswith("no heartbeat from 2 processes")


def test_one_loop_of_many_processes() -> None:
    """The same loop of two processes is one alert, so that it outlives the restart of one of them."""
    bad = replace(NEVER, failures=5, error="StorageUnavailable: away")
    found = conditions(
        AlertInputs(processes=[process(loop=bad), process(loop=bad, holder="b:2:3")]), default_terms(), NOW
    )
    assert len({condition.key for condition in found}) == 1
    assert "failed 5 times in a row in service host: StorageUnavailable: away" in found[0].message


@pytest.mark.parametrize("rule", AlertRule)
def test_a_rule_that_is_off(rule: AlertRule) -> None:
    """A disabled rule has no condition, whatever the signs."""
    bad = TableInputs(REF, None, "broken", 0, NOW - 99 * HOUR)
    signs = AlertInputs(
        tables=[bad, TableInputs(OTHER, "by hand"), TableInputs(OTHER, "verification failed: x")],
        failures=[Failure(REF, None, "x")],
        reported={one: {REF: "x"} for one in REPORTED},
        catalogs=[CatalogInputs("a", MINUTE, NOW - HOUR), CatalogInputs("b", MINUTE, None, 1)],
        spending=[Spending("pool p", 1, 1)],
        queued=1,
        oldest_queued=NOW - HOUR,
        breakers=[BREAKER],
        processes=[
            process(HOUR),
            process(loop=replace(NEVER, failures=9), idle=HOUR),
            configured("a:1:1", {"limits.total": "4"}),
            configured("b:1:1", {"limits.total": "5"}),
        ],
        serving_since=NOW - HOUR,
    )
    terms = default_terms()
    every = {c.rule for c in conditions(signs, terms, NOW)}
    assert every == set(AlertRule)
    off = {**terms, rule: replace(terms[rule], enabled=False)}
    assert {c.rule for c in conditions(signs, off, NOW)} == every - {rule}


@pytest.mark.cases(119)
def test_processes_with_other_configurations_are_named_with_the_keys() -> None:
    """One condition names the keys that differ and who has which; a catalog that one process lacks is no difference."""
    lake = {"catalogs.lake.type": "a", "policy.platform.importance": "b"}
    processes = [
        configured("one:1:2", lake),
        configured("two:3:4", lake | {"catalogs.pond.type": "c"}),
        configured("three:5:6", lake | {"policy.platform.importance": "d"}),
        configured("dead:7:8", {"limits.total": "e"}, HOUR),
        process(holder="older:9:9"),  # of a version that reports none
    ]
    rules = {AlertRule.CONFIG_DIFFERS: default_terms()[AlertRule.CONFIG_DIFFERS]}
    (condition,) = conditions(AlertInputs(processes=processes), rules, NOW)
    assert condition.message == (
        "processes differ in policy.platform.importance: service one:1, service two:3 | service three:5"
    )
    assert conditions(AlertInputs(processes=processes[:2]), rules, NOW) == []
