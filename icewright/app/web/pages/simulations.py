"""Run simulations one at a time in a child process with a time limit, and keep recent results."""

from __future__ import annotations

import multiprocessing
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from icewright.app.simulating import GeneratedFleet, ReplayedFleet, simulate_all
from icewright.app.web.problems import Problem
from icewright.core.layering import Policy
from icewright.core.simulation.meter import Result
from icewright.core.simulation.run import Slots, Span

SECONDS = 60.0  # time limit of a simulation
_MAX_RESULTS = 16
_POLL = 0.2


@dataclass(frozen=True)
class SimulationRequest:
    """The policies, fleet and period of a simulation."""

    origin: GeneratedFleet | ReplayedFleet
    policies: Mapping[str, Policy | None]
    span: Span
    slots: Slots


@dataclass(frozen=True)
class Simulated:
    """The results of a simulation, visible to its owner."""

    owner: str
    title: str
    description: str  # of the proposed policy
    results: Mapping[str, Result]
    query: Mapping[str, str]  # of the form


@dataclass
class Simulations:
    """Runs simulations, and keeps the latest results in memory."""

    _results: OrderedDict[str, Simulated] = field(default_factory=OrderedDict)
    _busy: threading.Lock = field(default_factory=threading.Lock)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(
        self, request: SimulationRequest, closing: threading.Event, seconds: float = SECONDS
    ) -> Mapping[str, Result]:
        """Return the results. Raises `Problem` when another simulation runs, or at the time limit."""
        if not self._busy.acquire(blocking=False):
            raise Problem(409, "another simulation runs: try again in a minute")
        try:
            return _run_in_child(request, closing.is_set, seconds)
        finally:
            self._busy.release()

    def keep(self, simulated: Simulated) -> str:
        """Keep results in memory, and return their id."""
        simulation_id = secrets.token_urlsafe(9)
        with self._lock:
            self._results[simulation_id] = simulated
            while len(self._results) > _MAX_RESULTS:
                self._results.popitem(last=False)
        return simulation_id

    def get(self, simulation: str, owner: str) -> Simulated:
        """Return kept results of the owner. Raises `Problem` 404."""
        simulated = self._results.get(simulation)
        if simulated is None or simulated.owner != owner:
            raise Problem(404, "there is no such simulation any more: the last few are kept; run it again")
        return simulated


def _run_in_child(request: SimulationRequest, stopped: Callable[[], bool], seconds: float) -> Mapping[str, Result]:
    context = multiprocessing.get_context("spawn")  # forking a threaded process would copy held locks
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child_main, args=(sender, request), daemon=True)
    process.start()
    sender.close()
    try:
        deadline = time.monotonic() + seconds
        while not receiver.poll(_POLL):
            if stopped():
                raise Problem(503, "the service stops")
            if time.monotonic() >= deadline:
                raise Problem(422, f"it took longer than {seconds:.0f} s: simulate fewer tables or days")
        results: Mapping[str, Result] = receiver.recv()
    except EOFError as error:
        raise Problem(500, "the simulation ended without a result") from error
    else:
        return results
    finally:
        process.kill()
        process.join()
        receiver.close()


def _child_main(to: Connection, request: SimulationRequest) -> None:
    origin = request.origin
    to.send(
        simulate_all(
            origin, origin.sources(), request.policies, request.span, request.slots, lambda _name, _share: None
        )
    )
    to.close()
