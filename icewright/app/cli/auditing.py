"""The audit log of the command line: what each command changes, and how that ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand

from icewright.core.errors import ConfigError, IcewrightError, UsageError
from icewright.core.layering import PolicyRule, parse_pattern
from icewright.core.permissions import DELETING, Action, Place, place_of
from icewright.core.policy import Operation
from icewright.core.selection import TableSelection
from icewright.core.table import TableRef, split_name

if TYPE_CHECKING:
    from icewright.flow.runtime import Runtime

#: The commands that change something, with the permissions that the API asks for. `token` and `acknowledge` write
#: entries of their own; what `cycle`, `serve`, `worker` and `archive` do by themselves is in the history and the log.
CHANGES: Mapping[str, Action] = {
    "run": Action.JOBS_RUN,
    "vacuum": Action.CATALOGS_VACUUM,
    "cancel": Action.JOBS_CANCEL,
    "undo": Action.JOBS_UNDO,
    "restore": Action.TABLES_RESTORE,
    "give-up": Action.JOBS_UNDO,
    "pause": Action.TABLES_PAUSE,
    "resume": Action.TABLES_PAUSE,
    "pin": Action.TABLES_PIN,
    "unpin": Action.TABLES_PIN,
    "adopt": Action.JOBS_DELETE,
    "repair": Action.TABLES_RESTORE,
    "erase": Action.TABLES_ERASE,
    "copy": Action.TABLES_COPY,
    "register": Action.TABLES_COPY,
    "drain": Action.TABLES_PAUSE,
    "advise": Action.POLICIES_CHANGE,
    "config set": Action.POLICIES_CHANGE,
    "config unset": Action.POLICIES_CHANGE,
    "config limits": Action.LIMITS_CHANGE,
    "config catalog": Action.CATALOGS_CHANGE,
}
_BLANK: tuple[Any, ...] = (None, False, [], ())  # of an option that was left out
#: The options without which a command only reads.
_ONLY_WITH = {
    "restore": ("to",),
    "advise": ("apply",),
    "config limits": ("settings", "unset"),
    "config catalog": ("enabled", "namespaces", "table_names", "interval", "as_configured"),
}
_HOW = {"yes", "as_json", "dry_run", "files"}  # parameters that say nothing of what is changed
_TARGETS = {"table", "tables", "jobs", "job", "scope", "process"}  # and those that the target says
_RESULTS = {1: "failed", 3: "partial"}  # by exit code


class Declined(typer.Exit):
    """The answer to a question was no: nothing is changed."""


class _Change:
    """A change that a command is about to make, and its targets as they are before it."""

    def __init__(self, command: str, parameters: Mapping[str, Any]) -> None:
        self._command, self._parameters = command, parameters
        self._runtime: Runtime | None = None
        self._targets: Sequence[tuple[str, Place]] = ()

    def begin(self, runtime: Runtime) -> None:
        """Note the targets when the command opens the application for the first time."""
        if self._runtime is None:
            self._targets = list(_targets(runtime, self._command, self._parameters))
            self._runtime = runtime

    def has_begun(self, ended: BaseException) -> bool:
        """Return whether something may be changed: wrong usage is refused before, but for the first of several jobs."""
        first_of_several = isinstance(ended, UsageError) and len(self._parameters.get("jobs") or ()) > 1
        return first_of_several or not isinstance(ended, UsageError | ConfigError | Declined | typer.Abort)

    def end(self, result: str, error: str | None = None) -> None:
        """Write an entry for each target; a service that made the change in place of this process writes its own."""
        given = {k: _plain(v) for k, v in self._parameters.items() if v not in _BLANK and k not in _HOW | _TARGETS}
        details = {"command": self._command, **given, "result": result} | ({"error": error} if error else {})
        if self._runtime is not None:
            for target, place in self._targets:
                audit(self._runtime, _action(self._command, self._parameters), target, place, **details)


_current: _Change | None = None  # of the command that runs in this process


class AuditedCommand(TyperCommand):
    """A command that leaves entries in the audit log for what it changes."""

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - Typer's context
        """Run the command, and write down how it ended, but where it refused to begin."""
        global _current  # noqa: PLW0603 - a process runs one command
        name, parameters = " ".join(_names(ctx)), ctx.params
        asked = name not in _ONLY_WITH or any(parameters[option] not in _BLANK for option in _ONLY_WITH[name])
        changing = name in CHANGES and asked and not parameters.get("dry_run")
        _current = change = _Change(name, parameters) if changing else None
        try:
            answer = super().invoke(ctx)
        except BaseException as ended:
            if change is not None and change.has_begun(ended):
                with suppress(IcewrightError):  # the error of the command is the one to show
                    change.end(*_result(ended))
            raise
        if change is not None:
            change.end("done")
        return answer


def opened(runtime: Runtime) -> None:
    """Note what the running command is about to change."""
    if _current is not None:
        _current.begin(runtime)


def audit(runtime: Runtime, action: str, target: str, place: Sequence[str] | None, /, **details: object) -> None:
    """Write a change by the command line to the audit log."""
    from icewright.ports.access import AuditRow

    entry = AuditRow(
        at=runtime.clock.now(),
        actor=runtime.trigger.actor,
        via="local",
        action=action,
        target=target,
        place=tuple(place) if place else None,
        refused=False,
        source="command line",
        details=details,
    )
    runtime.store.audit.append(entry)


def _names(ctx: Any) -> list[str]:  # noqa: ANN401
    """Return the words of a command, such as `config set`."""
    return [] if ctx.parent is None else [*_names(ctx.parent), ctx.info_name]


def _result(ended: BaseException) -> tuple[str, str | None]:
    match ended:
        case typer.Exit(exit_code=code):
            return (_RESULTS.get(code, f"exit code {code}") if code else "done"), None
        case Exception():
            return "failed", str(ended)
        case _:
            return "interrupted", None


def _action(command: str, parameters: Mapping[str, Any]) -> Action:
    if command != "run":
        return CHANGES[command]
    named = {part.strip() for text in parameters["op"] or () for part in text.split(",")}
    return Action.JOBS_DELETE if not named or not DELETING.isdisjoint(map(Operation, named)) else Action.JOBS_RUN


def _targets(runtime: Runtime, command: str, parameters: Mapping[str, Any]) -> Iterator[tuple[str, Place]]:
    """Yield what a command is about, each with its place, as the API names it."""
    store = runtime.store
    match parameters:
        case {"scope": str(scope)}:
            pattern = () if scope == "platform" else parse_pattern(scope)
            yield f"policy {PolicyRule(pattern, {}, 'store')}", pattern
        case {"process": str(process)}:
            yield f"process {process}", ()
        case {"everything": True} | {"unset": _}:
            yield "the limits" if "unset" in parameters else "the whole fleet", ()
        case {"job": str(job)}:
            yield from _jobs(runtime, [job])
        case {"jobs": [_, *_] as jobs} if not any("." in name or "*" in name for name in jobs):
            yield from _jobs(runtime, jobs)
        case {"table": str(name)} | {"name": str(name)}:
            ref = TableRef.parse(name)
            yield str(ref), place_of(ref)
        case {"namespace": str(namespace)}:
            parts = split_name(namespace) or ()
            yield from (
                (str(ref), place_of(ref)) for ref in store.tables.known() if place_of(ref)[: len(parts)] == parts
            )
        case {"catalog": str(catalog)} if command in ("vacuum", "config catalog"):
            yield f"catalog {catalog}", (catalog,)
        case _:
            names = tuple(parameters.get("tables") or parameters.get("jobs") or ())
            chosen = TableSelection(names, parameters["catalog"], parameters["every_table"])
            if chosen.is_one_table and command != "cancel":
                ref = TableRef.parse(names[0])
                yield str(ref), place_of(ref)
                return
            for row in store.tables.list():
                if not row.dropped and chosen.contains(row.ref) and (row.job_id is not None or command != "cancel"):
                    yield str(row.ref), place_of(row.ref)


def _jobs(runtime: Runtime, prefixes: Sequence[str]) -> Iterator[tuple[str, Place]]:
    for row in filter(None, map(runtime.store.jobs.get, prefixes)):
        yield f"job {row.job_id} of {row.ref}", place_of(row.ref)


def _plain(value: Any) -> Any:  # noqa: ANN401 - a parameter
    return value if isinstance(value, bool | int | float | list) else str(value)
