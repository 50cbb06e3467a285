"""Checks of everything that Icewright needs, each with how to mend what fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from icewright.app.bootstrap import Application
from icewright.core.errors import IcewrightError

_NO_PLACE = (
    "none, as the warehouse is a name and no place: no file will be deleted; name the places of its tables in "
    "catalogs.{name}.allowed_locations"
)


@dataclass(frozen=True, slots=True)
class Check:
    """One check and what it found."""

    name: str
    ok: bool
    said: str


def examine(app: Application) -> tuple[Check, ...]:
    """Return every check; one that fails does not stop the next."""
    return tuple(_checks(app))


def _checks(app: Application) -> Iterator[Check]:
    runtime = app.runtime
    yield _check("state store", lambda: f"{len(runtime.store.tables.list())} tables known")
    for name, catalog in runtime.catalogs.items():
        yield _check(f"catalog {name}", lambda catalog=catalog: f"{len(catalog.pointers())} tables listed")  # type: ignore[misc]
        for what, ask in app.catalog_checks(name):
            yield _check(f"catalog {name}: {what}", ask)
        yield _check(f"catalog {name}: enabled", lambda name=name: _enabled(app, name))  # type: ignore[misc]
        if not app.config.catalogs[name].allowed_locations:
            yield Check(f"catalog {name}: allowed_locations", ok=False, said=_NO_PLACE.format(name=name))
        for place in app.config.catalogs[name].allowed_locations:
            yield _check(f"storage {place}", lambda place=place: _writable(app, place))  # type: ignore[misc]
    for name, pool in app.pools.items():
        used = [c.name for c in app.config.catalogs.values() if c.pool == name]
        if used:
            yield _check(f"pool {name} ({pool.remote or pool.master})", lambda pool=pool, used=used: pool.check(used))  # type: ignore[misc]
            yield _check(f"pool {name}: compaction", lambda pool=pool: _kernel(pool.no_arrow()))  # type: ignore[misc]


def _check(name: str, run: Callable[[], str]) -> Check:
    try:
        return Check(name, ok=True, said=run())
    except IcewrightError as error:
        return Check(name, ok=False, said=str(error))


def _enabled(app: Application, name: str) -> str:
    if app.runtime.scopes[name].enabled:
        return "maintained automatically"
    return f"nothing runs by itself: set catalogs.{name}.enabled to true when you are ready"


def _kernel(against: str | None) -> str:
    return "by Arrow, as the executors have all that it needs" if against is None else f"by Spark alone: {against}"


def _writable(app: Application, place: str) -> str:
    """Writes and deletes a small file, as maintenance will."""
    probe = f"{place.rstrip('/')}/.icewright-doctor"
    app.runtime.files.write(probe, b"doctor")
    failures = app.runtime.files.delete([probe], 1).failures
    if failures:
        return f"can be written to, but not deleted from: {failures[probe]}; nothing could be cleaned up here"
    return "can be written to and deleted from"
