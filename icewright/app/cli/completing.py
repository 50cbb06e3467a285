"""What the shell completes: names that the state store knows, operations and knobs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from icewright.ports.store import Store

_PLAIN = re.compile(r"[\w@%+=:,./-]+")  # what no shell expands, not even the scripts of completion


def _from_store(read: Callable[[Store], Iterable[str]], incomplete: str) -> list[str]:
    """Return what is read of the state store and begins with the text, for the shell's completion.

    A name that a shell would expand is not offered: zsh runs the commands in it when the Tab key is pressed.
    """
    from icewright.app.bootstrap import open_store
    from icewright.app.cli.base import configuration

    try:
        store = open_store(configuration())
        try:
            names = list(read(store))
        finally:
            store.engine.dispose()
    except Exception:  # noqa: BLE001 - a completion that fails offers nothing, and prints nothing
        return []
    return [name for name in names if name.startswith(incomplete) and _PLAIN.fullmatch(name)]


def complete_table(incomplete: str) -> list[str]:
    """Return the tables of the state store whose names begin with the text."""
    return _from_store(lambda store: map(str, store.tables.known()), incomplete)


def complete_catalog(incomplete: str) -> list[str]:
    """Return the catalogs of the tables in the state store whose names begin with the text."""
    return _from_store(lambda store: sorted({row.ref.catalog for row in store.tables.list()}), incomplete)


def complete_job(incomplete: str) -> list[str]:
    """Return the newest jobs whose ids begin with the text."""
    return _from_store(lambda store: (row.job_id for row in store.jobs.list()), incomplete)


def complete_operation(incomplete: str) -> list[str]:
    """Return the operations whose names begin with the text."""
    from icewright.core.policy import Operation

    return [operation for operation in Operation if operation.startswith(incomplete)]


def complete_knob(incomplete: str) -> list[str]:
    """Return the knobs whose names begin with the text."""
    from icewright.core.policy import KNOBS

    return [name for name in KNOBS if name.startswith(incomplete)]


def complete_scope(incomplete: str) -> list[str]:
    """Return the scopes of rules that begin with the text: platform, catalogs and tables of the state store."""
    platform = ["platform"] if "platform".startswith(incomplete) else []
    return platform + complete_catalog(incomplete) + complete_table(incomplete)


def complete_limit(incomplete: str) -> list[str]:
    """Return the limits whose key paths begin with the text."""
    from icewright.app.cli.base import configuration
    from icewright.core.limit_settings import limit_values

    try:
        names = limit_values(configuration().limits)
    except Exception:  # noqa: BLE001 - a completion that fails offers nothing, and prints nothing
        return []
    return [name for name in names if name.startswith(incomplete) and _PLAIN.fullmatch(name)]
