"""Simulates policies over the same fleet; long simulations run in parallel processes."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icewright.app import output
from icewright.app.config import Config, default_limits
from icewright.app.strict_yaml import read_lines
from icewright.core.errors import UsageError
from icewright.core.layering import Policy, PolicyRule
from icewright.core.policy import PRESET
from icewright.core.presets import PRESETS
from icewright.core.simulation.fleet import fleet
from icewright.core.simulation.meter import Result
from icewright.core.simulation.run import Slots, Span, simulate
from icewright.core.simulation.trace import read_trace
from icewright.core.simulation.writes import Source, Write
from icewright.core.table import TableRef

if TYPE_CHECKING:
    from multiprocessing.sharedctypes import SynchronizedArray

CRON, DEFAULT, CONFIG = "cron", "default", "config"
ORACLE = "oracle"  # not a policy: the least that any schedule costs
BEGIN = datetime(2026, 1, 5, tzinfo=UTC)  # of made-up fleets, a Monday
_LONG = 20_000  # tables times days; larger simulations run each policy in its own process
_POLL_SECONDS = 0.2

Progress = Callable[[str, float], None]  # takes a policy's name and the share of its time that is simulated


@dataclass(frozen=True)
class GeneratedFleet:
    """A fleet of generated tables, by kind, size and seed."""

    name: str
    tables: int | None  # None: as many as the fleet has by default
    seed: int
    catalog: str = "lake"

    def __str__(self) -> str:
        return f"fleet {self.name}"

    def sources(self) -> Sequence[Source]:
        """Return the tables of the fleet."""
        return fleet(self.name, self.tables, self.seed, BEGIN, self.catalog)


@dataclass(frozen=True)
class Recorded:
    """A recorded trace of commits in a file."""

    path: Path

    def __str__(self) -> str:
        return self.path.name

    def sources(self) -> Sequence[Source]:
        """Return the tables of the trace in the file."""
        return read_trace(str(self.path), read_lines(self.path)).sources


@dataclass(frozen=True)
class ReplayedFleet:
    """Commits of existing tables, read into memory."""

    writes: Mapping[TableRef, Sequence[Write]]

    def __str__(self) -> str:
        return ", ".join(map(str, self.writes))

    def sources(self) -> Sequence[Source]:
        """Return the tables whose commits are given."""
        return [Source(ref, partial(iter, writes)) for ref, writes in self.writes.items()]


Origin = GeneratedFleet | Recorded | ReplayedFleet


def _gb_hours(amount: float) -> str:
    return f"{amount:.1f}" if amount >= 1 else f"{amount:.2g}"


MEASURES: tuple[tuple[str, Callable[[Result], str]], ...] = (
    ("GB-hours", lambda r: _gb_hours(r.gb_hours)),
    ("GB-hours with readers", lambda r: _gb_hours(r.total_gb_hours)),
    ("average files", lambda r: f"{r.average_files:,.0f}"),
    ("files at the end", lambda r: f"{r.final_files:,}"),
    ("average health", lambda r: "-" if r.average_health is None else f"{r.average_health:.1f}"),
    ("query cost (MB)", lambda r: f"{r.query_mb:,.0f}"),
    ("stored (average)", lambda r: output.size(r.average_stored_bytes)),
    ("files deleted", lambda r: f"{r.deleted_files:,}"),
    ("bytes deleted", lambda r: output.size(r.deleted_bytes)),
    ("runs", lambda r: f"{sum(r.runs.values()):,}"),
    ("evaluations", lambda r: f"{r.evaluations:,}"),
    ("tables that wait at the end", lambda r: f"{r.waiting:,}"),
)


def named_policies(names: Sequence[str], config: Config | None, sets: Mapping[str, Any]) -> dict[str, Policy | None]:
    """Return policies by name, None for cron. Knobs of the command apply to all others. Raises `UsageError`."""
    policies: dict[str, Policy | None] = {}
    for name in names:
        match name:
            case "cron":
                policies[name] = None
                continue
            case "default":
                policy = Policy()
            case "config" if config is not None:
                policy = config.policy
            case _ if name in PRESETS:
                policy = Policy((PolicyRule((), {PRESET.name: name}),))
            case _:
                choices = ", ".join((CRON, DEFAULT, CONFIG, *PRESETS, ORACLE))
                raise UsageError(f"--compare {name}: there is no such policy; there is: {choices}")
        policies[name] = replace(policy, command=sets)
    return policies


def slots(config: Config | None) -> Slots:
    """Return the limits on concurrent jobs, configured or default."""
    if config is None:
        return Slots(default_limits())
    return Slots(config.limits, {name: catalog.pool for name, catalog in config.catalogs.items()})


def simulate_all(
    origin: Origin,
    sources: Sequence[Source],
    policies: Mapping[str, Policy | None],
    span: Span,
    slots: Slots,
    progress: Progress,
) -> dict[str, Result]:
    """Return each policy's result, by its name."""
    days = (span.end - span.begin).total_seconds() / 86_400
    if len(policies) > 1 and len(sources) * days >= _LONG and (os.cpu_count() or 1) > 1:
        return _side_by_side(origin, policies, span, slots, progress)
    with _without_garbage_collection():
        return {name: simulate(sources, p, span, slots, tell=partial(progress, name)) for name, p in policies.items()}


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Pause garbage collection: it takes a tenth of the time, and a simulation makes no reference cycles."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _side_by_side(
    origin: Origin, policies: Mapping[str, Policy | None], span: Span, slots: Slots, progress: Progress
) -> dict[str, Result]:
    import multiprocessing  # noqa: PLC0415 - other commands start sooner without it

    context = multiprocessing.get_context("spawn")  # progress has a thread, and a fork would copy its locks
    shares = context.Array("d", len(policies))
    with context.Pool(min(len(policies), os.cpu_count() or 1), _share, (shares,)) as pool:
        waiting = {
            name: pool.apply_async(_simulate_one, (number, origin, policy, span, slots))
            for number, (name, policy) in enumerate(policies.items())
        }
        results: dict[str, Result] = {}
        for number, (name, result) in enumerate(waiting.items()):
            while not result.ready():
                result.wait(_POLL_SECONDS)
                for index, policy_name in enumerate(waiting):
                    progress(policy_name, shares[index])
            results[name] = result.get()
            progress(name, shares[number])
    return results


_shares: SynchronizedArray[float] | None = None  # of the process that simulates for another


def _share(shares: SynchronizedArray[float]) -> None:
    global _shares  # noqa: PLW0603 - how a pool hands its processes what cannot be sent later
    _shares = shares


def _simulate_one(number: int, origin: Origin, policy: Policy | None, span: Span, slots: Slots) -> Result:
    def progress(share: float) -> None:
        if _shares is not None:
            _shares[number] = share

    with _without_garbage_collection():
        return simulate(origin.sources(), policy, span, slots, tell=progress)
