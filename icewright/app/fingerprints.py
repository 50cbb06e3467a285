"""Fingerprints of the configuration: a hash for each key, by which processes compare without showing a value."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from hashlib import sha256
from typing import Any

from icewright.app.config import Config
from icewright.app.redaction import Redaction

_SECRET = re.compile(r"secret|password|token|credential|key|auth", re.IGNORECASE)
_DIGITS = 8  # of a hash: enough to see a difference


def configuration_fingerprints(config: Config) -> Mapping[str, str]:
    """Return a hash for each key of policy, catalogs, limits and pools that all processes of a store must share.

    Secrets are left out: processes may have credentials of their own, and a short secret could be found by its hash.
    """
    redaction = Redaction(config.secrets)
    return {key: _hashed(key, redaction.value(value)) for key, value in _settings(config)}


def _hashed(key: str, value: Any) -> str:  # noqa: ANN401 - any value of a configuration
    return sha256(f"{key}={value!r}".encode()).hexdigest()[:_DIGITS]


def _settings(config: Config) -> Iterator[tuple[str, Any]]:
    by_scope: dict[str, list[Any]] = {}
    for rule in config.policy.rules:
        for knob, value in rule.settings.items():
            by_scope.setdefault(f"policy.{rule}.{knob}", []).append(value)
    yield from by_scope.items()
    yield "guardrails", [str(guardrail) for guardrail in config.policy.guardrails]
    for name, catalog in config.catalogs.items():
        path = f"catalogs.{name}"
        yield f"{path}.type", catalog.type
        yield f"{path}.pool", catalog.pool
        yield f"{path}.allowed_locations", sorted(catalog.allowed_locations)
        yield f"{path}.policies", catalog.policies
        yield f"{path}.environment", str(catalog.environment)
        yield from ((f"{path}.{field}", str(value)) for field, value in asdict(catalog.scope).items())
        yield from ((f"{path}.limits.{field}", value) for field, value in asdict(catalog.limits).items())
        for key, value in catalog.properties.items():
            if not _SECRET.search(key):
                yield f"{path}.properties.{key}", value
    for name, pool in config.pools.items():
        yield f"pools.{name}.max_concurrent", pool.max_concurrent
        yield f"pools.{name}.gb_hours_per_day", pool.gb_hours_per_day
    yield "limits.total", config.limits.total
    yield "limits.per_operation", sorted((str(op), most) for op, most in config.limits.per_operation.items())
