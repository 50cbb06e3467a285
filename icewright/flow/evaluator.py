"""Evaluation of the tables that are due, on a few threads that wait for no table, catalog or mount for ever."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from queue import Empty, SimpleQueue

from icewright.core.breakers import (
    FIRST_WAIT,
    OPEN_AFTER,
    PROBE_LIMIT,
    Breaker,
    BreakerState,
    is_shared_fault,
    storage_place,
)
from icewright.core.errors import StoreUnavailable
from icewright.core.policy import EVALUATE_TIMEOUT
from icewright.core.table import TableRef
from icewright.core.verdicts import Evaluation
from icewright.flow.breakers import (
    failing_resources,
    hanging_call,
    hangs_in_storage,
    location_of,
    record_success,
    record_wait,
)
from icewright.flow.evaluate import evaluate_and_record, record_unreadable
from icewright.flow.runtime import Runtime
from icewright.ports.work import WAITS_AFTER, SupervisedWork, WorkState

MAX_CONCURRENT = 4  # tables that one process reads at the same time
MAX_WAITING = 8  # more that wait for an answer of a catalog or of storage
BATCH = 64
ROUND = timedelta(seconds=1)  # after which evaluations that still run go on in the background
MEMORY_PATIENCE = 20.0  # seconds that a table waits for memory before it is put off
CLAIM = timedelta(minutes=2)  # after which another process may evaluate what this one has not


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

    An evaluation that waits for an answer leaves its place to another. While several wait for a catalog, its other
    tables are put off, and one of them probes it from time to time. A table whose read hangs longer than
    `evaluate.timeout_seconds` is recorded as unreadable, and its thread is replaced; the table is not evaluated again
    while the thread hangs, and what the thread brings back is not recorded.
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
        begun = [running for running in self._running.values() if running.began and not running.result.done()]
        idle = [running for running in begun if running.work.idle_seconds() >= WAITS_AFTER]
        states = [(running, running.work.state(str(running.ref))) for running in idle]
        waiting = [(running, state) for running, state in states if state.is_waiting]
        for running, state in waiting:
            if not running.waited:
                running.waited = True
                record_wait(self._runtime, state, running.ref)
        hanging = Counter(running.place for running, state in waiting if hangs_in_storage(state.site))
        hanging.update(hung.place for hung in self._hanging.values())
        self._hung_places = {place for place, count in hanging.items() if place and count >= OPEN_AFTER}
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
            of_catalog = [queued for ref, queued in self._running.items() if resource == f"catalog {ref.catalog}"]
            self._defer([queued for queued in of_catalog if queued.ref not in self._probing], breaker.retry_at)
        hung = [queued for queued in self._running.values() if queued.place in self._hung_places]
        self._defer(hung, self._runtime.clock.now() + FIRST_WAIT)

    def _defer(self, evaluations: Sequence[_Evaluating], until: datetime) -> None:
        """Give back those that no thread has taken."""
        refs = [evaluation.ref for evaluation in evaluations if evaluation.result.cancel()]
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
            probe = self._begin_probe(resource, breaker, needing, now)
            if resource.startswith("storage "):  # tables of it may be read all the same
                continue
            postponed = [ref for ref in needing if ref != probe]
            tables.schedule_evaluation(postponed, max(breaker.retry_at, now + FIRST_WAIT), release=True)
            in_scope = [ref for ref in in_scope if ref not in postponed]
        hung = {ref for ref in in_scope if places[ref] in self._hung_places}
        tables.schedule_evaluation(list(hung), now + FIRST_WAIT, release=True)
        return {ref: places[ref] for ref in in_scope if ref not in hung}

    def _begin_probe(
        self, resource: str, breaker: Breaker, needing: Sequence[TableRef], now: datetime
    ) -> TableRef | None:
        """Return the table that probes a failing catalog or storage place, if its breaker allows a try now."""
        free = [ref for ref in needing if ref not in self._probing]
        if not free or breaker.state(now) is not BreakerState.HALF_OPEN:
            return None
        if not self._runtime.store.breakers.claim_probe(resource, now, now + PROBE_LIMIT):
            return None
        self._probing[free[-1]] = resource
        return free[-1]

    def _record_hanging(self, hung: _Evaluating) -> None:
        """Record that a table cannot be read, as a call that hangs holds the thread of its evaluation."""
        site, seconds = hung.work.call_site(), self._limit(hung.ref).total_seconds()
        place = f"; its thread hangs in {site}" if site is not None else ""
        message = f"{hung.ref}: the evaluation did not finish within {seconds:g} s (evaluate.timeout_seconds){place}"
        record_unreadable(self._runtime, hung.ref, hanging_call(message, site), self._runtime.clock.now())
