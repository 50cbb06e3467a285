"""Routes of the caller, API tokens, permissions and the audit log."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from fastapi import Depends, Query

from icewright.app.tokens import new_token
from icewright.app.web.api import models
from icewright.app.web.api.paging import Cursor, Limit, decoded, encoded
from icewright.app.web.callers import Caller, allowed_actions, any_caller, api_router, needs
from icewright.app.web.identity import COOKIE, csrf_of
from icewright.app.web.problems import Problem, documented
from icewright.core.permissions import PERMISSIONS, Action, Grant, Via, grant
from icewright.ports.access import TokenRow

router = api_router("access")


@router.get("/me", summary="Who you are here")
def me(caller: Annotated[Caller, Depends(any_caller)]) -> models.Me:
    """Return the grants of the caller, and the actions allowed in at least one place."""
    principal = caller.principal
    secret = caller.request.cookies.get(COOKIE, "") if principal.via is Via.SESSION else ""
    return models.Me(
        name=principal.name,
        via=principal.via.value,
        grants=_granted(principal.grants),
        actions=list(allowed_actions(principal)),
        csrf=csrf_of(secret) if secret else None,
    )


@router.get("/permissions", summary="Who may do what")
def permissions(caller: Annotated[Caller, Depends(any_caller)]) -> list[dict[str, Any]]:  # noqa: ARG001 - who is known
    """Return the roles that each action needs."""
    return [
        {"action": str(action), "roles": sorted(map(str, permission.roles)), "help": permission.help}
        for action, permission in PERMISSIONS.items()
    ]


@router.get("/tokens", summary="List tokens")
def tokens(caller: Annotated[Caller, needs(Action.TOKENS_MANAGE)]) -> models.Tokens:
    """Return all tokens without their secrets."""
    caller.require((), "tokens")
    return models.Tokens(items=[models.Token(**_token(row)) for row in caller.runtime.store.access.tokens()])


@router.post("/tokens", summary="Make a token", status_code=201)
def create(body: models.TokenRequest, caller: Annotated[Caller, needs(Action.TOKENS_MANAGE)]) -> models.NewToken:
    """Create a token; only this response contains its text."""
    caller.require((), "tokens")
    granted_role = grant(body.role, body.scope)
    text, row = new_token([granted_role], body.name, caller.principal.name, caller.runtime.clock.now(), body.days)
    caller.runtime.store.access.add_token(row)
    caller.audit(f"token {row.id}", (), name=row.name, role=str(granted_role.role), scope=body.scope)
    return models.NewToken(**_token(row), token=text)


@router.delete("/tokens/{token_id:segment}", summary="Revoke a token", status_code=204, responses=documented(404))
def revoke(token_id: str, caller: Annotated[Caller, needs(Action.TOKENS_MANAGE)]) -> None:
    """Revoke an API token at once."""
    caller.require((), "tokens")
    if not caller.runtime.store.access.revoke_token(token_id, caller.runtime.clock.now()):
        raise Problem(404, "there is no such token, or it is revoked already")
    caller.audit(f"token {token_id}", (), revoked=True)


@router.get("/audit", summary="Changes and refusals")
def audit(
    caller: Annotated[Caller, needs(Action.AUDIT_READ)],
    actor: Annotated[models.Text | None, Query(description="only entries of this actor")] = None,
    action: Annotated[models.Text | None, Query(description="only this action, as in jobs.run")] = None,
    refused: Annotated[bool | None, Query(description="true: only refusals; false: only changes")] = None,
    since: Annotated[models.Instant | None, Query(description="only entries since then")] = None,
    search: Annotated[models.Text | None, Query(description="part of the target, in any case")] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> models.Audit:
    """Return audit entries, newest first; owners see those of their scopes."""
    position = decoded(cursor)
    if position is not None and (len(position) != 1 or type(position[0]) is not int or abs(position[0]) >= 2**63):
        raise Problem(422, "cursor: not one of this list; begin again without it")
    filters = {"actor": actor, "action": action, "refused": refused}
    set_filters = {name: value for name, value in filters.items() if value is not None}
    before = None if position is None else int(position[0])
    audit_log = caller.runtime.store.audit
    rows = audit_log.entries(caller.visibility, before, limit + 1, since=since, search=search, **set_filters)
    items = [models.AuditEntry.model_validate(row, from_attributes=True) for row in rows[:limit]]
    return models.Audit(items=items, next=encoded((items[-1].id,)) if len(rows) > limit else None)


def _token(row: TokenRow) -> dict[str, Any]:
    fields = ("id", "name", "author", "created", "expires", "revoked", "used")
    return {**{name: getattr(row, name) for name in fields}, "grants": _granted(row.grants)}


def _granted(grants: Iterable[Grant]) -> list[models.Granted]:
    return [models.Granted(role=g.role, scope=[".".join(scope) for scope in g.scopes]) for g in grants]
