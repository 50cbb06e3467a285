"""The page that simulates a policy on recorded or generated commits, beside cron and the current policy."""

from __future__ import annotations

import multiprocessing
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Annotated, Any, Final

from fastapi import APIRouter
from starlette.responses import Response

from icewright.app.simulating import (
    BEGIN,
    CRON,
    GeneratedFleet,
    ReplayedFleet,
    measured,
    reported_reads,
    simulate_all,
    svg,
)
from icewright.app.web.callers import Caller, needs
from icewright.app.web.pages import policy_form
from icewright.app.web.pages.forms import Form, Submission, submitted
from icewright.app.web.pages.render import HEADERS, Crumb, redirect, render_page
from icewright.app.web.pages.urls import ListParams as Query
from icewright.app.web.pages.urls import with_query
from icewright.app.web.problems import Problem
from icewright.core.errors import ConfigError, IcewrightError, UsageError
from icewright.core.layering import Policy, PolicyRule, parse_pattern, parse_settings
from icewright.core.permissions import Action
from icewright.core.policy import PRESET
from icewright.core.presets import PRESETS
from icewright.core.simulation.fleet import FLEET_NAMES
from icewright.core.simulation.meter import Result
from icewright.core.simulation.run import Slots, Span
from icewright.core.simulation.trace import writes_of
from icewright.core.simulation.writes import Write
from icewright.core.table import TableRef
from icewright.flow.preview import with_rule
from icewright.ports.views import TableQuery

SECONDS = 60.0  # time limit of a simulation
_MAX_RESULTS = 16
_POLL = 0.2
router = APIRouter()
PATH = "/policies/simulate"
NOW, PROPOSED = "now", "proposed"
RECORDED: Final = "recorded"
MOST_TABLES, MOST_DAYS = 500, 7
_READ_LIMIT = timedelta(seconds=10)  # time to read tables' snapshots
_PLATFORM = "platform"
_UNPROCESSABLE, _SHOWN = 422, (409, 422)
_LONGEST = 10_000
_BLANK: Mapping[str, str] = {"of": RECORDED, "tables": "200", "days": "7", "preset": "", "scope": "", "set": ""}
Reader = Annotated[Caller, needs(Action.POLICIES_PREVIEW)]


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
    price: float | None  # of a GB-hour
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


@dataclass(frozen=True)
class Proposed:
    """The proposed policy and its description."""

    rules: Sequence[PolicyRule]
    description: str


@router.get(PATH)
def simulate(caller: Reader) -> Response:
    """Render the form, prefilled from query parameters."""
    query = Query(caller.request.query_params)
    texts = {name: query.text(name) for name in _BLANK}
    return _form(caller, {**_BLANK, **{name: text for name, text in texts.items() if text}})


@router.post("/do/policy/simulate")
def of_rule(submission: Annotated[Submission, submitted(Action.POLICIES_PREVIEW)]) -> Response:
    """Redirect to the form, prefilled with the rule being edited."""
    texts = policy_form.texts_in(submission.form)
    lines = "\n".join(f"{name}={text}" for name, text in texts.items())
    return redirect(with_query(PATH, {"scope": submission.form.one("scope").strip(), "set": lines[:1000]}))


@router.post("/do/simulate")
def run(submission: Annotated[Submission, submitted(Action.POLICIES_PREVIEW)]) -> Response:
    """Run a simulation, and redirect to its results."""
    caller = submission.caller
    query = {name: _field(submission.form, name) for name in _BLANK}
    try:
        proposed = _proposed(caller, query)
        request, title = _simulation_request(caller, query, proposed)
        results = _simulations(caller).run(request, caller.request.app.state.closing)
    except ConfigError as error:
        return _form(caller, query, list(error.faults))
    except UsageError as error:
        return _form(caller, query, [str(error)])
    except Problem as problem:
        if problem.status not in _SHOWN:
            raise
        return _form(caller, query, [problem.detail], problem.status)
    price = request.slots.gb_hour_price(request.origin.sources())
    done = Simulated(caller.principal.name, title, proposed.description, results, price, query)
    return redirect(f"{PATH}/{_simulations(caller).keep(done)}")


@router.get("/policies/simulate/{simulation:segment}")
def simulated(simulation: str, caller: Reader) -> Response:
    """Render the results of a simulation side by side, or their chart as SVG."""
    finished = _simulations(caller).get(simulation.removesuffix(".svg"), caller.principal.name)
    if simulation.endswith(".svg"):
        picture = svg(finished.title, finished.results)
        # the SVG contains its own style
        headers = {**HEADERS, "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'"}
        return Response(picture, media_type="image/svg+xml", headers=headers)
    rows = [(title, cells) for title, *cells in measured(finished.results, finished.price)]
    return _form(
        caller,
        finished.query,
        result=finished,
        picture=f"{PATH}/{simulation}.svg",
        rows=rows,
        lines=_compare_with_cron(finished),
    )


def _form(
    caller: Caller, query: Mapping[str, str], faults: Sequence[str] = (), status: int = 0, **more: Any
) -> Response:
    return render_page(
        caller,
        "simulate.html",
        status=status or (_UNPROCESSABLE if faults else 200),
        query=query,
        faults=faults,
        presets=list(PRESETS),
        fleets=list(FLEET_NAMES),
        recorded=RECORDED,
        most_tables=MOST_TABLES,
        most_days=MOST_DAYS,
        crumbs=[Crumb("Policies", "/policies")],
        **{"result": None, **more},
    )


def _simulations(caller: Caller) -> Simulations:
    simulations: Simulations = caller.request.app.state.simulations
    return simulations


def _field(form: Form, name: str) -> str:
    text = form.one(name).strip()
    if len(text) > _LONGEST:
        raise Problem(_UNPROCESSABLE, f"{name}: longer than {_LONGEST} characters")
    return text


def _proposed(caller: Caller, query: Mapping[str, str]) -> Proposed:
    """Return the proposed preset and rule. Raises `UsageError`, `ConfigError`."""
    guardrails = caller.runtime.policy().guardrails
    rules, descriptions = [], []
    texts: dict[str, str] = {}
    for line in query["set"].splitlines():
        name, equals, text = line.partition("=")
        if not equals and line.strip():
            raise UsageError(f"{line.strip()[:100]!r} sets nothing: write knob=value, one a line")
        if equals:
            texts[name.strip()] = text.strip()
    if query["preset"]:
        rules.append(PolicyRule((), parse_settings("preset", {PRESET.name: query["preset"]}, guardrails), "store"))
        descriptions.append(f"preset {query['preset']}")
    if texts:
        scope = query["scope"] or _PLATFORM
        settings = parse_settings("set", policy_form.settings_in(texts), guardrails)
        match = () if scope == _PLATFORM else parse_pattern(scope)
        if rules and not match:
            settings = {**rules.pop().settings, **settings}
        rules.append(PolicyRule(match, settings, "store"))
        descriptions.append(f"{', '.join(f'{name}={text}' for name, text in texts.items())} for {scope}")
    return Proposed(rules, "; ".join(descriptions))


def _simulation_request(caller: Caller, query: Mapping[str, str], proposed: Proposed) -> tuple[SimulationRequest, str]:
    days, most = _integer(query, "days", MOST_DAYS), _integer(query, "tables", MOST_TABLES)
    runtime = caller.runtime
    present = replace(runtime.policy(), served=None)  # the child process cannot ask catalogs for policies
    policies: dict[str, Policy | None] = {CRON: None, NOW: present}
    if proposed.rules:
        policy = present
        for rule in proposed.rules:
            policy = with_rule(policy, rule)
        policies[PROPOSED] = policy
    slots = Slots(runtime.limits(), {name: scope.pool for name, scope in runtime.scopes.items() if scope.pool})
    begin, long = BEGIN, f"{days} day{'' if days == 1 else 's'}"
    origin: GeneratedFleet | ReplayedFleet
    if query["of"] == RECORDED:
        recorded = _recorded(caller, most)
        origin = ReplayedFleet(recorded, reported_reads(runtime, recorded))
        begin = (runtime.clock.now() - timedelta(days=days)).replace(minute=0, second=0, microsecond=0)
        title = f"{len(origin.writes)} tables as their snapshots record them, {long}"
        if not origin.writes:
            raise UsageError("no snapshot of your tables can be read: simulate a made-up fleet")
    elif query["of"] in FLEET_NAMES:
        origin = GeneratedFleet(query["of"], most, 0, next(iter(sorted(runtime.scopes)), "lake"))
        title = f"made-up fleet {query['of']}: {most} tables, {long}"
    else:
        raise UsageError(f"there is no fleet {query['of']}; there is: {RECORDED}, {', '.join(FLEET_NAMES)}")
    return SimulationRequest(origin, policies, Span(begin, begin + timedelta(days=days)), slots), title


def _recorded(caller: Caller, limit: int) -> Mapping[TableRef, Sequence[Write]]:
    """Return the commits that snapshots of visible tables record; unreadable tables are skipped."""
    reading = replace(caller, action=Action.TABLES_READ)
    runtime = caller.runtime
    deadline = runtime.clock.now() + _READ_LIMIT
    writes_by_table: dict[TableRef, Sequence[Write]] = {}
    for item in runtime.store.views.list_tables(TableQuery(), reading.visibility, None, limit).items:
        ref = item.row.ref
        if runtime.clock.now() >= deadline:
            break
        if ref.catalog not in runtime.catalogs or item.row.error is not None:
            continue
        try:
            writes = writes_of(runtime.catalog(ref).load(ref))
        except IcewrightError:
            continue
        if writes:
            writes_by_table[ref] = writes
    return writes_by_table


def _integer(query: Mapping[str, str], name: str, most: int) -> int:
    text = query[name]
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:9]) <= most):
        raise UsageError(f"{name}: a whole number from 1 to {most}")
    return int(text)


def _compare_with_cron(simulated_: Simulated) -> list[str]:
    """Return one sentence per policy that compares it with cron."""
    cron = simulated_.results[CRON]
    sentences = []
    for name, result in simulated_.results.items():
        if name != CRON and cron.gb_hours and cron.average_files:
            spent, files = result.gb_hours / cron.gb_hours, result.average_files / cron.average_files
            sentences.append(f"{name}: {spent:.0%} of cron's GB-hours, {files:.0%} of its files on average")
    return sentences
