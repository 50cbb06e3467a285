"""The contract of every store for alerts: one open alert a key, each delivery claimed by one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta
from threading import Barrier

from icewright.core.alerts import Acknowledgement, Alert, AlertRule, Begin, Condition, Forget, Raise, Resolve, Severity
from icewright.core.plan import PlannedJob
from icewright.core.policy import Operation
from icewright.core.runs import JobState, OperationState, Outcome
from icewright.core.table import TableRef
from icewright.ports import AlertQuery, PendingDelivery, Pointer, QueueBacklog, RunRow, Store
from icewright.testing import NOW, REF
from icewright.testing.contracts.cases import COMPACT, EXPIRE, ME, StoreSuite, at_once

OTHER = TableRef("lake", ("a.b", "c"), "it's %_☃")
POND = TableRef("pond", ("sales",), "orders")
DOWN = Condition(AlertRule.CATALOG_UNREACHABLE, "lake", "it cannot be read: ☃ 'quoted' %s")
FAILED = Condition(AlertRule.JOB_FAILED, str(OTHER), "compact failed", OTHER)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
EVERY = AlertQuery(resolved=None)
SLACK, MAIL = "slack", "mailto 2"


def beginning(condition: Condition = FAILED, *, raised: bool = True) -> Begin:
    """Return the change that begins an alert."""
    return Begin(condition, Severity.WARNING, raised)


def record_all(store: Store, *refs: TableRef) -> None:
    """Record the tables, each in its catalog."""
    for name in {ref.catalog for ref in refs}:
        store.tables.record_listing(name, [Pointer(ref, "m1") for ref in refs if ref.catalog == name], NOW)


def raised(store: Store, *channels: str, condition: Condition = FAILED) -> Alert:
    """Raise one alert and return it; the channels are owed its delivery."""
    record_all(store, OTHER)
    store.alerts.record_changes([beginning(condition)], channels, NOW)
    (alert,) = store.alerts.unresolved()
    return alert


def claimed(store: Store, *channels: str, now: datetime = NOW) -> Sequence[PendingDelivery]:
    """Claim the pending deliveries of the channels for five minutes."""
    return store.alerts.claim_deliveries(channels, now, now + 5 * MINUTE)


def delivered_to(deliveries: Sequence[PendingDelivery]) -> list[tuple[str, bool]]:
    """Return the channel of each delivery, and whether it reports the end of the alert."""
    return [(delivery.channel, delivery.resolved) for delivery in deliveries]


def run_job(store: Store, *outcomes: Outcome, state: JobState, ref: TableRef = REF, uuid: str = "u1") -> None:
    """Run a job with these outcomes, a minute after the job before."""
    number = len(store.jobs.list(ref))
    at = NOW + number * MINUTE
    job_id = store.jobs.claim(ref, uuid, (COMPACT, EXPIRE), ME, at)
    assert job_id is not None
    for outcome in outcomes:
        store.runs.record(RunRow(job_id, outcome, at, at, "m2", "p1", {}, {}), ref)
    store.jobs.finish(job_id, state, "the catalog is away", at)


def ran(state: OperationState, operation: Operation = COMPACT, reason: str = "") -> Outcome:
    """Return the outcome of one operation."""
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


class AlertStoreTests(StoreSuite):
    """Alerts, their deliveries, and the conditions that raise them."""

    def test_the_life_of_an_alert(self, store: Store) -> None:
        """An alert is noticed, raised and resolved; each change is made once, and resolved alerts stay listed."""
        record_all(store, OTHER)
        store.alerts.record_changes([beginning(DOWN, raised=False)], (), NOW)
        (pending,) = store.alerts.unresolved()
        assert (pending.key, pending.since, pending.raised_at, pending.ref) == (DOWN.key, NOW, None, None)
        assert store.alerts.list(EVERY) == []
        store.alerts.record_changes([Raise(pending, "worse", Severity.CRITICAL)], (), NOW + MINUTE)
        store.alerts.record_changes([Raise(pending, "once more", Severity.INFO), Forget(pending)], (), NOW + 2 * MINUTE)
        (open_now,) = store.alerts.list()
        assert (open_now.message, open_now.severity, open_now.raised_at) == ("worse", Severity.CRITICAL, NOW + MINUTE)
        store.alerts.record_changes([Resolve(open_now)], (), NOW + 3 * MINUTE)
        store.alerts.record_changes([Resolve(open_now)], (), NOW + 4 * MINUTE)
        assert (store.alerts.unresolved(), store.alerts.list()) == ([], [])
        (over,) = store.alerts.list(EVERY)
        assert over == replace(open_now, resolved_at=NOW + 3 * MINUTE)
        store.alerts.record_changes([beginning(DOWN)], (), NOW + HOUR)
        assert [a.resolved_at for a in store.alerts.list(EVERY)] == [None, NOW + 3 * MINUTE], "newest first"

    def test_an_alert_is_found_among_newer_ones(self, store: Store) -> None:
        """Severity, time, id, state and visibility choose among all alerts; the limit counts only alerts that match."""
        record_all(store, OTHER)
        store.alerts.record_changes([Begin(FAILED, Severity.INFO, raised=True)], (), NOW)
        store.alerts.record_changes([Begin(DOWN, Severity.CRITICAL, raised=True)], (), NOW + HOUR)
        newest, oldest = store.alerts.list()
        owners, others = (OTHER.parts[:-1],), (("pond",),)
        for query, found in (
            (AlertQuery(visibility=owners), [oldest]),
            (AlertQuery(visibility=others), []),
            (AlertQuery(severity=Severity.INFO), [oldest]),
            (AlertQuery(search=oldest.subject[2:].upper()), [oldest]),
            (AlertQuery(search="%%"), []),
            (AlertQuery(alert_id=oldest.id), [oldest]),
            (AlertQuery(since=NOW + MINUTE), [newest]),
            (AlertQuery(resolved=True), []),
        ):
            assert store.alerts.list(query, 1) == found, query
        assert store.alerts.count_open(None) == {Severity.INFO: 1, Severity.CRITICAL: 1}
        assert (store.alerts.count_open(owners), store.alerts.count_open(others)) == ({Severity.INFO: 1}, {})
        store.alerts.record_changes([Resolve(oldest)], (), NOW + 2 * HOUR)
        (over,) = store.alerts.list(AlertQuery(resolved=True, since=NOW + 2 * HOUR), 1)
        assert (over.id, store.alerts.count_open(None)) == (oldest.id, {Severity.CRITICAL: 1})

    def test_an_alert_names_its_table(self, store: Store) -> None:
        """The name of a table comes back unchanged, however odd."""
        alert = raised(store)
        assert (alert.ref, alert.subject, alert.catalog) == (OTHER, str(OTHER), "lake")

    def test_one_open_alert_a_key(self, store: Store) -> None:
        """When several processes raise the same alert at the same time, one of them succeeds."""
        record_all(store, OTHER)
        start = Barrier(4)

        def run(_: int) -> None:
            start.wait()
            store.alerts.record_changes([beginning(), beginning(DOWN)], [SLACK], NOW)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(run, range(4)))
        assert sorted(alert.key for alert in store.alerts.unresolved()) == sorted([FAILED.key, DOWN.key])
        assert delivered_to(claimed(store, SLACK)) == [(SLACK, False)] * 2

    def test_each_delivery_is_claimed_once(self, store: Store) -> None:
        """When several processes claim at the same time, each delivery goes to one of them."""
        raised(store, SLACK, MAIL)
        start = Barrier(4)

        def run(_: int) -> Sequence[PendingDelivery]:
            start.wait()
            return claimed(store, SLACK, MAIL)

        with ThreadPoolExecutor(4) as pool:
            deliveries = [delivery for some in pool.map(run, range(4)) for delivery in some]
        assert sorted(delivered_to(deliveries)) == [(MAIL, False), (SLACK, False)]

    def test_a_claim_runs_out(self, store: Store) -> None:
        """A claim that ends without a delivery is given to another process; delivered ones are never claimed again."""
        raised(store, SLACK)
        (delivery,) = claimed(store, SLACK)
        assert claimed(store, SLACK, now=NOW + 4 * MINUTE) == []
        (again,) = claimed(store, SLACK, now=NOW + 5 * MINUTE)
        assert again == delivery
        store.alerts.mark_delivered([again], NOW + 5 * MINUTE)
        assert claimed(store, SLACK, now=NOW + HOUR) == []

    def test_a_channel_that_is_down(self, store: Store) -> None:
        """A failed delivery is due again at its time with its failures counted; other channels are unaffected."""
        raised(store, SLACK, MAIL)
        mail, slack = claimed(store, SLACK, MAIL)
        store.alerts.mark_delivered([mail], NOW)
        store.alerts.schedule_redelivery([slack], NOW + MINUTE)
        assert claimed(store, SLACK, MAIL, now=NOW + MINUTE - timedelta(microseconds=1)) == []
        (again,) = claimed(store, SLACK, MAIL, now=NOW + MINUTE)
        assert (again.channel, again.failures) == (SLACK, 1)
        store.alerts.mark_delivered([again], NOW + 2 * MINUTE)
        (alert,) = store.alerts.list()
        assert [(t.channel, t.resolved, t.failures, t.told_at) for t in alert.deliveries] == [
            (MAIL, False, 0, NOW),
            (SLACK, False, 1, NOW + 2 * MINUTE),
        ]

    def test_the_end_comes_after_the_beginning(self, store: Store) -> None:
        """The end of an alert is delivered only after the channel accepted its beginning."""
        alert = raised(store, SLACK, MAIL)
        mail, slack = claimed(store, SLACK, MAIL)
        store.alerts.mark_delivered([mail], NOW)
        store.alerts.schedule_redelivery([slack], NOW + MINUTE)
        store.alerts.record_changes([Resolve(alert)], [SLACK, MAIL], NOW)
        assert delivered_to(claimed(store, SLACK, MAIL)) == [(MAIL, True)]
        (late,) = claimed(store, SLACK, MAIL, now=NOW + MINUTE)
        assert (late.channel, late.resolved) == (SLACK, False)
        store.alerts.mark_delivered([late], NOW + MINUTE)
        (end,) = claimed(store, SLACK, now=NOW + MINUTE)
        assert (end.resolved, end.alert.resolved_at) == (True, NOW)

    def test_alerts_of_one_key_come_in_order(self, store: Store) -> None:
        """A channel that was down receives the alerts of one key in order: begin, end, begin."""
        alert = raised(store, SLACK)
        (first,) = claimed(store, SLACK)
        store.alerts.schedule_redelivery([first], NOW + MINUTE)
        store.alerts.record_changes([Resolve(alert)], [SLACK], NOW)
        store.alerts.record_changes([beginning(), beginning(DOWN)], [SLACK], NOW)
        heard = []
        for minutes in range(6):
            now = NOW + minutes * MINUTE
            deliveries = claimed(store, SLACK, now=now)
            heard += [(delivery.alert.rule, delivery.resolved) for delivery in deliveries]
            store.alerts.mark_delivered(deliveries, now)
        down, failed = AlertRule.CATALOG_UNREACHABLE, AlertRule.JOB_FAILED
        assert heard == [(down, False), (failed, False), (failed, True), (failed, False)]

    def test_a_silence_keeps_beginnings_back(self, store: Store) -> None:
        """A silent alert tells its beginning when the silence is over, if it is still open then."""
        alert = raised(store, SLACK)
        given = Acknowledgement("ann", NOW, "☃ a deploy", NOW + HOUR)
        assert store.alerts.acknowledge(alert.id, given)
        assert [alert.acknowledgement for alert in store.alerts.list()] == [given]
        assert delivered_to(claimed(store, SLACK, now=NOW + HOUR - MINUTE)) == []
        assert delivered_to(claimed(store, SLACK, now=NOW + HOUR)) == [(SLACK, False)]

    def test_a_silence_holds_for_the_key(self, store: Store) -> None:
        """An alert that ends and begins again stays silent; what a channel was told before is ended there."""
        alert = raised(store, SLACK)
        store.alerts.mark_delivered(claimed(store, SLACK), NOW)
        assert store.alerts.acknowledge(alert.id, Acknowledgement("ann", NOW, "", NOW + HOUR))
        for minutes in (1, 2):
            (current,) = store.alerts.unresolved()
            now = NOW + minutes * MINUTE
            store.alerts.record_changes([Resolve(current)], [SLACK], now)
            store.alerts.record_changes([beginning()], [SLACK], now)
        (current,) = store.alerts.unresolved()
        assert (current.id > alert.id, current.acknowledgement) == (True, Acknowledgement("ann", NOW, "", NOW + HOUR))
        heard = claimed(store, SLACK, now=NOW + 3 * MINUTE)
        assert [(delivery.alert.id, delivery.resolved) for delivery in heard] == [(alert.id, True)]
        store.alerts.mark_delivered(heard, NOW + 3 * MINUTE)
        assert [delivery.alert.id for delivery in claimed(store, SLACK, now=NOW + HOUR)] == [current.id]

    def test_an_acknowledgement_is_withdrawn(self, store: Store) -> None:
        """The silence ends with it; without a silence it is not that of the next alert; ended alerts have none."""
        alert = raised(store, SLACK)
        assert store.alerts.acknowledge(alert.id, Acknowledgement("ann", NOW, "", NOW + HOUR))
        assert store.alerts.acknowledge(alert.id, None)
        assert delivered_to(claimed(store, SLACK)) == [(SLACK, False)]
        assert store.alerts.acknowledge(alert.id, Acknowledgement("ann", NOW))
        store.alerts.record_changes([Resolve(alert)], [SLACK], NOW)
        assert not store.alerts.acknowledge(alert.id, None)
        store.alerts.record_changes([beginning()], [SLACK], NOW)
        assert [alert.acknowledgement for alert in store.alerts.unresolved()] == [None]

    def test_channels_come_and_go(self, store: Store) -> None:
        """A new channel is owed open alerts and no resolved ones; a channel that is gone delays nobody."""
        first = raised(store, SLACK)
        store.alerts.record_changes([Resolve(first), beginning(DOWN)], [MAIL], NOW)
        assert delivered_to(claimed(store, MAIL)) == [(MAIL, False)]
        assert delivered_to(claimed(store, "pagerduty")) == []

    def test_many_alerts_at_once(self, store: Store) -> None:
        """Thousands of alerts are recorded, claimed and delivered by few statements."""
        refs = [TableRef("lake", ("sales",), f"t{n}") for n in range(3000)]
        record_all(store, *refs)
        store.alerts.record_changes(
            [beginning(replace(FAILED, subject=str(ref), ref=ref)) for ref in refs], [SLACK], NOW
        )
        deliveries = claimed(store, SLACK)
        assert {delivery.alert.ref for delivery in deliveries} == set(refs)
        store.alerts.mark_delivered(deliveries, NOW)
        store.alerts.record_changes([Resolve(delivery.alert) for delivery in deliveries], [SLACK], NOW)
        assert delivered_to(claimed(store, SLACK)) == [(SLACK, True)] * 3000

    def test_failures(self, store: Store) -> None:
        """An operation counts as failed by its last run, and a job without runs until a later job has one."""
        refs = [TableRef("lake", ("sales",), f"t{n}") for n in range(len(FAILURES))]
        record_all(store, *refs)
        for ref, (jobs, _) in zip(refs, FAILURES, strict=True):
            for outcomes in jobs:
                good = any(o.state is not OperationState.FAILED for o in outcomes)
                run_job(store, *outcomes, state=JobState.SUCCEEDED if good else JobState.FAILED, ref=ref)
        failures: dict[TableRef, list[tuple[Operation | None, str]]] = {ref: [] for ref in refs}
        for failure in store.alerts.failures(["lake"]):
            failures[failure.ref].append((failure.operation, failure.reason))
        assert failures == {ref: expected for ref, (_, expected) in zip(refs, FAILURES, strict=True)}
        assert store.alerts.failures(["pond"]) == []

    def test_faults_of_checks(self, store: Store) -> None:
        """A table has what its last check found: failed and deferred ones end nothing, one without faults does."""
        record_all(store, REF, OTHER)

        def check(state: OperationState, faults: int, ref: TableRef = REF) -> Mapping[TableRef, str]:
            found = replace(ran(state, Operation.CHECK), summary=f"{faults} faults", metrics={"faults_found": faults})
            run_job(store, found, state=JobState.PARTIAL if faults else JobState.SUCCEEDED, ref=ref)
            return store.alerts.reported(AlertRule.CHECK_FAILED, ["lake"])

        assert check(OperationState.COMMITTED, 0) == {}
        assert check(OperationState.COMMITTED, 2) == {REF: "2 faults"}
        assert check(OperationState.COMMITTED, 1) == {REF: "1 faults"}
        assert check(OperationState.DEFERRED, 0) == {REF: "1 faults"}
        assert check(OperationState.FAILED, 0) == {REF: "1 faults"}
        assert check(OperationState.COMMITTED, 0) == {}
        assert store.alerts.reported(AlertRule.CHECK_FAILED, ["pond"]) == {}

    def test_the_backlog_counts_queued_jobs(self, store: Store) -> None:
        """The backlog counts queued jobs and names the oldest; running jobs do not count."""
        record_all(store, REF, OTHER)
        assert store.alerts.backlog() == QueueBacklog(0, None)
        for minutes, ref in enumerate((OTHER, REF)):
            store.jobs.enqueue(PlannedJob(ref, "u1", (COMPACT,), 1.0, 1.0, 1.0, "due"), ME, NOW + minutes * MINUTE)
        assert store.alerts.backlog() == QueueBacklog(2, NOW)
        store.jobs.dequeue("host:1:2", ["lake"], NOW, 1)
        assert store.alerts.backlog() == QueueBacklog(1, NOW + MINUTE)

    def test_alerts_about_tables_that_move(self, store: Store) -> None:
        """Alerts and listings that lock tables in different orders do not deadlock."""
        tables = [TableRef("lake", ("s",), f"t{200 - n:04d}") for n in range(200)]  # names fall as ids rise

        def move(location: str) -> None:
            store.tables.record_listing("lake", [Pointer(ref, location) for ref in tables], NOW)

        def raised() -> None:
            about = [Condition(AlertRule.JOB_FAILED, str(ref), "failed", ref) for ref in tables]
            store.alerts.record_changes([Begin(c, Severity.WARNING, raised=True) for c in about], [], NOW)

        move("m0")
        for turn in range(1, 11):
            at_once(lambda turn=turn: move(f"m{turn}"), raised)  # type: ignore[misc]
            store.alerts.record_changes([Resolve(alert) for alert in store.alerts.unresolved()], [], NOW)
            assert {row.metadata_location for row in store.tables.list()} == {f"m{turn}"}
