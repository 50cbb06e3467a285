"""A table whose files are rewritten: who plans, and who commits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from icewright.adapters.engines.arrow.group import FileSlice, SortField
from icewright.core.steps import RewriteDataFiles


@dataclass(frozen=True)
class FileGroup:
    """Files that Iceberg rewrites together: of one partition; `unfit` where this path does not."""

    planned: Any  # what its table needs to place and to commit it
    files: tuple[FileSlice, ...]
    outputs: int
    split_bytes: int
    constants: Mapping[int, Any]  # of identity partition fields, by source field, as the spec's JSON or its numbers
    unfit: str | None = None  # why only Spark's own path rewrites it


Done = tuple[FileGroup, Sequence[Mapping[str, Any]]]  # and the entries of its outputs


class RewriteTable(Protocol):
    """A table as it was when it was loaded."""

    @property
    def properties(self) -> Mapping[str, str]:
        """Return the table's properties by name."""
        ...

    @property
    def location(self) -> str:
        """Return the table's location, without a slash at the end."""
        ...

    @property
    def lineage(self) -> bool:
        """Return whether rows have ids (format version 3)."""
        ...

    @property
    def schema(self) -> Mapping[str, Any]:
        """Return the current schema as the spec's JSON."""
        ...

    @property
    def sort_order(self) -> tuple[int, tuple[SortField, ...]] | None:
        """Id and fields of the table's sort order; None when it has none."""
        ...

    def older_fields(self) -> Mapping[int, Mapping[str, Any]]:
        """Top-level columns of older schemas that the current one has not, each as it was last."""
        ...

    def storage(self) -> Mapping[str, str]:
        """By which properties the table's files are opened, credentials that the catalog vends too."""
        ...

    def plan(self, step: RewriteDataFiles) -> list[FileGroup]:
        """Return what `rewrite_data_files` would rewrite, group by group."""
        ...

    def place(self, group: FileGroup, number: int) -> str:
        """Return how the paths of a bin's outputs begin, as the table's location provider wants them."""
        ...

    def commit(self, done: Sequence[Done], *, starting_sequence: bool, job_id: str) -> None:
        """One commit of groups with the entries of their outputs.

        Conflicts are validated since the plan, and the outputs of a commit that failed are removed.
        """
        ...

    def discard(self, paths: Iterable[str]) -> None:
        """Remove outputs that nobody will commit."""
        ...

    def remove_dangling_deletes(self) -> None:
        """Drop delete files that apply to nothing any more."""
        ...
