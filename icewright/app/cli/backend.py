"""The backends of commands: the local configuration, or the service that --server names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from icewright.app.cli.base import OPTIONS
from icewright.core.errors import UsageError

if TYPE_CHECKING:
    from icewright.core.policy import Operation
    from icewright.core.selection import TableSelection

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TableFilter:
    """The filters of `icewright tables`; an empty one selects all tables."""

    catalog: str | None = None
    namespace: str | None = None
    states: Sequence[str] = ()
    operation: Operation | None = None  # which is due
    sort: str = "name"
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class JobFilter:
    """The filters of `icewright history`; an empty one selects the newest jobs of all tables."""

    table: str | None = None
    states: Sequence[str] = ()
    operation: Operation | None = None
    since: str | None = None  # an age such as 7d, or a time
    limit: int = 50


@dataclass(frozen=True, slots=True)
class RunRequest:
    """Operations to run on a table now; `settings` are knobs as given on the command line."""

    table: str
    operations: Sequence[Operation]
    settings: Mapping[str, str]
    dry_run: bool
    force: bool
    files: bool  # list the files that were rewritten or deleted


class Backend(Protocol):
    """The commands that work locally and against a service, each returning its JSON document."""

    def tables(self, criteria: TableFilter) -> Document:
        """Return tables as `{"tables": [...], "errors": [...]}`."""
        ...

    def explain(self, table: str | None, namespace: str | None) -> list[Document]:
        """Return each table's health, verdicts and ignored properties."""
        ...

    def advise(self, table: str | None) -> list[Document]:
        """Return what to change outside of Icewright, for one table or for all."""
        ...

    def plan(self, catalog: str | None) -> Document:
        """Return the jobs that would start now, and the operations that would wait."""
        ...

    def run(self, request: RunRequest) -> Document:
        """Run operations on a table and return the finished job, or what a dry run found."""
        ...

    def history(self, criteria: JobFilter) -> list[Document]:
        """Return the jobs that pass the filter, newest first."""
        ...

    def show(self, job: str) -> Document:
        """Return one job with its runs, removed snapshots, waiting deletions and files."""
        ...

    def cancel(self, job: str) -> Document:
        """Ask a job to stop; return at least its `job_id`."""
        ...

    def pause(self, table: str, reason: str | None) -> Document:
        """Pause a table, or resume it where there is no reason; return `table`, `paused` and `was_paused`."""
        ...

    def bulk(
        self,
        action: str,
        selection: TableSelection,
        expected: int | None = None,
        reason: str | None = None,
        operations: Sequence[Operation] = (),
    ) -> Document:
        """Pause, resume or cancel many tables; without `expected` only return `count` and `tables`."""
        ...

    def run_many(self, selection: TableSelection, request: RunRequest, counted: Document) -> list[Document]:
        """Run operations on the tables that were counted, and return the finished job of each."""
        ...

    def fleet(self) -> Document:
        """Return the pause of the whole fleet and the processes, as `{"paused": ..., "processes": [...]}`."""
        ...

    def pause_fleet(self, reason: str, *, cancel_running: bool) -> Document:
        """Pause everything; return `paused`, and the ids of the running jobs that were `cancelled`."""
        ...

    def resume_fleet(self) -> Document:
        """End the pause of everything."""
        ...

    def drain(self, process: str) -> Document:
        """Ask a process to take no more jobs; return its id as `process`."""
        ...

    def knobs(self, table: str) -> Document:
        """Return every knob of a table with the level and rule that set it."""
        ...

    def set_rule(self, scope: str, settings: Mapping[str, str]) -> Mapping[str, Any]:
        """Add knobs to the stored rule of a scope and return them parsed."""
        ...

    def unset_rule(self, scope: str, knobs: Sequence[str]) -> Mapping[str, Any]:
        """Remove knobs, or all where none is named, from the stored rule of a scope; return the removed ones."""
        ...

    def undo(self, job: str, *, dry_run: bool) -> Document:
        """Restore what a job expired and drop its planned deletions."""
        ...

    def vacuum(self, catalog: str, *, dry_run: bool) -> Document:
        """Vacuum a catalog; a service answers `started`, and goes on by itself."""
        ...

    def deletions(self, table: str | None, catalog: str | None) -> list[Document]:
        """Return the files that wait to be deleted, by job."""
        ...

    def give_up(self, job: str) -> Document:
        """Drop the planned deletions of a job; return `job_id`, `table` and the number of `files`."""
        ...


def backend() -> Backend:
    """Return the service that --server names, else the local installation."""
    if OPTIONS.server:
        from icewright.app.cli.remote import RemoteBackend

        return RemoteBackend(OPTIONS.server)
    from icewright.app.cli.local import LocalBackend

    return LocalBackend()


def no_job(prefix: str) -> str:
    """Return the message for a job id that names no job, or several."""
    return f"no job, or more than one, begins with {prefix!r}; `icewright history` lists them"


def removed_settings(scope: str, stored: Mapping[str, Any], knobs: Sequence[str]) -> Mapping[str, Any]:
    """Return the settings that `config unset` removes from a stored rule. Raises `UsageError` for unset knobs."""
    if not stored:
        raise UsageError(f"the store has no rule {scope}; rules of the configuration file are changed there")
    if missing := [name for name in knobs if name not in stored]:
        raise UsageError(f"the stored rule {scope} does not set {missing[0]}; it sets: {', '.join(stored)}")
    return {name: value for name, value in stored.items() if not knobs or name in knobs}
