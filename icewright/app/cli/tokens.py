"""Commands about API tokens: token create, list, revoke."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape

from icewright.app import output
from icewright.app.cli.base import Json, app, opened_application
from icewright.app.tokens import new_token
from icewright.core.errors import UsageError
from icewright.core.permissions import Grant, Role, grant
from icewright.flow.runtime import Runtime
from icewright.ports.access import AuditRow, TokenRow

token_app = typer.Typer(no_args_is_help=True, help="API tokens: who may ask the service.")
app.add_typer(token_app, name="token")


@token_app.command("create")
def token_create(
    role: Annotated[str, typer.Option("--role", help=f"{', '.join(Role)}.")],
    scope: Annotated[
        list[str] | None,
        typer.Option("--scope", metavar="PATTERN", help="A catalog or namespace, such as lake.sales; default: all."),
    ] = None,
    days: Annotated[int, typer.Option("--days", min=1, max=3660, help="Until it expires.")] = 90,
    name: Annotated[str, typer.Option("--name", help="Whose it is; the audit log says it.")] = "",
    as_json: Json = False,
) -> None:
    """Make a token and print it: this once, for it is kept nowhere."""
    with opened_application() as opened:
        runtime, made = opened.runtime, grant(role, scope or ())
        actor = runtime.trigger.actor
        text, row = new_token([made], name.strip() or f"{role} by {actor}", actor, runtime.clock.now(), days)
        runtime.store.access.add_token(row)
        _audit(runtime, row.id, name=row.name, role=str(made.role), scope=scope or [])
    if as_json:
        output.print_json(_document(row) | {"token": text})
    else:
        output.OUT.print(escape(text), soft_wrap=True)
        output.ERR.print(escape(f"{row.name}: {_said(row.grants)}, until {row.expires:%Y-%m-%d %H:%M} UTC"))


@token_app.command("list")
def token_list(as_json: Json = False) -> None:
    """List API tokens, without their secrets."""
    with opened_application() as opened:
        found, now = opened.runtime.store.access.tokens(), opened.runtime.clock.now()
    if as_json:
        output.print_json({"tokens": [_document(row) for row in found]})
        return
    lines = [
        (
            row.id,
            row.name,
            _said(row.grants),
            f"{row.expires:%Y-%m-%d}" if row.expires else "never",
            f"{row.used:%Y-%m-%d %H:%M}" if row.used else None,
            "" if row.holds(now) else "revoked" if row.revoked else "expired",
        )
        for row in found
    ]
    output.rows("Tokens", ("id", "name", "may", "expires (UTC)", "used (UTC)", ""), lines)


@token_app.command("revoke")
def token_revoke(token: Annotated[str, typer.Argument(metavar="ID", help="As `token list` shows it.")]) -> None:
    """End a token at once."""
    with opened_application() as opened:
        runtime = opened.runtime
        if not runtime.store.access.revoke_token(token, runtime.clock.now()):
            raise UsageError(f"there is no token {token} that goes on; `icewright token list` shows their ids")
        _audit(runtime, token, revoked=True)
    output.OUT.print(f"token {escape(token)} opens nothing any more")


def _audit(runtime: Runtime, token: str, **details: object) -> None:
    entry = AuditRow(
        at=runtime.clock.now(),
        actor=runtime.trigger.actor,
        via="local",
        action="tokens.manage",
        target=f"token {token}",
        place=None,
        refused=False,
        source="command line",
        details=details,
    )
    runtime.store.audit.append(entry)


def _said(grants: tuple[Grant, ...]) -> str:
    return "; ".join(f"{g.role} of {', '.join('.'.join(s) for s in g.scopes) or 'everything'}" for g in grants)


def _document(row: TokenRow) -> dict[str, object]:
    same = ("id", "name", "author", "created", "expires", "revoked", "used")
    grants = [{"role": str(g.role), "scope": [".".join(s) for s in g.scopes]} for g in row.grants]
    return {**{name: getattr(row, name) for name in same}, "grants": grants}
