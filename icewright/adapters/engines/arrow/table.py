"""The interface of a table that is rewritten: planning, output placement and commit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from icewright.adapters.engines.arrow.tasks import FileSlice, SortField
from icewright.core.errors import CommitConflict
from icewright.core.steps import RewriteDataFiles


@dataclass(frozen=True)
class FileGroup:
    """Data files of one partition that are rewritten together."""

    handle: Any  # the table's own representation of the group
    files: tuple[FileSlice, ...]
    outputs: int
    split_bytes: int
    constants: Mapping[int, Any]  # identity partition values by source field id, as JSON single values
    unsupported: str | None = None  # why only Spark's own engine rewrites the group


RewrittenGroup = tuple[FileGroup, Sequence[Mapping[str, Any]]]  # a group and its output files as REST JSON


class FilesChanged(CommitConflict):
    """A concurrent commit changed some of the rewritten files or deletes of them: other groups may be committed."""


class RewriteTable(Protocol):
    """A table at the snapshot at which it was loaded."""

    @property
    def properties(self) -> Mapping[str, str]:
        """Return the table's properties by name."""

    @property
    def location(self) -> str:
        """Return the table's location, without a slash at the end."""

    @property
    def has_row_ids(self) -> bool:
        """Return whether rows have ids (format version 3)."""

    @property
    def schema(self) -> Mapping[str, Any]:
        """Return the current schema as the spec's JSON."""

    @property
    def sort_order(self) -> tuple[int, tuple[SortField, ...]] | None:
        """Return the id and fields of the table's sort order; None when the table is unsorted."""

    def older_fields(self) -> Mapping[int, Mapping[str, Any]]:
        """Return dropped top-level columns by id, each in its latest form."""

    def storage(self) -> Mapping[str, str]:
        """Return the FileIO properties of the table, vended credentials included."""

    def plan(self, step: RewriteDataFiles) -> list[FileGroup]:
        """Return the file groups that `rewrite_data_files` would rewrite."""

    def output_prefix(self, group: FileGroup, number: int) -> str:
        """Return the path prefix of a bin's outputs, as the table's location provider places them."""

    def commit(self, groups: Sequence[RewrittenGroup], *, starting_sequence: bool, job_id: str) -> None:
        """Replace the files of the groups by their outputs, in one snapshot.

        With `starting_sequence` outputs are as old as the planned snapshot: equality deletes that came later apply to
        them, and do not conflict. Without, outputs are as new as the commit.
        Raises `CommitConflict`, and leaves the outputs, when a concurrent commit conflicts with the plan;
        `FilesChanged` when it is one for some groups alone.
        """

    def discard(self, paths: Iterable[str]) -> None:
        """Delete outputs that will not be committed."""

    def remove_dangling_deletes(self) -> None:
        """Remove delete files that apply to no data file any more. Raises `CommitConflict`."""
