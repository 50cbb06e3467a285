"""Wrappers around every port of a running application: each call goes through one hook, whatever its name.

Nothing here knows a method of a port, so that ports may grow. The wrappers are put in place of the ports wherever the
application holds them, so that no constructor of an adapter is called here either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MethodType
from typing import Any

from icewright.adapters.store.database import Database
from icewright.app.bootstrap import Application, application, read_config
from icewright.flow.runtime import Runtime
from icewright.ports import Clock

#: Calls that leave something behind; between any two of them nothing durable happens.
WRITES = frozenset(
    {
        *("files.write", "files.delete", "files.tidy", "catalog.commit"),
        *("store.jobs.claim", "store.jobs.finish", "store.jobs.heartbeat"),
        *("store.jobs.end_interrupted", "store.jobs.request_cancel"),
        *("store.ledger.plan", "store.ledger.record", "store.ledger.forget_orphans"),
        *("store.ledger.begin_undo", "store.ledger.end_undo", "store.ledger.close_removal"),
        *("store.tables.record_evaluation", "store.tables.record_unreadable", "store.tables.record_listing"),
        *("store.runs.record", "store.activity.record", "store.tables.pause", "store.rules.put"),
    }
)
_OURS = ("icewright.adapters.", "icewright.flow.", "icewright.app.bootstrap")


@dataclass(frozen=True)
class Call:
    """A call of a port that is about to happen, or not: the hook decides."""

    port: str  # files, catalog, or a part of the store, such as store.ledger
    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    real: Callable[..., Any]

    def __str__(self) -> str:
        return f"{self.port}.{self.name}"

    @property
    def paths(self) -> list[str]:
        """The paths of a bulk call, its first argument."""
        found = self.args[0] if self.args else next(iter(self.kwargs.values()))
        return list(found)

    @property
    def in_transaction(self) -> bool:
        """Whether it shares a transaction that may write with others of the store."""
        database = getattr(getattr(self.real, "__self__", None), "db", None)
        return isinstance(database, Database) and database.shares_writes

    def go(self) -> Any:
        """Let it happen."""
        return self.real(*self.args, **self.kwargs)

    def on(self, paths: Sequence[str]) -> Any:
        """Let it happen to other paths."""
        if self.args:
            return self.real(paths, *self.args[1:], **self.kwargs)
        first = next(iter(self.kwargs))
        return self.real(**{**self.kwargs, first: paths})


Hook = Callable[[Call], Any]


class Intercepted:
    """A port whose every public method asks the hook."""

    def __init__(self, port: str, real: Any, hook: Hook) -> None:
        self._port, self._real, self._hook = port, real, hook

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        if name.startswith("_") or not callable(found):
            return found
        return lambda *args, **kwargs: self._hook(Call(self._port, name, args, kwargs, found))


def tapped(app: Application, hook: Hook) -> Runtime:
    """Intercept every port of the application, wherever an adapter holds it; what is built on demand is built here."""
    runtime, _ = app.runtime, app.engines  # looking builds them
    files: Any = runtime.files
    intercepted = Intercepted("files", files(), hook)
    taps = {id(files): intercepted, id(files()): intercepted}
    parts = {name: part for name, part in vars(runtime.store).items() if name != "db"}
    taps |= {id(part): Intercepted(f"store.{name}", part, hook) for name, part in parts.items()}
    taps |= {id(catalog): Intercepted("catalog", catalog, hook) for catalog in runtime.catalogs.values()}
    _rewire(app, taps, {})
    return app.runtime


def _rewire(value: Any, taps: Mapping[int, Intercepted], seen: dict[int, Any]) -> Any:
    """The value with taps in it: objects are changed where they are, collections made anew."""
    if id(value) in seen:
        return seen[id(value)]
    if isinstance(value, MethodType) and id(value.__self__) in taps:
        return getattr(taps[id(value.__self__)], value.__name__)
    if isinstance(value, dict):
        return {key: _rewire(one, taps, seen) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_rewire(one, taps, seen) for one in value)
    seen[id(value)] = taps.get(id(value), value)
    if type(value).__module__.startswith(_OURS) and not isinstance(value, type):
        slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
        for name in (*getattr(value, "__dict__", {}), *slots):
            held = getattr(value, name, None)
            if (fresh := _rewire(held, taps, seen)) is not held and _differs(held, fresh):
                object.__setattr__(value, name, fresh)
    return seen[id(value)]


def _differs(held: Any, fresh: Any) -> bool:
    """Whether a collection that was made anew holds anything new."""
    if isinstance(held, dict):
        return any(held[key] is not one and _differs(held[key], one) for key, one in fresh.items())
    if type(held) in (list, tuple):
        return any(old is not new and _differs(old, new) for old, new in zip(held, fresh, strict=True))
    return True


@contextmanager
def opened(home: Path, clock: Clock, hook: Hook | None = None) -> Iterator[Application]:
    """The application of the lakehouse, its ports tapped when there is a hook. The one place that builds a world."""
    with application(read_config(home / "icewright.yaml"), kind="cycle", clock=clock) as app:
        if hook is not None:
            tapped(app, hook)
        yield app
