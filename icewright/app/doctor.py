"""Checks of everything that Icewright needs, each with the remedy for a failure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from icewright.app.bootstrap import Application
from icewright.core.errors import IcewrightError, StoreUnavailable, UsageError
from icewright.core.paths import split
from icewright.core.words import count
from icewright.ports import Catalog
from icewright.ports.deadlines import SharedCall
from icewright.ports.work import catalog_context

_NO_LOCATION = (
    "none, as the warehouse is a name and not a location: no file will be deleted; name the locations of its tables "
    "in catalogs.{name}.allowed_locations"
)
_LIMIT = timedelta(seconds=60)
_POOL_TIMES = 10  # longer for Spark, which may fetch packages first


@dataclass(frozen=True, slots=True)
class Check:
    """One check with its result, or the error and its remedy."""

    name: str
    ok: bool
    result: str


def examine(app: Application, limit: timedelta = _LIMIT) -> Iterator[Check]:
    """Yield every check as it ends, or once its time is over; a failed one does not stop the next."""
    runtime, check, hangs = app.runtime, partial(_check, limit), _hangs(limit)
    yield check("state store", lambda: _known(app))
    yield check("policy", lambda: _rules(app))
    yield check("jobs", lambda: str(runtime.store.fleet.get() or "not paused"))
    failed: set[str] = set()
    for name, catalog in runtime.catalogs.items():
        listed = check(f"catalog {name}", partial(_listed, name, catalog))
        failed.update([] if listed.ok else [name])
        yield listed
        for subject, probe in app.catalog_checks(name) if listed.result != hangs else ():
            probed = check(f"catalog {name}: {subject}", probe)
            if listed.ok or probed.result != listed.result:  # one cause is named once
                yield probed
        yield check(f"catalog {name}: enabled", partial(_enabled, app, name))
        locations = app.config.catalogs[name].allowed_locations
        if not locations:
            yield Check(f"catalog {name}: allowed_locations", ok=False, result=_NO_LOCATION.format(name=name))
        for location in locations:
            yield check(f"storage {location}", partial(_writable, app, name, location))
    yield from _pool_checks(app, failed, partial(_check, _POOL_TIMES * limit))


def _pool_checks(
    app: Application, failed: set[str], check: Callable[[str, Callable[[], str]], Check]
) -> Iterator[Check]:
    """Yield the checks of the pools that catalogs use, without the catalogs that failed."""
    for name, pool in app.pools.items():
        used = [c.name for c in app.config.catalogs.values() if c.pool == name]
        if used and failed.issuperset(used):
            yield Check(f"pool {name}", ok=False, result=f"not tried, as nothing can be read of {', '.join(used)}")
        elif used:
            readable = [catalog for catalog in used if catalog not in failed]
            tried = check(f"pool {name} ({pool.remote or pool.master})", partial(pool.check, readable))
            yield tried
            if not tried.ok:
                continue
            if shortage := pool.short_of_memory():
                yield Check(f"pool {name}: memory", ok=False, result=shortage)
            yield check(f"pool {name}: compaction", partial(_engine, app, name))


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


def _check(limit: timedelta, name: str, run: Callable[[], str]) -> Check:
    try:
        return Check(name, ok=True, result=SharedCall(run, limit).answer())
    except TimeoutError:
        return Check(name, ok=False, result=_hangs(limit))
    except IcewrightError as error:
        return Check(name, ok=False, result=str(error).removeprefix(f"{name}: "))


def _hangs(limit: timedelta) -> str:
    return f"no answer within {limit.total_seconds():g} s: it is overloaded, or a firewall is between"


def _rules(app: Application) -> str:
    policy = app.runtime.policy()
    tables = app.runtime.store.tables.known()
    lost = policy.without_match(tables) if tables else []
    return count(len(policy.rules), "rule") + (f"; no known table is in {', '.join(lost)}" if lost else "")


def _enabled(app: Application, name: str) -> str:
    scope = app.runtime.scopes[name]
    if scope.enabled:
        return "maintained automatically"
    return f"nothing runs by itself: {scope.enabling(name)} when you are ready"


def _engine(app: Application, pool_name: str) -> str:
    pool = app.pools[pool_name]
    if (why_not_arrow := pool.no_arrow()) is not None:
        return f"by Spark alone: {why_not_arrow}"
    if pool.remote is not None:
        return "by Arrow where the service plans and commits a table itself, by Spark for the others"
    return "by Arrow, as the executors have all that it needs"


def _writable(app: Application, name: str, location: str) -> str:
    if split(location).scheme in ("", "file") and app.runtime.files.stat([location], 1)[location] is None:
        raise UsageError("there is no such folder; correct the catalog's warehouse, or make it")
    with catalog_context(name):
        app.runtime.files.time(location)  # which writes and deletes a small file, as maintenance does
    return "can be written to and deleted from"
