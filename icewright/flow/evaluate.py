"""Evaluation of tables. A failed read fails the whole table; facts are never incomplete."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from queue import Empty, SimpleQueue

from icewright.core.branches import chosen_branches, on_branch
from icewright.core.breakers import FIRST_WAIT, OPEN_AFTER, PROBE_LIMIT, BreakerState, is_shared_fault, storage_place
from icewright.core.effective import Knobs
from icewright.core.errors import (
    MemoryBusy,
    MetadataUnreadable,
    PackagesMissing,
    StorageHangs,
    StoreUnavailable,
    TableNotFound,
)
from icewright.core.layering import Policy
from icewright.core.policy import EVALUATE_TIMEOUT, PUBLISH_HOURS
from icewright.core.rewriting import PRIOR_READS
from icewright.core.table import TableFacts, TableMetadata, TableRef
from icewright.core.verdicts import Evaluation, evaluate, thresholds
from icewright.flow.breakers import (
    failing_resources,
    hanging_call,
    hangs_in_storage,
    location_of,
    record_fault,
    record_success,
    record_wait,
)
from icewright.flow.runtime import Runtime
from icewright.ports import Merging
from icewright.ports.memory import ROOM
from icewright.ports.rows import unseen_snapshots
from icewright.ports.work import WAITS_AFTER, SupervisedWork, WorkState, catalog_context, progress

MAX_CONCURRENT = 4  # tables that one process reads at the same time
MAX_WAITING = 8  # more that wait for an answer of a catalog or of storage
BATCH = 64
_SHOWN = 4000  # characters of an error, which may repeat what the metadata says
ROUND = timedelta(seconds=1)  # after which evaluations that still run go on in the background
MEMORY_PATIENCE = 20.0  # seconds that a table waits for memory before it is put off
RETRY_MISSING = timedelta(hours=1)  # after which a missing table is evaluated again
CLAIM = timedelta(minutes=2)  # after which another process may evaluate what this one has not


def with_readers(runtime: Runtime, facts: TableFacts) -> TableFacts:
    """Return the facts with the snapshots that readers have pinned by now, those that were read, and how often."""
    pins, reported = runtime.store.pins, runtime.store.inbox.reported_reads(facts.ref)
    queries = None if reported is None else reported.expected(PRIOR_READS, runtime.clock.now())
    return replace(facts, holds=pins.holds(facts.metadata), reads=pins.reads(facts.ref), queries=queries)


def measure(
    runtime: Runtime, policy: Policy, metadata: TableMetadata, measured: TableFacts | None = None
) -> tuple[TableFacts, Knobs]:
    """Return the facts of a table, without readers, and its settings; facts that were `measured` before may do."""
    knobs = policy.knobs_for(metadata.ref, metadata)
    sizes = thresholds(knobs, metadata.sort_order)
    if measured is not None and (measured.metadata, measured.thresholds) == (metadata, sizes):
        facts = measured
    else:
        facts = runtime.files.facts(metadata, sizes)
    chosen = chosen_branches(metadata, knobs)
    branches = {name: runtime.files.facts(on_branch(metadata, name), sizes) for name in chosen}
    catalog, wait = runtime.catalog(metadata.ref), timedelta(hours=knobs[PUBLISH_HOURS])
    unmerged = catalog.unmerged(metadata, runtime.clock.now() - wait) if wait and isinstance(catalog, Merging) else ()
    return replace(facts, branches=branches, unmerged=tuple(unmerged)), knobs


def evaluate_table(runtime: Runtime, ref: TableRef, now: datetime) -> Evaluation:
    """Read and evaluate one table. Raises the errors of reading."""
    return _evaluate(runtime, runtime.policy(), ref, now)


def _evaluate(
    runtime: Runtime, policy: Policy, ref: TableRef, now: datetime, measured: TableFacts | None = None
) -> Evaluation:
    metadata = runtime.catalog(ref).load(ref) if measured is None else measured.metadata
    facts, knobs = measure(runtime, policy, metadata, measured)
    store = runtime.store
    with store.reading_together():
        facts = with_readers(runtime, facts)
        registration = store.registrations.get(ref, metadata.table_uuid)
        sharing = tuple(store.tables.sharing(ref, metadata.location))
        history, pool = store.runs.history(ref, metadata.table_uuid), runtime.calibration(ref.catalog)
    unseen = unseen_snapshots(metadata, None if registration is None else registration.seen)
    with catalog_context(ref.catalog):
        facts = replace(facts, outside=runtime.files.outside(metadata, unseen), sharing=sharing)
    return evaluate(facts, knobs, history, now, pool)


def evaluate_and_record(
    runtime: Runtime, ref: TableRef, now: datetime, measured: TableFacts | None = None, patience: float | None = None
) -> Evaluation | None:
    """Evaluate a table and record the result; for an unreadable table record the reason and return None.

    Facts that were just `measured` need no second look: where the table has moved since, the next detection sees it. A
    table that waits for memory longer than `patience`, in seconds, is put off, and None is returned. Raises
    `StoreUnavailable` and `PackagesMissing`: they say nothing of the table.
    """
    policy = runtime.policy()
    try:
        with ROOM.table(patience):
            evaluation = _evaluate(runtime, policy, ref, now, measured)
    except MemoryBusy:
        runtime.store.tables.schedule_evaluation([ref], runtime.clock.now() + FIRST_WAIT, release=True)
        return None
    except TableNotFound:  # dropped or renamed since it was listed; the next detection sees that
        runtime.store.tables.clear_due_work([ref], now + RETRY_MISSING)
        return None
    except (StoreUnavailable, PackagesMissing):
        raise
    except Exception as error:  # noqa: BLE001 - a table that nothing can read ends no other table's evaluation
        progress()  # raises in a thread that was given up
        _record_unreadable(runtime, ref, error, now)
        return None
    _reevaluate_sharing(runtime, evaluation.facts, now)
    try:
        runtime.store.tables.record_evaluation(evaluation, now, policy.knobs_for(ref, None).fingerprint)
    except (OverflowError, ValueError) as error:  # what the metadata says is more than any store can hold
        _record_unreadable(runtime, ref, error, now)
        return None
    return evaluation


def evaluate_now(runtime: Runtime, ref: TableRef) -> Evaluation:
    """Evaluate a table, record the result and return it. Raises `MetadataUnreadable` when that is not possible."""
    evaluation = evaluate_and_record(runtime, ref, runtime.clock.now())
    if evaluation is None:
        row = runtime.store.tables.get(ref)
        error = row.error if row is not None else None
        raise MetadataUnreadable(f"{ref} cannot be evaluated: {error or 'it was dropped'}")
    return evaluation


def _record_unreadable(runtime: Runtime, ref: TableRef, error: Exception, now: datetime) -> None:
    runtime.store.tables.record_unreadable(ref, f"{type(error).__name__}: {error}"[:_SHOWN], now)
    breaker = record_fault(runtime, error, ref)
    if breaker is not None and not isinstance(error, StorageHangs):  # each try may cost a thread
        runtime.store.tables.schedule_evaluation([ref], breaker.retry_at)
    runtime.emit("unreadable", {"table": str(ref), "error": str(error)[:_SHOWN]})


def _reevaluate_sharing(runtime: Runtime, facts: TableFacts, now: datetime) -> None:
    """Schedule the evaluation of tables that do not know yet that this one shares their location."""
    if not facts.sharing:
        return
    before = runtime.store.tables.get(facts.ref)
    if before is None or before.location != facts.metadata.location:
        runtime.store.tables.schedule_evaluation(facts.sharing, now)


def evaluate_due(runtime: Runtime, catalogs: Sequence[str]) -> list[TableRef]:
    """Evaluate all tables of the catalogs that are due, and return them. Tables out of scope are skipped."""
    evaluator, evaluated = Evaluator(runtime, catalogs), list[TableRef]()
    try:
        while (ended := evaluator.round()) is not None:
            evaluated += ended
    finally:
        evaluator.close()
    return evaluated


@dataclass(eq=False)
class _Evaluating:
    """One evaluation that is queued or runs."""

    ref: TableRef
    work: SupervisedWork
    result: Future[Evaluation | None] = field(default_factory=Future)
    place: str = ""  # the storage place of the table
    began: datetime | None = None  # when a thread took it
    waited: bool = False  # for an answer, which was counted for the breaker of the catalog


class Evaluator:
    """Evaluates due tables on a few threads.

    One that waits for an answer leaves its place to another. While several wait for a catalog, its other tables are put
    off, and one of them probes it from time to time. A table whose read hangs longer than `evaluate.timeout_seconds` is
    recorded as unreadable, and its thread is replaced; the table is not evaluated again while the thread hangs, and
    what the thread brings back is not recorded.
    """

    def __init__(
        self, runtime: Runtime, catalogs: Sequence[str], seconds: Callable[[], float] = time.monotonic
    ) -> None:
        self._runtime, self._catalogs, self._seconds = runtime, catalogs, seconds
        self._queue: SimpleQueue[_Evaluating | None] = SimpleQueue()
        self._running: dict[TableRef, _Evaluating] = {}
        self._hanging: dict[TableRef, _Evaluating] = {}  # given up, and their threads have not come back
        self._claimed: dict[TableRef, str] = {}  # in the order of their turns, with their storage places
        self._hung_places: set[str] = set()  # in which several evaluations wait for a file
        self._threads = 0  # that take from the queue
        self._probing: dict[TableRef, str] = {}  # the failing catalog or storage place that each probes

    def due(self) -> int:
        """Evaluate due tables for a second at most; return how many ended. The others go on in the background."""
        return len(self.round() or ())

    def round(self) -> Sequence[TableRef] | None:
        """Do as `due`, and return the tables whose evaluation ended; None when nothing is due and nothing runs."""
        self._forget_returned()
        room = BATCH - len(self._running) - len(self._claimed)
        claimed = self._claim(room) if room > 0 else {}
        self._claimed |= claimed or {}
        if claimed is None and not self._claimed and not self._running:
            return None
        for ref in [ref for ref in self._claimed if ref not in self._running]:  # it may move while it is evaluated
            self._begin(ref, self._claimed.pop(ref))
        wait([running.result for running in self._running.values()], ROUND.total_seconds())
        ended = [ref for ref, running in self._running.items() if running.result.done()]
        errors = [error for ref in ended if (error := self._end(ref)) is not None]
        self._give_up_overdue()
        self._relieve()
        if errors:
            raise errors[0]
        return ended

    def _end(self, ref: TableRef) -> BaseException | None:
        """Forget an evaluation that has ended, and return its error; where the store failed, it begins again."""
        running = self._running.pop(ref)
        error = running.result.exception()
        if isinstance(error, StoreUnavailable):
            self._claimed.setdefault(ref, running.place)
        return error

    def states(self) -> Sequence[WorkState]:
        """Return what the running evaluations do now, and those that were given up and whose threads hang."""
        both = [*self._running.copy().values(), *self._hanging.copy().values()]
        begun = [running for running in both if running.began is not None and not running.result.done()]
        return [running.work.state(str(running.ref)) for running in begun]

    def close(self, grace: timedelta = timedelta(0)) -> None:
        """Begin no further evaluation, and record no result of those that do not end within the grace."""
        with suppress(Empty):
            while (queued := self._queue.get_nowait()) is not None:
                self._running.pop(queued.ref, None)
        for _ in range(self._threads):
            self._queue.put(None)
        wait([running.result for running in self._running.values()], grace.total_seconds())
        for running in self._running.values():
            running.work.abandon()

    def _forget_returned(self) -> None:
        """Schedule the evaluation of tables whose hanging call has returned after all."""
        returned = [ref for ref, hung in self._hanging.items() if hung.result.done()]
        for ref in returned:
            del self._hanging[ref]
        if returned:
            self._hung_places.clear()
            self._runtime.store.tables.schedule_evaluation(returned, self._runtime.clock.now())

    def _begin(self, ref: TableRef, place: str) -> None:
        if (hung := self._hanging.get(ref)) is not None:
            self._record_hanging(hung)
            return
        work = SupervisedWork(f"the evaluation of {ref}", self._seconds)
        self._running[ref] = running = _Evaluating(ref, work, place=place)
        self._queue.put(running)
        if self._threads < min(MAX_CONCURRENT, len(self._running)):
            self._start_thread()

    def _start_thread(self) -> None:
        self._threads += 1
        threading.Thread(target=self._evaluate_queued, name="evaluate", daemon=True).start()

    def _evaluate_queued(self) -> None:
        while (running := self._queue.get()) is not None:
            if not running.result.set_running_or_notify_cancel():  # it was put off
                continue
            running.began = self._runtime.clock.now()
            running.work.progress()
            try:
                with running.work.attached():
                    evaluation = evaluate_and_record(
                        self._runtime, running.ref, running.began, patience=MEMORY_PATIENCE
                    )
                    if (resource := self._probing.get(running.ref)) is not None:
                        self._end_probe(running.ref, resource)
                running.result.set_result(evaluation)
            except BaseException as error:  # noqa: BLE001 - raised again by the loop
                running.result.set_exception(error)
            if running.work.abandoned:  # another thread has replaced this one
                return

    def _end_probe(self, ref: TableRef, resource: str) -> None:
        """Close the breaker of a catalog or storage place that has answered, whatever it said of the table."""
        row = self._runtime.store.tables.get(ref)
        if row is None or row.error is None or not is_shared_fault(row.error):
            record_success(self._runtime, [resource])

    def _give_up_overdue(self) -> None:
        now = self._runtime.clock.now()
        for running in list(self._running.values()):
            if running.began is None or now - running.began < self._limit(running.ref):
                continue
            running.work.abandon()
            del self._running[running.ref]
            self._hanging[running.ref] = running
            self._threads -= 1
            self._start_thread()
            self._record_hanging(running)

    def _relieve(self) -> None:
        """Let others take the places of evaluations that wait; put off those that would wait for a failing catalog."""
        begun = [one for one in self._running.values() if one.began is not None and not one.result.done()]
        states = [(one, one.work.state(str(one.ref))) for one in begun if one.work.idle_seconds() >= WAITS_AFTER]
        waiting = [(one, state) for one, state in states if state.is_waiting]
        for one, state in waiting:
            if not one.waited:
                one.waited = True
                record_wait(self._runtime, state, one.ref)
        hung = Counter(one.place for one, state in waiting if hangs_in_storage(state.site))
        hung.update(one.place for one in self._hanging.values())
        self._hung_places = {place for place, count in hung.items() if place and count >= OPEN_AFTER}
        if waiting:
            self._postpone()
        places = MAX_CONCURRENT + min(len(waiting), MAX_WAITING)
        while self._threads < min(places, len(self._running)):
            self._start_thread()
        while self._threads > places:
            self._threads -= 1
            self._queue.put(None)

    def _postpone(self) -> None:
        """Give back the tables of failing catalogs that no thread has taken, but for those that probe them.

        So are the tables of a storage place in which several evaluations hang, such as a mount whose server is gone.
        """
        for resource, breaker in failing_resources(self._runtime).items():
            of_catalog = [one for ref, one in self._running.items() if resource == f"catalog {ref.catalog}"]
            self._defer([one for one in of_catalog if one.ref not in self._probing], breaker.retry_at)
        hung = [one for one in self._running.values() if one.place in self._hung_places]
        self._defer(hung, self._runtime.clock.now() + FIRST_WAIT)

    def _defer(self, evaluations: Sequence[_Evaluating], until: datetime) -> None:
        """Give back those that no thread has taken."""
        refs = [one.ref for one in evaluations if one.result.cancel()]
        for ref in refs:
            del self._running[ref]
        self._runtime.store.tables.schedule_evaluation(refs, until, release=True)

    def _limit(self, ref: TableRef) -> timedelta:
        return timedelta(seconds=self._runtime.policy().knobs_for(ref, None)[EVALUATE_TIMEOUT])

    def _claim(self, limit: int) -> dict[TableRef, str] | None:
        """Claim due tables and return those to evaluate now, with their storage places; None when nothing is due.

        Tables out of scope are given back, and those of a catalog that does not answer, but for one that probes it, and
        those of a storage place that hangs.
        """
        runtime, now = self._runtime, self._runtime.clock.now()
        tables, holder = runtime.store.tables, runtime.trigger.holder
        rows = tables.claim_evaluations(self._catalogs, holder, now, now + CLAIM, limit, runtime.process_has_ended)
        if not rows:
            return None
        in_scope = [row.ref for row in rows if runtime.scopes[row.ref.catalog].contains(row.ref)]
        tables.clear_due_work(list({row.ref for row in rows} - set(in_scope)), None)
        places = {row.ref: storage_place(location_of(row) or "") for row in rows}
        self._probing = {ref: resource for ref, resource in self._probing.items() if ref in self._running}
        for resource, breaker in failing_resources(runtime).items():
            needing = [ref for ref in in_scope if resource in (f"catalog {ref.catalog}", f"storage {places[ref]}")]
            free = [ref for ref in needing if ref not in self._probing]
            if (
                free
                and breaker.state(now) is BreakerState.HALF_OPEN
                and runtime.store.breakers.claim_probe(resource, now, now + PROBE_LIMIT)
            ):
                self._probing[free[-1]] = resource
                needing.remove(free[-1])
            waiting = [] if resource.startswith("storage ") else needing  # which others may read all the same
            tables.schedule_evaluation(waiting, max(breaker.retry_at, now + FIRST_WAIT), release=True)
            in_scope = [ref for ref in in_scope if ref not in waiting]
        hung = {ref for ref in in_scope if places[ref] in self._hung_places}
        tables.schedule_evaluation(list(hung), now + FIRST_WAIT, release=True)
        return {ref: places[ref] for ref in in_scope if ref not in hung}

    def _record_hanging(self, hung: _Evaluating) -> None:
        """Record that a table cannot be read, as a call that hangs holds the thread of its evaluation."""
        site, seconds = hung.work.call_site(), self._limit(hung.ref).total_seconds()
        place = f"; its thread hangs in {site}" if site is not None else ""
        message = f"{hung.ref}: the evaluation did not finish within {seconds:g} s (evaluate.timeout_seconds){place}"
        _record_unreadable(self._runtime, hung.ref, hanging_call(message, site), self._runtime.clock.now())
