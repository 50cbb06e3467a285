"""Selections of many tables: by names and patterns, by catalog, or all there are."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from icewright.core.errors import UsageError
from icewright.core.layering import matches, parse_pattern
from icewright.core.table import TableRef, split_name
from icewright.core.words import near

_QUOTED = re.compile("`(?:[^`]|``)+`")


@dataclass(frozen=True, slots=True)
class TableSelection:
    """Tables that one command or request is about: those of `names`, else of `catalog`, else all.

    A name with `*` or `?` is a pattern as in policy rules: `lake.sales.*` selects the tables of the namespace and of
    the namespaces below it. Any other name is one table. Raises `UsageError` unless exactly one of the three is given.
    """

    names: tuple[str, ...] = ()
    catalog: str | None = None
    everything: bool = False

    def __post_init__(self) -> None:
        """Refuse a selection that names nothing, or that names tables in two ways."""
        if bool(self.names) + (self.catalog is not None) + self.everything != 1:
            raise UsageError("select tables in one way: by names and patterns such as lake.sales.*, by catalog, or all")
        for name in self.names:
            _pattern(name)

    @property
    def is_one_table(self) -> bool:
        """Return whether the selection is a single table's name."""
        return len(self.names) == 1 and not is_pattern(self.names[0])

    def contains(self, ref: TableRef) -> bool:
        """Return whether the table is selected."""
        if self.names:
            return any(_selects(name, ref) for name in self.names)
        return self.everything or ref.catalog == self.catalog

    def without_match(self, refs: list[TableRef]) -> list[str]:
        """Return the names and patterns that select none of the tables."""
        return [name for name in self.names if not any(_selects(name, ref) for ref in refs)]

    def __str__(self) -> str:
        return ", ".join(self.names) or (f"catalog {self.catalog}" if self.catalog is not None else "all tables")


def is_pattern(name: str) -> bool:
    """Return whether a name selects by wildcards: no single table is meant. Wildcards in backticks are letters."""
    return not {"*", "?"}.isdisjoint(_QUOTED.sub("", name))


def matching_tables(pattern: str | None, refs: Iterable[TableRef]) -> list[TableRef]:
    """Return the tables that a pattern selects, or all without one. Raises `UsageError` when a pattern selects none."""
    if pattern is None:
        return list(refs)
    selection = TableSelection((pattern,))
    if not (found := [ref for ref in refs if selection.contains(ref)]):
        raise UsageError(f"{pattern}: no table matches; `icewright tables` lists what there is")
    return found


def tables_of_namespace(namespace: str, refs: Iterable[TableRef]) -> list[TableRef]:
    """Return the tables of a namespace, without those below it. Raises `UsageError` when others have tables alone."""
    known = list(refs)
    selected = [ref for ref in known if ref.namespace == split_name(namespace)]
    if known and not selected:
        names = sorted({".".join(ref.namespace) for ref in known})
        raise UsageError(f"--namespace {namespace}: no table is there{near(namespace, names)}")
    return selected


def _pattern(name: str) -> tuple[str, ...]:
    return parse_pattern(name) if is_pattern(name) else TableRef.parse(name).parts


def _selects(name: str, ref: TableRef) -> bool:
    pattern = _pattern(name)
    return matches(pattern, ref.parts[: len(pattern)]) if is_pattern(name) else pattern == ref.parts
