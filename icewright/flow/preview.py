"""Preview of a policy rule: which settings and verdicts it would change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from icewright.core.errors import ConfigError, IcewrightError
from icewright.core.layering import Policy, PolicyRule, matches
from icewright.core.policy import KNOBS, Operation
from icewright.core.steps import VERDICT_NAMES, why
from icewright.core.table import TableRef
from icewright.flow.evaluate import evaluate_table
from icewright.flow.runtime import Runtime

TIME_LIMIT = timedelta(seconds=10)  # after which no further table is evaluated


@dataclass(frozen=True, slots=True)
class Changed:
    """A table whose settings would change: values before and after, and verdicts where they were compared."""

    ref: TableRef
    knobs: Mapping[str, tuple[Any, Any]]
    verdicts: Mapping[Operation, tuple[str, str, str]] | None = None  # before, after, the reason after
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Previewed:
    """The changes that a policy rule would make."""

    matched: int
    changed: Sequence[Changed]


def preview(runtime: Runtime, rule: PolicyRule, refs: Sequence[TableRef], most: int) -> Previewed:
    """Compare the settings of all tables that the rule matches, and the verdicts of the first `most` that change."""
    before = runtime.policy()
    after = with_rule(before, rule)
    matched = [ref for ref in refs if matches(rule.match, ref.parts[: len(rule.match)])]
    changed = [Changed(ref, differences) for ref in matched if (differences := _knobs(before, after, ref))]
    until = runtime.clock.now() + TIME_LIMIT
    for i, change in enumerate(changed[:most]):
        if runtime.clock.now() >= until:
            break
        changed[i] = _compare_verdicts(runtime, change, before, after)
    return Previewed(len(matched), changed)


def with_rule(policy: Policy, rule: PolicyRule) -> Policy:
    """Return the policy with the stored rule of this pattern replaced, or removed when it sets nothing."""
    other_rules = [r for r in policy.rules if r.source != rule.source or r.match != rule.match]
    return replace(policy, rules=(*other_rules, rule) if rule.settings else tuple(other_rules))


def _knobs(before: Policy, after: Policy, ref: TableRef) -> dict[str, tuple[Any, Any]]:
    old, new = before.knobs_for(ref, None), after.knobs_for(ref, None)
    names = old.origins.keys() | new.origins.keys()
    return {n: (old[KNOBS[n]], new[KNOBS[n]]) for n in sorted(names) if old[KNOBS[n]] != new[KNOBS[n]]}


def _compare_verdicts(runtime: Runtime, change: Changed, before: Policy, after: Policy) -> Changed:
    now = runtime.clock.now()
    try:
        old = evaluate_table(replace(runtime, policy=lambda: before), change.ref, now)
        new = evaluate_table(replace(runtime, policy=lambda: after), change.ref, now)
    except ConfigError as error:
        return replace(change, error="; ".join(error.faults))
    except IcewrightError as error:
        return replace(change, error=str(error))
    changes = {}
    for operation, verdict in new.verdicts.items():
        names = [VERDICT_NAMES[type(judgement)] for judgement in (old.verdicts[operation], verdict)]
        if old.verdicts[operation] != verdict and (
            names[0] != names[1] or why(old.verdicts[operation]) != why(verdict)
        ):
            changes[operation] = (names[0], names[1], why(verdict))
    return replace(change, verdicts=changes)
