"""Limits that are set in the place of the configuration's, each by its key path there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from icewright.core.capacity import CatalogLimits, Limits
from icewright.core.errors import ConfigError
from icewright.core.knob import MAX_HOURS, Knob, ValueKind
from icewright.core.layering import parse_pattern
from icewright.core.policy import Operation
from icewright.core.table import split_name
from icewright.core.words import near

NULL = "null"  # as text: no limit of its own
_HOUR = timedelta(hours=1)
SHARES = "limits.namespaces."  # and a pattern of namespaces
_FIELDS = {"global": "total", "max_jobs_per_detection": "max_jobs"}  # of `Limits`, where their names differ
_JOBS: Knob[Any] = Knob("", ValueKind.INTEGER, 1, "jobs at the same time", minimum=1)
_SHARE: Knob[Any] = replace(_JOBS, default=None)
_WAIT = "time that due operations wait, until they go ahead of all others"
_HOURS = replace(_JOBS, help=_WAIT, unit="hours", maximum=MAX_HOURS)
_KINDS: Mapping[str, Knob[Any]] = {
    "limits.global": replace(_JOBS, help="jobs at the same time, in all"),
    "limits.max_jobs_per_detection": replace(_JOBS, help="jobs that one plan starts"),
    "gb_hours_per_day": Knob("", ValueKind.NUMBER, None, "budget of a day", unit="GB-hours", minimum=0.001),
    "gb_hour_price": Knob("", ValueKind.NUMBER, None, "price of a GB-hour", minimum=0),
    "gb_month_price": Knob("", ValueKind.NUMBER, None, "price of storing a GB for a month", minimum=0),
}


def limit_values(limits: Limits) -> Mapping[str, int | float | None]:
    """Return every limit by its key path in the configuration."""
    return dict(_values(limits))


def _values(limits: Limits) -> Iterator[tuple[str, int | float | None]]:
    yield "limits.global", limits.total
    yield "limits.max_jobs_per_detection", limits.max_jobs
    yield from ((f"limits.per_operation.{operation}", most) for operation, most in limits.per_operation.items())
    yield from ((f"limits.max_wait_hours.{name}", wait // _HOUR) for name, wait in limits.max_wait.items())
    for name, pool in limits.pools.items():
        yield f"pools.{name}.max_concurrent", pool.max_concurrent
        yield f"pools.{name}.gb_hours_per_day", pool.gb_hours_per_day
        yield f"pools.{name}.gb_hour_price", pool.gb_hour_price
    parts = {f"catalogs.{name}": catalog for name, catalog in limits.catalogs.items()}
    parts |= {f"{SHARES}{'.'.join(map(_quoted, pattern))}": share for pattern, share in limits.namespaces.items()}
    for path, part in parts.items():
        yield f"{path}.max_concurrent", part.max_concurrent
        yield f"{path}.gb_hours_per_day", part.gb_hours_per_day
    yield "limits.gb_hour_price", limits.gb_hour_price
    yield "limits.gb_month_price", limits.gb_month_price


def limit_knob(name: str) -> Knob[Any]:
    """Return what a limit means, and which values it takes."""
    field = name.rpartition(".")[2]
    if name.startswith("limits.max_wait_hours."):
        return _HOURS
    optional = field == "max_concurrent" and not name.startswith("pools.")
    return _KINDS.get(name) or _KINDS.get(field) or (_SHARE if optional else _JOBS)


def parse_limits(option: str, settings: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    """Return settings of limits as checked values. Raises `ConfigError` with every fault, after the option's name."""
    faults, parsed, known = [], {}, limit_values(limits)
    for name, value in settings.items():
        if name not in known and not _is_share(name):
            remedy = near(name, list(known), listed=False)
            faults.append(f"{option} {name}: there is no such limit, or only the configuration file has it{remedy}")
            continue
        knob = limit_knob(name)
        try:
            parsed[name] = knob.parse(None if value == NULL else value)
        except ValueError as error:
            faults.append(f"{option} {name}: {error}{', or null for none' if knob.default is None else ''}")
    if faults:
        raise ConfigError(faults)
    return parsed


def with_limits(limits: Limits, settings: Mapping[str, Any]) -> Limits:
    """Return limits with those that are set; those of pools and catalogs that are not configured are left out."""
    for name, value in settings.items():
        path, _, field = name.rpartition(".")
        section, _, key = path.partition(".")
        if path == "limits":
            limits = replace(limits, **{_FIELDS.get(field, field): value})
        elif path == "limits.per_operation" and field in list(Operation):
            limits = replace(limits, per_operation={**limits.per_operation, Operation(field): value})
        elif path == "limits.max_wait_hours":
            limits = replace(limits, max_wait={**limits.max_wait, field: timedelta(hours=value)})
        elif path.startswith(SHARES):
            pattern = parse_pattern(path.removeprefix(SHARES))
            share = replace(limits.namespaces.get(pattern, CatalogLimits()), **{field: value})
            limits = replace(limits, namespaces={**limits.namespaces, pattern: share})
        elif section == "pools" and key in limits.pools:
            pool = replace(limits.pools[key], **{field: value})
            limits = replace(limits, pools={**limits.pools, key: pool})
        elif section == "catalogs" and key in limits.catalogs:
            catalog = replace(limits.catalogs[key], **{field: value})
            limits = replace(limits, catalogs={**limits.catalogs, key: catalog})
    return limits


def _is_share(name: str) -> bool:
    """Return whether a limit is that of a namespace, which the configuration need not name."""
    path, _, field = name.rpartition(".")
    pattern = split_name(path.removeprefix(SHARES)) if path.startswith(SHARES) else ()
    return field in ("max_concurrent", "gb_hours_per_day") and len(pattern) > 1


def _quoted(part: str) -> str:
    return part if split_name(part) == (part,) else "`" + part.replace("`", "``") + "`"
