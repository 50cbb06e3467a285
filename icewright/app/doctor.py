"""Checks of everything that Icewright needs, each with the remedy for a failure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from icewright.app.bootstrap import Application
from icewright.core.errors import IcewrightError, StoreUnavailable, UsageError
from icewright.core.paths import split
from icewright.core.words import count
from icewright.ports import Catalog
from icewright.ports.work import catalog_context

_NO_LOCATION = (
    "none, as the warehouse is a name and not a location: no file will be deleted; name the locations of its tables "
    "in catalogs.{name}.allowed_locations"
)


@dataclass(frozen=True, slots=True)
class Check:
    """One check with its result, or the error and its remedy."""

    name: str
    ok: bool
    result: str


def examine(app: Application) -> Iterator[Check]:
    """Yield every check as it ends; a failed one does not stop the next."""
    runtime = app.runtime
    yield _check("state store", lambda: _known(app))
    yield _check("policy", lambda: _rules(app))
    yield _check("jobs", lambda: str(runtime.store.fleet.get() or "not paused"))
    failed: set[str] = set()
    for name, catalog in runtime.catalogs.items():
        listed = _check(f"catalog {name}", lambda name=name, catalog=catalog: _listed(name, catalog))  # type: ignore[misc]
        failed.update([] if listed.ok else [name])
        yield listed
        for subject, probe in app.catalog_checks(name):
            check = _check(f"catalog {name}: {subject}", probe)
            if listed.ok or check.result != listed.result:  # one cause is named once
                yield check
        yield _check(f"catalog {name}: enabled", lambda name=name: _enabled(app, name))  # type: ignore[misc]
        locations = app.config.catalogs[name].allowed_locations
        if not locations:
            yield Check(f"catalog {name}: allowed_locations", ok=False, result=_NO_LOCATION.format(name=name))
        for location in locations:
            yield _check(f"storage {location}", lambda name=name, location=location: _writable(app, name, location))  # type: ignore[misc]
    for name, pool in app.pools.items():
        used = [c.name for c in app.config.catalogs.values() if c.pool == name]
        if used and failed.issuperset(used):
            yield Check(f"pool {name}", ok=False, result=f"not tried, as nothing can be read of {', '.join(used)}")
        elif used:
            used = [catalog for catalog in used if catalog not in failed]
            check = _check(f"pool {name} ({pool.remote or pool.master})", lambda pool=pool, used=used: pool.check(used))  # type: ignore[misc]
            yield check
            if not check.ok:
                continue
            if shortage := pool.short_of_memory():
                yield Check(f"pool {name}: memory", ok=False, result=shortage)
            yield _check(f"pool {name}: compaction", lambda pool=pool: _engine(pool.no_arrow(), pool.remote))  # type: ignore[misc]


def other_names(name: str, catalog: Catalog) -> str | None:
    """Return under which names the database of a catalog without tables has some; None where it has none at all."""
    names = sorted({pointer.ref.catalog for pointer in catalog.neighbours()} - {name})
    if not names:
        return None
    return (
        f"no table is in catalog {name}, but its database has some in {', '.join(names)}: "
        "name the catalog in the configuration as its engines do"
    )


def _known(app: Application) -> str:
    if faults := app.store_faults():
        raise StoreUnavailable("; ".join(faults))
    return f"{count(len(app.runtime.store.tables.list()), 'table')} known"


def _listed(name: str, catalog: Catalog) -> str:
    tables = len(catalog.pointers())
    if not tables and (others := other_names(name, catalog)):
        raise UsageError(others)
    return f"{count(tables, 'table')} listed"


def _check(name: str, run: Callable[[], str]) -> Check:
    try:
        return Check(name, ok=True, result=run())
    except IcewrightError as error:
        return Check(name, ok=False, result=str(error).removeprefix(f"{name}: "))


def _rules(app: Application) -> str:
    policy = app.runtime.policy()
    tables = app.runtime.store.tables.known()
    lost = policy.without_match(tables) if tables else []
    return count(len(policy.rules), "rule") + (f"; no known table is in {', '.join(lost)}" if lost else "")


def _enabled(app: Application, name: str) -> str:
    if app.runtime.scopes[name].enabled:
        return "maintained automatically"
    return f"nothing runs by itself: set catalogs.{name}.enabled to true when you are ready"


def _engine(why_not_arrow: str | None, remote: str | None) -> str:
    if why_not_arrow is not None:
        return f"by Spark alone: {why_not_arrow}"
    if remote is not None:
        return "by Arrow where the service plans and commits a table itself, by Spark for the others"
    return "by Arrow, as the executors have all that it needs"


def _writable(app: Application, name: str, location: str) -> str:
    if split(location).scheme in ("", "file") and app.runtime.files.stat([location], 1)[location] is None:
        raise UsageError("there is no such folder; correct the catalog's warehouse, or make it")
    with catalog_context(name):
        app.runtime.files.time(location)  # which writes and deletes a small file, as maintenance does
    return "can be written to and deleted from"
