"""The backends of commands: the local configuration, or the service that --server names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from icewright.app.cli.base import OPTIONS
from icewright.core.errors import UsageError

if TYPE_CHECKING:
    from icewright.app.cli.local import LocalBackend
    from icewright.app.cli.remote import RemoteBackend
    from icewright.core.policy import Operation

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


def backend() -> LocalBackend | RemoteBackend:
    """Return the service that --server names, else the local installation: both have the same methods."""
    if (service := remote_backend()) is not None:
        return service
    from icewright.app.cli.local import LocalBackend

    return LocalBackend()


def remote_backend() -> RemoteBackend | None:
    """Return the service that --server names; None without the option."""
    if not OPTIONS.server:
        return None
    from icewright.app.cli.remote import RemoteBackend

    return RemoteBackend(OPTIONS.server)


def removed_settings(scope: str, stored: Mapping[str, Any], knobs: Sequence[str]) -> Mapping[str, Any]:
    """Return the settings that `config unset` removes from a stored rule. Raises `UsageError` for unset knobs."""
    if not stored:
        raise UsageError(f"the store has no rule {scope}; rules of the configuration file are changed there")
    if missing := [name for name in knobs if name not in stored]:
        raise UsageError(f"the stored rule {scope} does not set {missing[0]}; it sets: {', '.join(stored)}")
    return {name: value for name, value in stored.items() if not knobs or name in knobs}


def changed_limits(old: Mapping[str, Any], new: Mapping[str, Any], unset: Sequence[str]) -> Mapping[str, Any]:
    """Return stored limits after a change. Raises `UsageError` for limits to unset that are not stored."""
    if missing := [name for name in unset if name not in old]:
        stored = f"it has: {', '.join(old)}" if old else "it has none"
        raise UsageError(f"the store has no limit {missing[0]}; {stored}")
    return {name: value for name, value in old.items() if name not in unset} | dict(new)
