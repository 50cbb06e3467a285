"""Simulations for pages: one at a time, in a process of its own that is ended when it takes too long."""

from __future__ import annotations

import multiprocessing
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from icewright.app.simulating import Made, Replayed, simulate_all
from icewright.app.web.problems import Problem
from icewright.core.layering import Policy
from icewright.core.simulation.meter import Result
from icewright.core.simulation.run import Slots, Span

SECONDS = 60.0  # that one may take
_KEPT = 16
_POLL = 0.2


@dataclass(frozen=True)
class SimulationRequest:
    """The policy and fleet that a simulation is asked for."""

    origin: Made | Replayed
    policies: Mapping[str, Policy | None]
    span: Span
    room: Slots


@dataclass(frozen=True)
class Simulated:
    """What came of one, for whoever asked for it."""

    owner: str
    title: str
    said: str  # which policy was proposed
    results: Mapping[str, Result]
    query: Mapping[str, str]  # of the form


@dataclass
class Simulations:
    """The results of the last simulations, in memory."""

    _found: OrderedDict[str, Simulated] = field(default_factory=OrderedDict)
    _busy: threading.Lock = field(default_factory=threading.Lock)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, asked: SimulationRequest, closing: threading.Event, seconds: float = SECONDS) -> Mapping[str, Result]:
        """Return the results. Raises `Problem` when another one runs, or it takes too long."""
        if not self._busy.acquire(blocking=False):
            raise Problem(409, "another simulation runs: try again in a minute")
        try:
            return _apart(asked, closing.is_set, seconds)
        finally:
            self._busy.release()

    def keep(self, simulated: Simulated) -> str:
        """For the pages that show it; by what id."""
        made = secrets.token_urlsafe(9)
        with self._lock:
            self._found[made] = simulated
            while len(self._found) > _KEPT:
                self._found.popitem(last=False)
        return made

    def get(self, simulation: str, owner: str) -> Simulated:
        """Return one of them. Raises `Problem`."""
        found = self._found.get(simulation)
        if found is None or found.owner != owner:
            raise Problem(404, "there is no such simulation any more: the last few are kept; run it again")
        return found


def _apart(asked: SimulationRequest, stopped: Callable[[], bool], seconds: float) -> Mapping[str, Result]:
    context = multiprocessing.get_context("spawn")  # the service has threads, and a fork would copy their locks
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(theirs, asked), daemon=True)
    process.start()
    theirs.close()
    try:
        until = time.monotonic() + seconds
        while not ours.poll(_POLL):
            if stopped():
                raise Problem(503, "the service stops")
            if time.monotonic() >= until:
                raise Problem(422, f"it took longer than {seconds:.0f} s: simulate fewer tables or days")
        results: Mapping[str, Result] = ours.recv()
    except EOFError as error:
        raise Problem(500, "the simulation ended without a result") from error
    else:
        return results
    finally:
        process.kill()
        process.join()
        ours.close()


def _work(to: Connection, asked: SimulationRequest) -> None:
    origin = asked.origin
    to.send(simulate_all(origin, origin.sources(), asked.policies, asked.span, asked.room, lambda _name, _share: None))
    to.close()
