"""Who carries out steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

from icewright.core.paths import key
from icewright.core.policy import Operation
from icewright.core.runs import FileAction, Outcome
from icewright.core.steps import Step
from icewright.core.table import TableMetadata, TableRef


@dataclass(frozen=True, slots=True)
class StepRequest:
    """What an engine is asked to do: one step on one table, as seen when it was planned."""

    job_id: str
    operation: Operation
    step: Step
    base: TableMetadata
    dry_run: bool = False
    automatic: bool = False  # nobody asked for this run: what is doubtful needs a person's word first
    check: Callable[[], None] = field(
        default=lambda: None
    )  # raises `LeaseLost` or `Cancelled`: asked before each commit
    on_partial_result: Callable[[Outcome], None] = field(
        default=lambda _: None
    )  # told what a step that then raises had committed
    on_progress: Callable[[Mapping[str, int]], None] = field(
        default=lambda _: None
    )  # told in numbers how far it has come


@dataclass(frozen=True, slots=True)
class Intent:
    """A removal that is about to be committed where the server may drop a ref of somebody else with it."""

    metadata_location: str  # what it was planned on
    snapshot_ids: frozenset[int]
    refs: frozenset[str]  # that the commit itself removes


@dataclass(frozen=True, slots=True)
class Unfinished:
    """Planned deletions of a job that ended without settling them, and the commit that nobody has looked after."""

    job_id: str
    ref: TableRef
    table_uuid: str
    operations: tuple[Operation, ...]
    files: tuple[FileAction, ...]
    planned_at: datetime  # when the first of the files was planned
    intent: Intent | None = None


@dataclass(frozen=True, slots=True)
class Adoptable:
    """What stops deletions in a table's places and belongs to nobody that any catalog names."""

    table_uuid: str
    tables: tuple[str, ...]  # uuids of tables that were here before
    files: tuple[str, ...]  # metadata files of versions that somebody else made, and that are dead
    places: tuple[str, ...]  # the location and write paths that nobody has confirmed

    @property
    def what(self) -> tuple[str, ...]:
        """Return all of it, as the store remembers it."""
        return (*self.tables, *map(key, self.files), *self.places)


@dataclass(frozen=True, slots=True)
class Probe:
    """A query that tells how fast a table is read, on snapshots of it; its result is thrown away."""

    job_id: str
    table: TableMetadata
    query: str  # one SELECT over `{table}`
    snapshot_ids: tuple[int, ...]
    limit: timedelta  # for each time that the query runs
    check: Callable[[], None] = field(default=lambda: None)  # raises `LeaseLost` or `Cancelled`: asked all the time


class Engine(Protocol):
    """Runs the steps of operations on tables.

    A step that could not be done raises, and tells `kept` what it had committed by then. An `Outcome` is always the
    truth about the table.

    A dry run changes nothing and its `files` are exactly those that the real run would rewrite or delete.
    """

    def run(self, assignment: StepRequest) -> Outcome:
        """Do the step, or say what it would do."""
        ...

    def resume(self, unfinished: Unfinished) -> Outcome:
        """Finish the planned deletions of a job that ended early, after a fresh proof."""
        ...

    def adoptable(self, ref: TableRef) -> Adoptable:
        """What a person may declare to be the table's own. Raises `Refused` when a table that lives has any of it."""
        ...

    def probe(self, probe: Probe) -> Sequence[float]:
        """Return the seconds that the query takes on each of the snapshots, in their order.

        Raises `Refused` when the query is not one SELECT over the table alone, `Cancelled` when it takes too long, and
        what running it raises.
        """
        ...
