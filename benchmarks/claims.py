"""A queue over a long history: plans over 10,000 tables, and 8 workers that claim jobs, against a queue locked by rows.

Prints one JSON line. The peer is the queue as one would write it at first, with SQLAlchemy's ORM: the best row is
locked, changed and saved, while whoever wants it too waits. Both have the same database and as many processes.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from benchmarks.kit.bench import options
from benchmarks.kit.child import Answer, Child, measured
from benchmarks.kit.control import configured
from benchmarks.kit.databases import POSTGRESQL, SQLITE, databases, server_of
from benchmarks.kit.fleet import table_names
from benchmarks.kit.known import fill, make_due, queue
from benchmarks.kit.lake import CATALOG, Lake
from benchmarks.kit.report import REPEATS, Comparison, Run, in_turn, show

TABLES, HISTORY, QUICK_HISTORY = 10_000, 100_000, 20_000
DUE = (TABLES, 600)
WORKERS = 8
AT_ONCE = 4  # jobs that a worker with as many free places takes
PAGES = 40  # times that each question is asked
PEER = "SELECT ... FOR UPDATE of one row at a time by SQLAlchemy's ORM"


@dataclass(frozen=True)
class Claims:
    """A store with a history, and the workers of both sides."""

    engine: sa.Engine
    control: Child
    workers: Sequence[Child]
    threads: ThreadPoolExecutor
    waiting: int  # jobs that are claimed in a run

    def ours(self, limit: int = 1) -> Run:
        """By Icewright's own statement, so many at once."""
        return self._all("ours", limit=limit)

    def peer(self) -> Run:
        """By locking one row after another."""
        return self._all("naive")

    def left(self, run: Run) -> Hashable:
        """The jobs that were claimed; one that was claimed twice is there twice."""
        return tuple(run["rows"])

    def expected(self) -> Hashable:
        """Each job once."""
        return tuple(sorted(queue(self.engine, self.waiting, NOW)))

    def _all(self, how: str, **more: int) -> Answer:
        queue(self.engine, self.waiting, NOW)
        with measured(server_of(self.engine)) as found:
            answers = list(self.threads.map(lambda worker: worker.ask(how, **more), self.workers))
        ids = sorted(job for answer in answers for job in answer["rows"])
        return found.answer(rows=ids, claims=[s for answer in answers for s in answer["seconds"]])

    def planned(self, due: int) -> Mapping[str, Any]:
        """Seconds of a plan over so many tables that are due, and of a whole tick, which writes down what waits."""
        runs: dict[str, list[Run]] = {"plan": [], "tick": []}
        for _ in range(REPEATS):
            make_due(self.engine, due, datetime.now(UTC))
            for what, found in runs.items():
                found.append(self.control.ask(what))
        assert runs["plan"][-1]["jobs"] + runs["plan"][-1]["waiting"] >= due
        assert runs["tick"][-1]["queued"]
        return {
            f"{what}_{unit}": round(statistics.median(run[unit] for run in found), 3)
            for what, found in runs.items()
            for unit in ("s", "cpu")
        }


NOW = datetime.now(UTC)


@contextmanager
def claims(kind: str, waiting: int, history: int) -> Iterator[Claims]:
    """A filled store of this kind, and processes on it."""
    with tempfile.TemporaryDirectory() as folder, databases(kind, Path(folder)) as database, ExitStack() as stack:
        lake = Lake(Path(folder), database("catalog"))
        lake.create()
        state = database("state")
        config = configured(lake, state)
        engine = sa.create_engine(state)
        stack.callback(engine.dispose)
        control = stack.enter_context(Child("benchmarks.kit.control", str(config)))
        workers = [
            stack.enter_context(Child("benchmarks.kit.claimant", state, CATALOG, f"host:{n}:1"))
            for n in range(1, WORKERS + 1)
        ]
        fill(engine, table_names(TABLES), history, NOW)
        yield Claims(engine, control, workers, stack.enter_context(ThreadPoolExecutor(WORKERS)), waiting)


def compare(kind: str, waiting: int, discard: int, history: int = HISTORY) -> Comparison:
    """Claims by both in turn; then by several at once, plans and pages by ours alone."""
    with claims(kind, waiting, history) as sides:
        if not discard:  # all have started and are connected
            sides.ours()
            sides.peer()
        turns = in_turn(sides.ours, sides.peer, sides.left, expected=sides.expected(), discard=discard)
        at_once = [sides.ours(AT_ONCE) for _ in range(REPEATS)]
        assert {sides.left(run) for run in at_once} == {sides.expected()}
        pages = sides.control.ask("pages", repeats=PAGES)
        more = {
            "claims_per_second": {
                "ours": _rate(turns.ours, waiting),
                f"ours_{AT_ONCE}_at_once": _rate(at_once, waiting),
                "peer": _rate(turns.peer, waiting),
            },
            "claimed_twice": sum(len(run["rows"]) - len(set(run["rows"])) for run in (*turns.ours, *at_once)),
            "claim_ms": {"ours": _ms(turns.ours[-1]["claims"]), "peer": _ms(turns.peer[-1]["claims"])},
            "page_ms": {name: _ms(seconds) for name, seconds in pages.items()},
            "planning": {f"{due} tables due": sides.planned(due) for due in DUE},
        }
    shape = (
        f"{waiting} jobs claimed by {WORKERS} processes on {kind}; {TABLES} tables and {history} ended jobs known; "
        "memory is that of all processes, the server's too"
    )
    return Comparison("claims", PEER, shape, turns, more)


def _rate(runs: Sequence[Run], jobs: int) -> int:
    return round(jobs / statistics.median(float(run["s"]) for run in runs))


def _ms(seconds: Sequence[float]) -> Mapping[str, float]:
    """The median, and what 95 of 100 stay below."""
    ordered = sorted(seconds)
    return {
        "median": round(1000 * statistics.median(ordered), 2),
        "p95": round(1000 * ordered[len(ordered) * 95 // 100], 2),
    }


def main() -> None:
    """Fill, measure, print."""
    quick = "500 jobs instead of 5,000, 20,000 ended ones instead of 100,000; PostgreSQL alone"
    chosen = options(__doc__, quick).parse_args()
    if chosen.quick:
        show(compare(POSTGRESQL, 500, 0, QUICK_HISTORY))
        return
    show(compare(POSTGRESQL, 5_000, 1), compare(SQLITE, 1_000, 1))


if __name__ == "__main__":
    main()
