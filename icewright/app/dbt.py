"""Policy rules of dbt models: `meta.icewright` in a manifest that `dbt parse` writes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from icewright.core.errors import ConfigError, UsageError
from icewright.core.guardrails import Guardrail
from icewright.core.layering import Policy, PolicyRule, parse_pattern, parse_settings
from icewright.core.words import kind, near

KEY = "icewright"
_STORED = ("model", "seed", "snapshot", "source")  # what may be a table; tests, analyses and the like never are
_NO_TABLES = ("view", "ephemeral", "materialized_view", "function")


def with_dbt(
    policy: Policy,
    manifest: str | None,
    read: Callable[[str], str],
    catalogs: Mapping[str, Sequence[str]],
    faults: list[str],
) -> Policy:
    """Return the policy with dbt's rules before its own, which win where both set a knob of a table."""
    if manifest is None:
        return policy
    try:
        rules, rule_faults = dbt_rules(read(manifest), catalogs, policy.guardrails)
    except (OSError, UnicodeDecodeError) as error:
        rules, rule_faults = (), [f"{manifest} cannot be read ({getattr(error, 'strerror', error)})"]
    faults += [f"policy_from.dbt: {fault}" for fault in rule_faults]
    return replace(policy, rules=(*rules, *policy.rules))


def dbt_rules(
    manifest: str, catalogs: Mapping[str, Sequence[str]], guardrails: Sequence[Guardrail]
) -> tuple[tuple[PolicyRule, ...], list[str]]:
    """Return a rule for each node with `meta.icewright`, and the faults, each with the node's name.

    `catalogs` are ours with the names that dbt may know them by.
    """
    try:
        document = json.loads(manifest)
        nodes = [*document["nodes"].items(), *document.get("sources", {}).items()]
    except (ValueError, TypeError, KeyError, AttributeError):
        return (), ["no manifest of dbt: give the manifest.json that `dbt parse` or `dbt build` writes into target/"]
    rules: dict[tuple[str, ...], PolicyRule] = {}
    faults: list[str] = []
    for name, node in nodes:
        settings = _settings(node)
        if settings is None:
            continue
        try:
            rule = _rule(name, node, settings, catalogs, guardrails)
        except ConfigError as error:
            faults += error.faults
            continue
        if (first := rules.setdefault(rule.match, rule)) is not rule:
            faults.append(f"{name}: {rule} is the table of {first.source.removeprefix('dbt ')} too; say it once")
    return tuple(rules.values()), faults


def _settings(node: Any) -> Any:  # noqa: ANN401 - JSON
    """Return the node's settings: `config.meta.icewright`, as newer versions of dbt have it, else `meta.icewright`."""
    if not isinstance(node, Mapping) or node.get("resource_type") not in _STORED:
        return None
    config = node.get("config") or {}
    return next((meta[KEY] for meta in (config.get("meta"), node.get("meta")) if meta and KEY in meta), None)


def _rule(
    name: str,
    node: Mapping[str, Any],
    settings: Any,  # noqa: ANN401 - JSON
    catalogs: Mapping[str, Sequence[str]],
    guardrails: Sequence[Guardrail],
) -> PolicyRule:
    materialized = (node.get("config") or {}).get("materialized")
    if materialized in _NO_TABLES:
        raise ConfigError([f"{name}: it is materialized as {materialized}, and only tables are maintained"])
    if not isinstance(settings, Mapping):
        raise ConfigError([f"{name}: meta.{KEY}: {kind(settings)} given; write a mapping of knobs to values"])
    match = (_catalog(name, node.get("database"), catalogs), *_parts(name, node))
    return PolicyRule(match, parse_settings(f"{name}: meta.{KEY}", settings, guardrails), f"dbt {name}")


def _catalog(name: str, database: object, catalogs: Mapping[str, Sequence[str]]) -> str:
    """Return the catalog of a dbt database; without a database, the only catalog."""
    if database in (None, "") and len(catalogs) == 1:
        return next(iter(catalogs))
    if matching := [catalog for catalog, aliases in catalogs.items() if database in (catalog, *aliases)]:
        return matching[0]
    if database in (None, ""):
        raise ConfigError([f"{name}: it has no database, and there are several catalogs: set `database` in dbt"])
    names = [name for catalog, aliases in catalogs.items() for name in (catalog, *aliases)]
    raise ConfigError(
        [f"{name}: there is no catalog {database}{near(str(database), names)}; catalogs.*.aliases name dbt's databases"]
    )


def _parts(name: str, node: Mapping[str, Any]) -> Iterator[str]:
    """Yield namespaces and table; dots in dbt's schema separate nested namespaces."""
    try:
        yield from parse_pattern(str(node.get("schema") or ""))
    except UsageError:
        raise ConfigError([f"{name}: it has no schema that could be a namespace"]) from None
    table = str(node.get("alias") or node.get("identifier") or node.get("name") or "")
    if not table or any(c in f"{node['schema']}{table}" for c in "*?"):
        raise ConfigError([f"{name}: {table!r} is no name of a table"])
    yield table
