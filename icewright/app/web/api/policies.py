"""Routes of policy rules, their versions, changes and previews."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query

from icewright.app.web.api import models
from icewright.app.web.callers import Caller, api_router, needs
from icewright.app.web.problems import Problem, documented
from icewright.core.errors import UsageError
from icewright.core.layering import PolicyRule, parse_pattern, parse_settings
from icewright.core.permissions import Action, Place, overlaps, place_of, sees
from icewright.core.policy import KNOBS
from icewright.core.properties import by_property
from icewright.flow.preview import Changed, preview
from icewright.ports.views import RuleVersion

router = api_router("policies")
PLATFORM = "platform"


@router.get("/knobs", summary="Every knob there is")
def every_knob(caller: Annotated[Caller, needs(Action.POLICIES_READ)]) -> list[dict[str, Any]]:  # noqa: ARG001 - who may
    """Return each knob's default, unit, bounds and help, and whether a table property may set it."""
    fields = ("name", "default", "unit", "minimum", "maximum", "choices", "help", "expects")
    return [
        {**{n: getattr(knob, n) for n in fields}, "kind": str(knob.kind), "by_property": by_property(knob)}
        for knob in KNOBS.values()
    ]


@router.get("/policies", summary="Rules and guardrails")
def policies(caller: Annotated[Caller, needs(Action.POLICIES_READ)]) -> models.Policies:
    """Return the rules of file and store that reach visible tables, weakest level first."""
    policy, newest = caller.runtime.policy(), {v.match: v for v in reversed(caller.runtime.store.rules.versions())}
    rules = [r for r in policy.rules if r.settings and overlaps(r.match, caller.visibility)]
    rules.sort(key=lambda rule: len(rule.match))
    return models.Policies(
        rules=[_rule(rule, newest.get(rule.match)) for rule in rules],
        guardrails=[str(guardrail) for guardrail in policy.guardrails],
    )


@router.get("/policies/{scope:segment}/versions", summary="All versions of a stored rule", responses=documented(404))
def versions(scope: str, caller: Annotated[Caller, needs(Action.POLICIES_READ)]) -> models.Versions:
    """Return the versions of a rule, newest first; one without settings removed the rule."""
    match = rule_pattern(scope)
    if not overlaps(match, caller.visibility):
        raise Problem(404, f"there is no rule {scope}, or it is not yours to see")
    stored = caller.runtime.store.rules.versions(match)
    return models.Versions(items=[_rule(PolicyRule(v.match, v.settings, "store"), v) for v in stored])


@router.put("/policies/{scope:segment}", summary="Set a rule", responses=documented(409))
def put(scope: str, body: models.RuleRequest, caller: Annotated[Caller, needs(Action.POLICIES_CHANGE)]) -> models.Rule:
    """Replace the stored rule of the scope; it wins over the file's rule of the same level."""
    match = _owned_pattern(caller, scope)
    settings = _settings(caller, body)
    if not settings:
        raise Problem(422, "a rule sets something; to take it back, delete it")
    return _set(caller, match, settings, body.version)


@router.delete("/policies/{scope:segment}", summary="Take a rule back", status_code=204, responses=documented(404, 409))
def delete(
    scope: str,
    caller: Annotated[Caller, needs(Action.POLICIES_CHANGE)],
    version: Annotated[int | None, Query(ge=1, description="newest version known; another one is a conflict")] = None,
) -> None:
    """Remove the stored rule of the scope; rules of the file stay."""
    match = _owned_pattern(caller, scope)
    newest = next(iter(caller.runtime.store.rules.versions(match)), None)
    if newest is None or not newest.settings:
        raise Problem(404, f"the store has no rule {scope}")
    _set(caller, match, {}, newest.version if version is None else version)


@router.post("/policies/{scope:segment}/preview", summary="What a rule would change")
def preview_rule(
    scope: str,
    body: models.RuleRequest,
    caller: Annotated[Caller, needs(Action.POLICIES_PREVIEW)],
    limit: Annotated[int, Query(ge=1, le=100, description="tables of which verdicts are compared, and listed")] = 20,
) -> models.Preview:
    """Compare knobs of all visible tables, and verdicts of the first `limit`; no settings previews a removal."""
    match, runtime = rule_pattern(scope), caller.runtime
    settings = _settings(caller, body)
    with caller.heavy():
        rows = runtime.store.tables.list(_catalog(match))
        readable = [row.ref for row in rows if not row.dropped and row.error is None]
        visible = [r for r in readable if r.catalog in runtime.catalogs and sees(caller.visibility, place_of(r))]
        result = preview(runtime, PolicyRule(match, settings, "store"), visible, limit)
    listed = result.changed[:limit]
    return models.Preview(
        matched=result.matched,
        changed=len(result.changed),
        evaluated=sum(change.verdicts is not None for change in listed),
        items=[_change(change) for change in listed],
    )


def rule_pattern(scope: str) -> Place:
    """Return the pattern of a rule's scope: empty for the platform."""
    return () if scope == PLATFORM else parse_pattern(scope)


def _catalog(match: Place) -> str | None:
    return match[0] if match and not any(c in match[0] for c in "*?") else None


def _owned_pattern(caller: Caller, scope: str) -> Place:
    """Return the pattern of a scope that the caller owns. Raises `UsageError`, `Problem` 403."""
    match = rule_pattern(scope)
    catalog = _catalog(match)
    if catalog is not None and catalog not in caller.runtime.scopes:
        raise UsageError(f"there is no catalog {catalog} in the configuration")
    if not caller.principal.may_rule(caller.action, match):
        raise caller.refused(f"policy {scope}", match, caller.action)
    return match


def _settings(caller: Caller, body: models.RuleRequest) -> dict[str, Any]:
    return parse_settings("set", body.set, caller.runtime.policy().guardrails)


def _set(caller: Caller, match: Place, settings: dict[str, Any], expected: int | None) -> models.Rule:
    store, now, rule = caller.runtime.store, caller.runtime.clock.now(), PolicyRule(match, settings, "store")
    before = next(iter(store.rules.versions(match)), None)
    version = store.rules.put(match, settings, caller.principal.name, now, expected)
    if version is None:
        raise Problem(409, f"the rule {rule} was changed meanwhile; read it again")
    old = dict(before.settings) if before is not None else {}
    caller.audit(f"policy {rule}", match, version=version, before=old, after=settings)
    return _rule(rule, RuleVersion(match, settings, caller.principal.name, now, version))


def _rule(rule: PolicyRule, stored: RuleVersion | None) -> models.Rule:
    version = stored if rule.source == "store" else None
    return models.Rule(
        scope=_name(rule.match),
        source=rule.source,
        settings=dict(rule.settings),
        author=version.author if version else None,
        at=version.at if version else None,
        version=version.version if version else None,
    )


def _name(match: Place) -> str:
    """Return a pattern as text, quoted so that it parses again."""
    plain = (
        p if p and not any(c in p or c.isspace() for c in ".`") else "`" + p.replace("`", "``") + "`" for p in match
    )
    return ".".join(plain) or PLATFORM


def _change(change: Changed) -> models.TableChange:
    knobs = [models.KnobChange(knob=name, before=old, after=new) for name, (old, new) in change.knobs.items()]
    verdicts = None
    if change.verdicts is not None:
        verdicts = [
            models.VerdictChange(operation=operation, before=old, after=new, reason=reason)
            for operation, (old, new, reason) in change.verdicts.items()
        ]
    return models.TableChange(table=str(change.ref), knobs=knobs, verdicts=verdicts, error=change.error)
