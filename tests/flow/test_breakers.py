"""One fault stays one fault: what a catalog, a pool or a storage place has costs nobody else, and heals by itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from icewright.core.alerts import AlertRule
from icewright.core.breakers import FIRST_WAIT
from icewright.core.errors import (
    CatalogUnavailable,
    EngineUnavailable,
    FileMissing,
    StorageHangs,
    StorageUnavailable,
    UsageError,
)
from icewright.core.runs import JobState
from icewright.core.table import TableRef
from icewright.core.verdicts import Evaluation
from icewright.flow.alert import Alerting, alert_due
from icewright.flow.breakers import record_failure
from icewright.flow.detect import DetectionLanes, claim_due
from icewright.flow.evaluator import Evaluator, evaluate_due
from icewright.flow.execute import JobResult, execute_dequeued
from icewright.flow.queue import Planning, plan_now
from icewright.flow.runtime import Scope
from icewright.ports import StepRequest
from icewright.ports.deadlines import CatalogCalls
from icewright.testing import REF
from icewright.testing.contracts.cases import concurrently
from tests.flow.bench import COMPACT, EXPIRE, Bench, detect_due
from tests.waiting import until

SOON = 10  # seconds within which another thread answers


def serve(bench: Bench) -> list[JobResult]:
    """One round of a service: detect, evaluate, plan, and run what is queued."""
    runtime = bench.runtime()
    detect_due(runtime)
    evaluate_due(runtime, sorted(bench.catalogs))
    Planning(runtime).due()
    jobs = bench.store.jobs.dequeue("host:1:2", sorted(bench.catalogs), bench.clock.now(), 99)
    return [execute_dequeued(runtime, job) for job in jobs]


def fails(error: Exception, catalog: str = "lake") -> Callable[[StepRequest], None]:
    """An engine that meets the error on all tables of a catalog."""

    def before(request: StepRequest) -> None:
        if request.base.ref.catalog == catalog:
            raise error

    return before


def reasons(bench: Bench) -> set[str]:
    """Why what is due does not start."""
    return {deferred.reason for deferred in plan_now(bench.runtime(), sorted(bench.catalogs)).deferred}


@pytest.mark.cases(113)
def test_a_dead_catalog_costs_its_own_tables_alone(bench: Bench) -> None:
    """Jobs of the healthy catalog succeed; none is paused; work on the dead one is deferred, and goes on by itself."""
    bench.settings["execute.pause_after_failures"] = 1
    for number in range(4):
        bench.table(f"t{number}", catalog="pond")
    detect_due(bench.runtime())
    evaluate_due(bench.runtime(), ["pond"])
    bench.catalogs["pond"].down = CatalogUnavailable("connection refused")
    bench.clock.advance(minutes=2)
    bench.table("healthy")
    assert [(result.ref.name, result.state) for result in serve(bench)] == [("healthy", JobState.SUCCEEDED)]
    assert all("unavailable: catalog pond does not answer" in reason for reason in reasons(bench))
    assert not [row for row in bench.store.tables.list() if row.paused]
    bench.catalogs["pond"].down = None
    bench.clock.advance(minutes=5)
    assert {result.state for result in serve(bench)} == {JobState.SUCCEEDED}
    assert bench.store.breakers.list() == []


@pytest.mark.parametrize(
    ("error", "paused"),
    [
        (FileMissing("snap-1.avro is missing"), True),
        (CatalogUnavailable("refused"), False),
        (StorageUnavailable("503"), False),
        (EngineUnavailable("Spark died"), False),
        (UsageError("ours"), False),
        (RuntimeError("a bug of ours"), False),
    ],
)
def test_only_faults_of_the_table_pause_it(bench: Bench, error: Exception, *, paused: bool) -> None:
    """Three jobs in a row that met the same error: the breaker counts those of the table alone."""
    bench.table()
    bench.before = fails(error)
    for _ in range(3):
        bench.run(EXPIRE)
    assert (bench.store.tables.list()[0].paused is not None) == paused


def test_faults_of_others_do_not_count_among_those_of_the_table(bench: Bench) -> None:
    """Two failures of the table, one of the pool between: the third of its own pauses it."""
    bench.table()
    for error in (FileMissing("a"), EngineUnavailable("b"), FileMissing("c"), FileMissing("d")):
        assert bench.store.tables.get(bench.table()) is None or not bench.store.tables.list()[0].paused
        bench.before = fails(error)
        bench.run(EXPIRE)
    assert bench.store.tables.list()[0].paused is not None


def test_resume_clears_the_count_of_failures(bench: Bench) -> None:
    """A table that was paused and resumed is paused again by three new failures, not by the first."""
    ref = bench.table()
    bench.before = fails(FileMissing("gone"))
    for _ in range(3):
        bench.run(EXPIRE)
    bench.store.tables.pause(ref, None)
    bench.clock.advance(seconds=1)
    bench.run(EXPIRE)
    assert bench.store.tables.list()[0].paused is None
    bench.clock.advance(seconds=1)
    bench.run(EXPIRE)
    bench.run(EXPIRE)
    assert bench.store.tables.list()[0].paused is not None


def test_a_pool_that_is_away_stops_its_own_work_alone(bench: Bench) -> None:
    """After three tables no further compaction starts; expiry goes on; one probe, and all goes on."""
    for number in range(5):
        bench.rot(bench.table(f"t{number}"))
    bench.limits = bench.limits.__class__(total=9)
    broken = [True]

    def before(request: StepRequest) -> None:
        if broken[0] and request.operation is COMPACT:
            raise EngineUnavailable("Spark died")

    bench.before = before
    serve(bench)
    bench.clock.advance(seconds=1)
    (breaker,) = bench.store.breakers.list()
    assert breaker.resource == "pool default"
    assert EXPIRE in {operation for _, operation in bench.asked}
    broken[0] = False
    bench.clock.advance(minutes=6)
    bench.engine.requests.clear()

    def probes() -> list[TableRef]:
        return [job.ref for job in plan_now(bench.runtime(), ["lake"]).jobs if COMPACT in job.operations]

    (probe,) = probes()
    bench.store.tables.pause(probe, "by hand")
    assert probes() != [probe], "a table that may not begin is no probe"
    assert len(probes()) == 1
    bench.store.tables.pause(probe, None)
    serve(bench)
    serve(bench)
    assert {name for name, operation in bench.asked if operation is COMPACT} == {f"t{n}" for n in range(5)}
    assert bench.store.breakers.list() == []


def test_tables_that_fail_at_the_same_moment_are_counted_each(bench: Bench) -> None:
    """Evaluations fail together where their storage is away: none of them is counted over another one."""
    runtime = bench.runtime()
    for resource in (f"storage s3://{number}" for number in range(5)):
        concurrently(3, lambda number, resource=resource: record_failure(runtime, resource, f"t{number}", "503"))  # type: ignore[misc]
    assert [breaker.failures for breaker in bench.store.breakers.list()] == [3] * 5


def test_one_job_probes_at_a_time(bench: Bench) -> None:
    """Of jobs that were queued before the breaker opened one runs when its wait is over; the others are given back."""
    for number in range(3):
        bench.table(f"t{number}")
    runtime = bench.runtime()
    detect_due(runtime)
    evaluate_due(runtime, ["lake"])
    Planning(runtime).due()
    jobs = bench.store.jobs.dequeue("host:1:2", ["lake"], bench.clock.now(), 9)
    bench.catalog.down = CatalogUnavailable("refused")
    bench.clock.advance(minutes=2)
    detect_due(runtime)
    bench.catalog.down = None
    assert [execute_dequeued(runtime, job).state for job in jobs[:1]] == [JobState.CANCELLED]
    bench.clock.advance(minutes=1)
    inner: list[JobResult] = []
    bench.before = lambda _: inner.append(execute_dequeued(runtime, jobs[2])) if not inner else None
    assert execute_dequeued(runtime, jobs[1]).state is JobState.SUCCEEDED
    assert [result.state for result in inner] == [JobState.CANCELLED]
    assert bench.store.breakers.list() == []


def test_tables_that_could_not_be_read_are_read_when_the_storage_is_back(bench: Bench) -> None:
    """An evaluation that meets dead storage is tried again by the breaker's time, not an hour later."""
    refs = [bench.table(f"t{number}") for number in range(4)]
    bench.files.broken = dict.fromkeys(refs, StorageUnavailable("503"))
    serve(bench)
    assert {row.error for row in bench.store.tables.list()} == {"StorageUnavailable: 503"}
    bench.files.broken.clear()
    for _ in range(2):
        bench.clock.advance(minutes=2)
        serve(bench)
    assert {row.error for row in bench.store.tables.list()} == {None}
    assert len(bench.asked) == 4


def test_an_evaluation_probes_the_storage_where_no_job_is_due(bench: Bench) -> None:
    """One after the wait closes its breaker, though others have read files before; none does while files are away."""
    runtime, refs = bench.runtime(), [bench.table(f"t{number}") for number in range(4)]
    bench.files.broken = dict.fromkeys(refs, StorageUnavailable("503"))
    detect_due(runtime)
    evaluate_due(runtime, ["lake"])
    failures = [breaker.failures for breaker in bench.store.breakers.list()]
    bench.clock.advance(minutes=2)
    evaluate_due(runtime, ["lake"])
    (breaker,) = bench.store.breakers.list()
    assert (breaker.resource, [breaker.failures > count for count in failures]) == ("storage s3://lake", [True])
    bench.files.broken.clear()
    bench.store.tables.schedule_evaluation(refs, bench.clock.now())
    evaluate_due(runtime, ["lake"])
    assert bench.store.breakers.list() == [breaker], "its wait is not over"
    bench.clock.advance(minutes=3)
    bench.store.tables.schedule_evaluation(refs[:1], bench.clock.now())
    evaluate_due(runtime, ["lake"])
    assert (bench.store.breakers.list(), bench.asked) == ([], [])


def test_an_evaluation_leaves_a_catalog_that_another_process_probes(bench: Bench) -> None:
    """It puts its table off; when that probe has not ended in its time, this one reads the table and ends the wait."""
    runtime, ref = bench.runtime(), bench.table()
    detect_due(runtime)
    bench.catalog.down = CatalogUnavailable("refused")
    bench.clock.advance(minutes=2)
    detect_due(runtime)
    bench.catalog.down = None
    for probed, left in ((True, ["catalog lake"]), (False, [])):
        bench.clock.advance(minutes=11)
        now = bench.clock.now()
        assert not probed or bench.store.breakers.claim_probe("catalog lake", now, now + timedelta(minutes=10))
        bench.store.tables.schedule_evaluation([ref], now)
        evaluate_due(runtime, ["lake"])
        assert [breaker.resource for breaker in bench.store.breakers.list()] == left
        (row,) = bench.store.tables.list()
        assert (row.evaluated_at is None) == probed
        assert not probed or row.evaluate_at == now + FIRST_WAIT, "and not again in each round"


def test_tables_of_a_failing_catalog_wait_until_it_is_tried_again(bench: Bench) -> None:
    """None of them is claimed before, however long that is."""
    runtime, ref = bench.runtime(), bench.table()
    detect_due(runtime)
    bench.catalog.down = CatalogUnavailable("refused")
    for _ in range(4):
        bench.clock.advance(minutes=10)
        detect_due(runtime)
    (breaker,), now = bench.store.breakers.list(), bench.clock.now()
    assert breaker.retry_at > now + FIRST_WAIT
    bench.store.tables.schedule_evaluation([ref], now)
    evaluate_due(runtime, ["lake"])
    assert [row.evaluate_at for row in bench.store.tables.list()] == [breaker.retry_at]


def test_a_failing_resource_raises_one_alert(bench: Bench) -> None:
    """However many tables wait, and it resolves itself."""
    bench.limits = bench.limits.__class__(total=9)
    for number in range(4):
        bench.table(f"t{number}")
    bench.before = fails(StorageUnavailable("503 slow down"))
    serve(bench)
    bench.clock.advance(seconds=1)
    alert_due(bench.runtime(), Alerting())
    raised = [alert for alert in bench.store.alerts.unresolved() if alert.raised_at is not None]
    assert [(alert.rule, alert.subject) for alert in raised] == [(AlertRule.RESOURCE_UNAVAILABLE, "storage s3://lake")]
    bench.before = lambda _: None
    bench.clock.advance(minutes=6)
    serve(bench)
    alert_due(bench.runtime(), Alerting())
    assert not bench.store.alerts.unresolved()


@contextmanager
def hanging(bench: Bench, catalog: str) -> Iterator[threading.Event]:
    """A catalog whose listing does not return before the end of the block; the event tells that it was asked."""
    asked, release = threading.Event(), threading.Event()
    pointers = bench.catalogs[catalog].pointers

    def wait() -> object:
        asked.set()
        release.wait(60)
        return pointers()

    bench.catalogs[catalog].pointers = wait  # type: ignore[assignment,method-assign]
    try:
        yield asked
    finally:
        release.set()


def test_a_catalog_that_hangs_holds_no_other(bench: Bench) -> None:
    """The healthy one is listed again and again, by this process and by others, and the hung one has one lane."""
    bench.table(catalog="a")
    bench.table()
    moved = threading.Event()
    with hanging(bench, "a") as asked:
        runtime = bench.runtime()
        lanes = DetectionLanes(runtime, moved.set)
        lanes.due()
        assert asked.wait(SOON)
        assert moved.wait(SOON), "the healthy catalog is listed while the other hangs"
        bench.clock.advance(minutes=2)
        assert claim_due(bench.runtime()) == ["lake"], "also by another process"
        before = threading.active_count()
        bench.clock.advance(hours=1)
        lanes.due()
        assert threading.active_count() <= before + 2, "no second lane for the one that hangs"


def test_a_clock_that_is_set_back_stops_neither_detection_nor_evaluation(bench: Bench) -> None:
    """What was written while it was an hour ahead is no reason to wait for an hour."""
    ref = bench.table()
    runtime = bench.runtime()
    bench.clock.advance(hours=1)
    assert detect_due(runtime).changed == 1
    assert evaluate_due(runtime, ["lake"]) == [ref]
    bench.clock.advance(hours=-1)
    bench.catalog.concurrently(ref)
    assert detect_due(runtime).changed == 1
    assert evaluate_due(runtime, ["lake"]) == [ref]
    row = runtime.store.tables.get(ref)
    assert row is not None
    assert row.evaluated_at == bench.clock.now()
    assert row.evaluated_location == row.metadata_location


def test_a_clock_that_is_set_back_lengthens_no_cooldown(bench: Bench) -> None:
    """A run of the time when it was an hour ahead delays the next one no longer than an evaluation does."""
    bench.table()
    bench.before = fails(FileMissing("gone"))
    bench.clock.advance(hours=1)
    assert [result.state for result in serve(bench)] == [JobState.FAILED]
    assert serve(bench) == []
    assert all("cooling down" in reason for reason in reasons(bench))
    bench.clock.advance(hours=-1)
    assert [result.state for result in serve(bench)] == [JobState.FAILED]
    assert serve(bench) == []


def test_each_claim_has_the_time_out_of_its_catalog(bench: Bench) -> None:
    """A catalog with a short time-out is free for others after it, whatever the others take."""
    bench.table()
    bench.table(catalog="slow")
    bench.scopes = {"lake": Scope(timeout=timedelta(seconds=10)), "slow": Scope(timeout=timedelta(minutes=9))}
    assert sorted(claim_due(bench.runtime())) == ["lake", "slow"]
    bench.clock.advance(minutes=2)
    assert claim_due(bench.runtime()) == ["lake"]


@pytest.mark.usefixtures("short_rounds")
def test_a_table_that_hangs_holds_one_slot_of_evaluation(bench: Bench) -> None:
    """All others are evaluated, round after round, though its claim runs out."""
    hung = bench.table("hung")
    bench.settings["evaluate.timeout_seconds"] = 3600
    release = threading.Event()
    facts = bench.files.facts

    def wait(metadata: object, thresholds: object) -> object:
        if metadata.ref == hung:  # type: ignore[attr-defined]
            release.wait(60)
        return facts(metadata, thresholds)  # type: ignore[arg-type]

    bench.files.facts = wait  # type: ignore[assignment,method-assign]
    runtime = bench.runtime()
    evaluator = Evaluator(runtime, ["lake"])
    try:
        for number in range(6):
            bench.table(f"t{number}")
            detect_due(runtime)
            evaluator.due()
            bench.clock.advance(minutes=3)
        others = {f"t{number}" for number in range(6)}
        until(lambda: {row.ref.name for row in bench.store.tables.list() if row.evaluated_at is not None} == others)
    finally:
        release.set()
        evaluator.close()


@pytest.mark.usefixtures("short_rounds")
def test_a_table_that_moves_while_it_is_evaluated_is_evaluated_again_at_once(bench: Bench) -> None:
    """The evaluation that ends has taken the claim of the next one for its own: nobody waits for that to run out."""
    ref, evaluated = bench.table(), threading.Event()
    runtime, record = bench.runtime(), bench.store.tables.record_evaluation

    def moved(evaluation: Evaluation, now: datetime, fingerprint: str) -> None:
        record(evaluation, now, fingerprint)
        if not evaluated.is_set():
            bench.store.tables.schedule_evaluation([ref], now)
            evaluated.set()
            release.wait(60)

    release = threading.Event()
    bench.store.tables.record_evaluation = moved  # type: ignore[assignment,method-assign]
    evaluator = Evaluator(runtime, ["lake"])
    try:
        detect_due(runtime)
        evaluator.due()
        assert evaluated.wait(60)
        evaluator.due()  # claims the table again while its first evaluation is about to return
        release.set()
        ended = 0
        while (refs := evaluator.round()) is not None:
            ended += len(refs)
        assert ended == 2
    finally:
        release.set()
        evaluator.close()


@pytest.mark.usefixtures("short_looks")
def test_nobody_waits_for_a_catalog_that_others_know_not_to_answer(freed: threading.Event) -> None:
    """A call that began before its breaker opened is given up when that opens, long before its own limit."""
    calls = CatalogCalls({"pond": timedelta(hours=1)})
    with pytest.raises(CatalogUnavailable, match="catalog pond does not answer: refused"):
        calls.ask("pond", lambda: freed.wait(60), lambda: "refused")
    with pytest.raises(CatalogUnavailable, match="catalog pond has not answered an earlier request yet"):
        calls.ask("pond", lambda: True)


@pytest.mark.cases(114)
@pytest.mark.usefixtures("short_looks")
def test_a_catalog_is_asked_anew_beside_requests_that_never_end(freed: threading.Event) -> None:
    """It may answer by now; only so many threads wait for one that never does."""
    seconds = [0.0]
    calls = CatalogCalls({"pond": timedelta(hours=1)}, lambda: seconds[0])
    for _ in range(2):
        for said in ("does not answer: refused", "has not answered an earlier request yet"):
            with pytest.raises(CatalogUnavailable, match=said):
                calls.ask("pond", lambda: freed.wait(60), lambda: "refused")
        seconds[0] += 30
    assert calls.ask("pond", lambda: True)
    for said in ("does not answer: refused",) * 3 + ("has not answered an earlier request yet",) * 2:
        seconds[0] += 30
        with pytest.raises(CatalogUnavailable, match=said):
            calls.ask("pond", lambda: freed.wait(60), lambda: "refused")


@pytest.mark.cases(115)
def test_a_read_that_hangs_costs_its_table_alone(freed: threading.Event) -> None:
    """The next read of the table fails at once; other tables are read, and the catalog is asked, as before."""
    calls, limit = CatalogCalls({"lake": timedelta(hours=1)}), timedelta(milliseconds=1)
    with pytest.raises(StorageHangs, match=r"reading lake.sales.orders did not answer within 0.001 s"):
        calls.read(REF, lambda: freed.wait(60), limit)
    with pytest.raises(StorageHangs, match=r"reading lake.sales.orders has not answered an earlier request yet"):
        calls.read(REF, lambda: True, timedelta(hours=1))
    assert calls.read(replace(REF, name="other"), lambda: 1, timedelta(hours=1)) == 1
    assert calls.ask("lake", lambda: 2) == 2
    freed.set()
    while True:
        with suppress(StorageHangs):
            assert calls.read(REF, lambda: 3, timedelta(hours=1)) == 3
            return


@pytest.mark.cases(115)
@pytest.mark.usefixtures("short_looks")
def test_a_read_that_hangs_is_waited_for_once(freed: threading.Event) -> None:
    """Who comes while others wait for the table waits no longer than they do."""
    seconds, hangs, overdue = [0.0], threading.Semaphore(0), threading.Semaphore(0)
    calls = CatalogCalls({}, lambda: seconds[0])

    def hang() -> None:
        hangs.release()
        freed.wait(60)

    def read() -> None:
        with pytest.raises(StorageHangs):
            calls.read(REF, hang, timedelta(seconds=2))
        overdue.release()

    for began in (0.0, 1.5):
        seconds[0] = began
        threading.Thread(target=read, daemon=True).start()
        assert hangs.acquire(timeout=60)
        until(lambda: REF in calls._running)
    seconds[0] = 2.1
    for _ in "ab":
        assert overdue.acquire(timeout=10), "its limit counts from the first read"


@pytest.fixture
def freed() -> Iterator[threading.Event]:
    """What a hanging call waits for; set at the end of the test."""
    event = threading.Event()
    yield event
    event.set()


def test_a_catalog_that_hangs_is_asked_by_one_thread(bench: Bench) -> None:
    """Its next listings fail at once while the first one has no answer; afterwards it is listed again."""
    bench.table(catalog="a")
    bench.scopes = {"a": Scope(timeout=timedelta(milliseconds=1))}
    with hanging(bench, "a") as asked:
        lanes = DetectionLanes(bench.runtime(), lambda: None)
        for _ in range(3):
            lanes.due()
            asked.wait(SOON)
            _ended("lane a")
            bench.clock.advance(hours=1)
        assert sum(thread.name == "ask a" for thread in threading.enumerate()) == 1
        row = next(row for row in bench.store.catalogs.list() if row.name == "a")
        assert "has not answered an earlier request" in str(row.error)
    _ended("ask a")
    lanes.due()
    _ended("lane a")
    row = next(row for row in bench.store.catalogs.list() if row.name == "a")
    assert row.error is None


def _ended(name: str) -> None:
    for thread in threading.enumerate():
        if thread.name == name:
            thread.join(60)


@pytest.mark.cases(117)
@pytest.mark.parametrize("error", [FileMissing("snap-1.avro is missing"), RuntimeError("closed file")])
def test_a_frozen_worker_records_no_failure_of_a_table_that_it_lost(bench: Bench, error: Exception) -> None:
    """It comes back when others have taken the table over, meets what they changed, and says nothing of it."""
    bench.table()

    def frozen(_request: StepRequest) -> None:
        bench.clock.advance(minutes=3)
        bench.store.jobs.end_interrupted(bench.clock.now(), lambda _: False)
        raise error

    bench.before = frozen
    result = bench.run(EXPIRE)
    assert (result.state, result.outcomes) == (JobState.INTERRUPTED, ())
    (job,) = bench.store.jobs.list()
    assert job.state is JobState.INTERRUPTED
    assert bench.store.runs.list(job.job_id) == []


def test_a_service_records_scans_that_found_something(bench: Bench) -> None:
    """With the counts of a cycle's; a listing that finds nothing new leaves no event."""
    bench.table()
    for _ in range(2):
        DetectionLanes(bench.runtime(), lambda: None).due()
        _ended("lane lake")
        bench.clock.advance(minutes=5)
    (finished,) = bench.store.views.list_activity("scan_finished", None, None, 9).items
    assert finished["details"] == {"catalogs": ["lake"], "tables": 1, "changed": 1, "due": 0, "run": 0}
    assert len(bench.store.views.list_activity("scan_started", None, None, 9).items) == 1
