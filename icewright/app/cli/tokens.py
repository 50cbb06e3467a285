"""Commands for API tokens: token create, list, revoke."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from icewright.app import output
from icewright.app.cli.base import Json, audit, open_application, token_app
from icewright.core.errors import UsageError
from icewright.core.permissions import Action, Role

if TYPE_CHECKING:
    from icewright.core.permissions import Grant
    from icewright.ports.access import TokenRow

_ACTION = Action.TOKENS_MANAGE


@token_app.command("create")
def token_create(
    role: Annotated[str, typer.Option("--role", metavar="ROLE", help=f"{', '.join(Role)}.")],
    scope: Annotated[
        list[str] | None,
        typer.Option("--scope", metavar="PATTERN", help="A catalog or namespace, such as lake.sales; default: all."),
    ] = None,
    days: Annotated[int, typer.Option("--days", metavar="N", min=1, max=3660, help="Until the token expires.")] = 90,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="The owner, as the audit log names it.")] = "",
    as_json: Json = False,
) -> None:
    """Create a token and print it; it is stored hashed and cannot be shown again."""
    from icewright.app.tokens import new_token
    from icewright.core.permissions import grant

    with open_application(without_catalogs=True) as opened:
        runtime, new_grant = opened.runtime, grant(role, scope or ())
        actor = runtime.trigger.actor
        text, row = new_token([new_grant], name.strip() or f"{role} by {actor}", actor, runtime.clock.now(), days)
        runtime.store.access.add_token(row)
        audit(runtime, _ACTION, f"token {row.id}", None, name=row.name, role=str(new_grant.role), scope=scope or [])
    if as_json:
        output.print_json(_document(row) | {"token": text})
    else:
        typer.echo(text)
        output.note(f"{row.name}: {_grants(row.grants)}, until {output.moment(row.expires)} UTC")


@token_app.command("list")
def token_list(as_json: Json = False) -> None:
    """List API tokens, without their secrets."""
    with open_application(without_catalogs=True) as opened:
        tokens, now = opened.runtime.store.access.tokens(), opened.runtime.clock.now()
    if as_json:
        output.print_json({"tokens": [_document(row) for row in tokens]})
        return
    lines = [
        (
            row.id,
            row.name,
            _grants(row.grants),
            row.expires or "never",
            row.used,
            "" if row.holds(now) else "revoked" if row.revoked else "expired",
        )
        for row in tokens
    ]
    columns = (
        output.Column("id"),
        "name",
        "grants",
        output.Column("expires (UTC)"),
        output.Column("used (UTC)", rank=1),
        output.Column("state", rank=2),
    )
    output.rows("Tokens", columns, lines)


@token_app.command("revoke")
def token_revoke(
    token: Annotated[str, typer.Argument(metavar="ID", help="As `token list` shows it.")], as_json: Json = False
) -> None:
    """Revoke a token; requests with it are refused from now on."""
    with open_application(without_catalogs=True) as opened:
        runtime = opened.runtime
        now = runtime.clock.now()
        if not runtime.store.access.revoke_token(token, now):
            raise UsageError(f"there is no valid token {token}; `icewright token list` shows their ids")
        audit(runtime, _ACTION, f"token {token}", None, revoked=True)
    if as_json:
        output.print_json({"id": token, "revoked": now})
    else:
        output.echo(f"token {output.escape(token)} is revoked")


def _grants(grants: tuple[Grant, ...]) -> str:
    return "; ".join(f"{g.role} of {', '.join('.'.join(s) for s in g.scopes) or 'everything'}" for g in grants)


def _document(row: TokenRow) -> dict[str, object]:
    fields = ("id", "name", "author", "created", "expires", "revoked", "used")
    grants = [{"role": str(g.role), "scope": [".".join(s) for s in g.scopes]} for g in row.grants]
    return {**{name: getattr(row, name) for name in fields}, "grants": grants}
