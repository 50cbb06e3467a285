"""What every store keeps of alerts: one open alert a key, tellings claimed by one process; and what rules look at."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta
from threading import Barrier
from typing import Any

import sqlalchemy as sa

from icewright.adapters.store.schema import ALERTS, TABLES, TELLINGS, VERDICTS
from icewright.adapters.store.sql import SqlStore
from icewright.core.alerts import Alert, AlertRule, Begin, Condition, Forget, Raise, Resolve, Severity
from icewright.core.conditions import Failure, TableInputs
from icewright.core.plan import PlannedJob
from icewright.core.policy import Operation
from icewright.core.runs import JobState, OperationState, Outcome
from icewright.core.table import TableRef
from icewright.ports import PendingDelivery, Pointer, QueueBacklog, RunRow, Trigger
from icewright.testing import NOW, REF

OTHER = TableRef("lake", ("a.b", "c"), "it's %_☃")
POND = TableRef("pond", ("sales",), "orders")
DOWN = Condition(AlertRule.CATALOG_UNREACHABLE, "lake", "it cannot be read: ☃ 'quoted' %s")
FAILED = Condition(AlertRule.JOB_FAILED, str(OTHER), "compact failed", OTHER)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
COMPACT, EXPIRE = Operation.COMPACT, Operation.EXPIRE_SNAPSHOTS
ME = Trigger("cycle", "me", "host:1:2")
SLACK, MAIL = "slack", "mailto 2"


def begin(condition: Condition = FAILED, *, raised: bool = True) -> Begin:
    """The condition is new."""
    return Begin(condition, Severity.WARNING, raised)


def see(store: SqlStore, *refs: TableRef) -> None:
    """The catalogs list these tables."""
    for name in {ref.catalog for ref in refs}:
        store.tables.record_listing(name, [Pointer(ref, "m1") for ref in refs if ref.catalog == name], NOW)


def raised(store: SqlStore, *channels: str, condition: Condition = FAILED) -> Alert:
    """One alert that is open, and the channels that are to hear of it."""
    see(store, OTHER)
    store.alerts.record_changes([begin(condition)], channels, NOW)
    (found,) = store.alerts.unresolved()
    return found


def claimed(store: SqlStore, *channels: str, now: datetime = NOW) -> Sequence[PendingDelivery]:
    """What the channels are to be told, claimed for five minutes."""
    return store.alerts.claim_deliveries(channels, now, now + 5 * MINUTE)


def told(found: Sequence[PendingDelivery]) -> list[tuple[str, bool]]:
    """Who is told what."""
    return [(telling.channel, telling.resolved) for telling in found]


def test_the_life_of_an_alert(store: SqlStore) -> None:
    """Noticed, raised with what is known then, resolved; each change is made once, and the row stays for the record."""
    see(store, OTHER)
    store.alerts.record_changes([begin(DOWN, raised=False)], (), NOW)
    (pending,) = store.alerts.unresolved()
    assert (pending.key, pending.since, pending.raised_at, pending.ref) == (DOWN.key, NOW, None, None)
    assert store.alerts.list(resolved=True) == []
    store.alerts.record_changes([Raise(pending, "worse", Severity.CRITICAL)], (), NOW + MINUTE)
    store.alerts.record_changes([Raise(pending, "once more", Severity.INFO), Forget(pending)], (), NOW + 2 * MINUTE)
    (open_now,) = store.alerts.list()
    assert (open_now.message, open_now.severity, open_now.raised_at) == ("worse", Severity.CRITICAL, NOW + MINUTE)
    store.alerts.record_changes([Resolve(open_now)], (), NOW + 3 * MINUTE)
    store.alerts.record_changes([Resolve(open_now)], (), NOW + 4 * MINUTE)
    assert (store.alerts.unresolved(), store.alerts.list()) == ([], [])
    (over,) = store.alerts.list(resolved=True)
    assert over == replace(open_now, resolved_at=NOW + 3 * MINUTE)
    store.alerts.record_changes([begin(DOWN)], (), NOW + HOUR)
    assert [a.resolved_at for a in store.alerts.list(resolved=True)] == [None, NOW + 3 * MINUTE], "newest first"


def test_what_went_away_in_time_leaves_nothing(store: SqlStore) -> None:
    """A forgotten condition has no row, and nobody is to be told."""
    store.alerts.record_changes([begin(DOWN, raised=False)], [SLACK], NOW)
    store.alerts.record_changes([Forget(store.alerts.unresolved()[0])], [SLACK], NOW + MINUTE)
    assert claimed(store, SLACK) == []
    with store.engine.begin() as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(ALERTS)).scalar() == 0


def test_an_alert_names_its_table(store: SqlStore) -> None:
    """The name comes back as it was, however odd."""
    alert = raised(store)
    assert (alert.ref, alert.subject, alert.catalog) == (OTHER, str(OTHER), "lake")


def test_one_open_alert_a_key(store: SqlStore) -> None:
    """Of processes that begin the same alert at the same time, one does."""
    see(store, OTHER)
    start = Barrier(4)

    def run(_: int) -> None:
        start.wait()
        store.alerts.record_changes([begin(), begin(DOWN)], [SLACK], NOW)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, range(4)))
    assert sorted(alert.key for alert in store.alerts.unresolved()) == sorted([FAILED.key, DOWN.key])
    assert told(claimed(store, SLACK)) == [(SLACK, False)] * 2


def test_each_telling_is_claimed_once(store: SqlStore) -> None:
    """Of processes that tell at the same time, one tells each channel of each alert."""
    raised(store, SLACK, MAIL)
    start = Barrier(4)

    def run(_: int) -> Sequence[PendingDelivery]:
        start.wait()
        return claimed(store, SLACK, MAIL)

    with ThreadPoolExecutor(4) as pool:
        found = [telling for some in pool.map(run, range(4)) for telling in some]
    assert sorted(told(found)) == [(MAIL, False), (SLACK, False)]


def test_a_claim_runs_out(store: SqlStore) -> None:
    """What a process claimed and never told, another tells later; what was told is never claimed again."""
    raised(store, SLACK)
    (mine,) = claimed(store, SLACK)
    assert claimed(store, SLACK, now=NOW + 4 * MINUTE) == []
    (again,) = claimed(store, SLACK, now=NOW + 5 * MINUTE)
    assert again == mine
    store.alerts.mark_delivered([again], NOW + 5 * MINUTE)
    assert claimed(store, SLACK, now=NOW + HOUR) == []


def test_a_channel_that_is_down(store: SqlStore) -> None:
    """It is tried again when its time has come, the failures counted; the other channel's state is its own."""
    raised(store, SLACK, MAIL)
    mail, slack = claimed(store, SLACK, MAIL)
    store.alerts.mark_delivered([mail], NOW)
    store.alerts.schedule_redelivery([slack], NOW + MINUTE)
    assert claimed(store, SLACK, MAIL, now=NOW + MINUTE - timedelta(microseconds=1)) == []
    (again,) = claimed(store, SLACK, MAIL, now=NOW + MINUTE)
    assert (again.channel, again.failures) == (SLACK, 1)
    store.alerts.mark_delivered([again], NOW + 2 * MINUTE)
    (alert,) = store.alerts.list()
    assert [(t.channel, t.resolved, t.failures, t.told_at) for t in alert.tellings] == [
        (MAIL, False, 0, NOW),
        (SLACK, False, 1, NOW + 2 * MINUTE),
    ]


def test_the_end_comes_after_the_beginning(store: SqlStore) -> None:
    """An end waits until the channel took the beginning, though both are due."""
    alert = raised(store, SLACK, MAIL)
    mail, slack = claimed(store, SLACK, MAIL)
    store.alerts.mark_delivered([mail], NOW)
    store.alerts.schedule_redelivery([slack], NOW + MINUTE)
    store.alerts.record_changes([Resolve(alert)], [SLACK, MAIL], NOW)
    assert told(claimed(store, SLACK, MAIL)) == [(MAIL, True)]
    (late,) = claimed(store, SLACK, MAIL, now=NOW + MINUTE)
    assert (late.channel, late.resolved) == (SLACK, False)
    store.alerts.mark_delivered([late], NOW + MINUTE)
    (end,) = claimed(store, SLACK, now=NOW + MINUTE)
    assert (end.resolved, end.alert.resolved_at) == (True, NOW)


def test_alerts_of_one_key_come_in_order(store: SqlStore) -> None:
    """Of an alert that was raised again while a channel was down, it hears as of two: begun, over, begun."""
    alert = raised(store, SLACK)
    (first,) = claimed(store, SLACK)
    store.alerts.schedule_redelivery([first], NOW + MINUTE)
    store.alerts.record_changes([Resolve(alert)], [SLACK], NOW)
    store.alerts.record_changes([begin(), begin(DOWN)], [SLACK], NOW)
    heard = []
    for minutes in range(6):
        now = NOW + minutes * MINUTE
        found = claimed(store, SLACK, now=now)
        heard += [(telling.alert.rule, telling.resolved) for telling in found]
        store.alerts.mark_delivered(found, now)
    down, failed = AlertRule.CATALOG_UNREACHABLE, AlertRule.JOB_FAILED
    assert heard == [(down, False), (failed, False), (failed, True), (failed, False)]


def test_channels_come_and_go(store: SqlStore) -> None:
    """A new channel hears of what is open, not of what is over; one that is gone holds nothing up."""
    first = raised(store, SLACK)
    store.alerts.record_changes([Resolve(first), begin(DOWN)], [MAIL], NOW)
    assert told(claimed(store, MAIL)) == [(MAIL, False)]
    assert told(claimed(store, "pagerduty")) == []


def test_many_alerts_at_once(store: SqlStore) -> None:
    """A storm of thousands is written, claimed and told by few statements."""
    refs = [TableRef("lake", ("sales",), f"t{n}") for n in range(3000)]
    see(store, *refs)
    store.alerts.record_changes([begin(replace(FAILED, subject=str(ref), ref=ref)) for ref in refs], [SLACK], NOW)
    found = claimed(store, SLACK)
    assert {telling.alert.ref for telling in found} == set(refs)
    store.alerts.mark_delivered(found, NOW)
    store.alerts.record_changes([Resolve(telling.alert) for telling in found], [SLACK], NOW)
    assert told(claimed(store, SLACK)) == [(SLACK, True)] * 3000


def test_an_alert_takes_its_tellings_with_it(store: SqlStore) -> None:
    """Whoever prunes old alerts need not know of tellings."""
    alert = raised(store, SLACK)
    with store.engine.begin() as connection:
        connection.execute(sa.delete(ALERTS).where(ALERTS.c.id == alert.id))
        assert connection.execute(sa.select(sa.func.count()).select_from(TELLINGS)).scalar() == 0


# -- what rules look at


def change(store: SqlStore, ref: TableRef, **values: Any) -> None:
    """Set columns of a table's row."""
    with store.engine.begin() as connection:
        mine = (TABLES.c.catalog == ref.catalog) & (TABLES.c.name == ref.name)
        connection.execute(sa.update(TABLES).where(mine).values(**values))


SIGNS: Sequence[tuple[dict[str, Any], dict[str, Any] | None]] = [
    ({"health": 50}, None),
    ({"health": 49}, {"health": 49}),
    ({"paused": "by hand", "health": 90}, {"paused": "by hand", "health": 90}),
    ({"error": "broken"}, {"error": "broken"}),
    ({"due_since": NOW - HOUR}, None),
    ({"due_since": NOW - 24 * HOUR}, {"overdue_since": NOW - 24 * HOUR}),
    ({"due_since": NOW - 24 * HOUR, "error": "torn"}, {"error": "torn"}),
    ({"due_since": NOW - 24 * HOUR, "succeeded_at": NOW - HOUR}, None),
    ({"due_since": NOW - 72 * HOUR, "succeeded_at": NOW - 25 * HOUR}, {"overdue_since": NOW - 25 * HOUR}),
    ({"due_since": NOW - 72 * HOUR, "succeeded_at": NOW - 99 * HOUR}, {"overdue_since": NOW - 72 * HOUR}),
    ({"succeeded_at": NOW - 99 * HOUR}, None),
    ({"health": 1, "dropped": True}, None),
    ({"health": 1, "windows": "sat"}, {"health": 1, "windows": "sat"}),
]


def test_signs_of_tables(store: SqlStore) -> None:
    """Tables with which something may be wrong, of the catalogs that were asked for."""
    refs = [TableRef("lake", ("sales",), f"t{n}") for n in range(len(SIGNS))]
    see(store, *refs, POND)
    change(store, POND, health=0)
    for ref, (values, _) in zip(refs, SIGNS, strict=True):
        change(store, ref, **values)
    found = {signs.ref: signs for signs in store.alerts.table_inputs(["lake"], ["lake"], 50, NOW - 24 * HOUR)}
    wanted = zip(refs, SIGNS, strict=True)
    assert found == {ref: TableInputs(ref, **signs) for ref, (_, signs) in wanted if signs is not None}
    at_rest = store.alerts.table_inputs(["lake"], [], 50, NOW - 24 * HOUR)
    assert [(signs.paused, signs.error) for signs in at_rest] == [("by hand", None), (None, "broken"), (None, "torn")]


def job(store: SqlStore, *outcomes: Outcome, state: JobState, ref: TableRef = REF, uuid: str = "u1") -> None:
    """A job with these runs, each a minute after the one before."""
    number = len(store.jobs.list(ref))
    at = NOW + number * MINUTE
    job_id = store.jobs.claim(ref, uuid, (COMPACT, EXPIRE), ME, at)
    assert job_id is not None
    for outcome in outcomes:
        store.runs.record(RunRow(job_id, outcome, at, at, "m2", "p1", {}, {}), ref)
    store.jobs.finish(job_id, state, "the catalog is away", at)


def ran(state: OperationState, operation: Operation = COMPACT, reason: str = "") -> Outcome:
    """What an operation came to."""
    return Outcome(operation, state, reason)


COMMITTED, FAILING = ran(OperationState.COMMITTED), ran(OperationState.FAILED, reason="no space")
NO_SPACE, AWAY = (COMPACT, "no space"), (None, "the catalog is away")
FAILURES: Sequence[tuple[list[tuple[Outcome, ...]], list[tuple[Operation | None, str]]]] = [
    ([], []),
    ([(COMMITTED,)], []),
    ([(FAILING,)], [NO_SPACE]),
    ([(COMMITTED,), (FAILING,), (FAILING,)], [NO_SPACE]),
    ([(FAILING,), (COMMITTED,)], []),
    ([(FAILING,), (ran(OperationState.SKIPPED),)], []),
    ([(FAILING,), (ran(OperationState.DEFERRED),)], [NO_SPACE]),
    ([(FAILING,), (ran(OperationState.COMMITTED, EXPIRE),)], [NO_SPACE]),
    ([(FAILING, ran(OperationState.FAILED, EXPIRE, "x"))], [NO_SPACE, (EXPIRE, "x")]),
    ([()], [AWAY]),
    ([(), ()], [AWAY]),
    ([(), (COMMITTED,)], []),
    ([(COMMITTED,), ()], [AWAY]),
]


def test_failures(store: SqlStore) -> None:
    """Operations whose last run failed; jobs that failed before they came to a run, until a later one does."""
    refs = [TableRef("lake", ("sales",), f"t{n}") for n in range(len(FAILURES))]
    see(store, *refs)
    for ref, (jobs, _) in zip(refs, FAILURES, strict=True):
        for outcomes in jobs:
            good = any(o.state is not OperationState.FAILED for o in outcomes)
            job(store, *outcomes, state=JobState.SUCCEEDED if good else JobState.FAILED, ref=ref)
    found: dict[TableRef, list[tuple[Operation | None, str]]] = {ref: [] for ref in refs}
    for failure in store.alerts.failures(["lake"]):
        found[failure.ref].append((failure.operation, failure.reason))
    assert found == {ref: said for ref, (_, said) in zip(refs, FAILURES, strict=True)}
    assert store.alerts.failures(["pond"]) == []


def test_failures_of_a_table_that_is_another_now(store: SqlStore) -> None:
    """A failure of the table's earlier uuid counts for nothing, nor does one of a dropped table."""
    see(store, REF, OTHER)
    change(store, REF, table_uuid="u2")
    job(store, FAILING, state=JobState.FAILED)
    assert store.alerts.failures(["lake"]) == []
    job(store, FAILING, state=JobState.FAILED, uuid="u2")
    assert store.alerts.failures(["lake"]) == [Failure(REF, *NO_SPACE)]
    see(store, OTHER)
    assert store.alerts.failures(["lake"]) == []


def test_unsupported_tables(store: SqlStore) -> None:
    """Tables of which no operation is due or not due, and one at least says that it cannot."""
    verdicts = {REF: ("unsupported", "blocked"), OTHER: ("unsupported", "not_due"), POND: ("unsupported", "due")}
    see(store, *verdicts)
    with store.engine.begin() as connection:
        by_place = {(r.catalog, r.name): r.id for r in connection.execute(sa.select(TABLES))}
        for ref, (first, second) in verdicts.items():
            for operation, verdict in ((COMPACT, first), (EXPIRE, second)):
                row = {"table_id": by_place[ref.catalog, ref.name], "operation": operation, "verdict": verdict}
                connection.execute(sa.insert(VERDICTS).values(**row, reason="encrypted", at=NOW))
    assert store.alerts.unsupported(["lake", "pond"]) == [(REF, "encrypted")]
    assert store.alerts.unsupported(["pond"]) == []


def test_the_queue(store: SqlStore) -> None:
    """How many jobs wait, and since when the oldest does; a running one does not."""
    see(store, REF, OTHER)
    assert store.alerts.backlog() == QueueBacklog(0, None)
    for minutes, ref in enumerate((OTHER, REF)):
        store.jobs.enqueue(PlannedJob(ref, "u1", (COMPACT,), 1.0, 1.0, 1.0, "due"), ME, NOW + minutes * MINUTE)
    assert store.alerts.backlog() == QueueBacklog(2, NOW)
    store.jobs.dequeue("host:1:2", ["lake"], NOW, 1)
    assert store.alerts.backlog() == QueueBacklog(1, NOW + MINUTE)
