"""Routes of catalogs: whether they answer, and which of their tables are maintained."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Annotated

from pydantic import BaseModel, Field

from icewright.app.web.api.models.requests import RequestBody, Text
from icewright.app.web.callers import Caller, api_router, needs
from icewright.app.web.problems import Problem, documented
from icewright.core.permissions import Action, touches
from icewright.flow.runtime import Scope
from icewright.flow.scopes import set_catalog, with_settings
from icewright.ports import CatalogRow, CatalogSettings

router = api_router("system")
_NAMES = "names and wildcards, separated by commas; blank: all; null: as the configuration says"
_AS_FILE = "null: as the configuration says"


class CatalogRequest(RequestBody):
    """Settings for a catalog in the place of its configuration; an empty object takes all back."""

    enabled: bool | None = Field(None, description=f"whether tables are maintained automatically; {_AS_FILE}")
    namespaces: Text | None = Field(None, description=_NAMES)
    tables: Text | None = Field(None, description=_NAMES)
    detect_interval_seconds: Annotated[int, Field(ge=1, le=7 * 86_400)] | None = Field(
        None, description=f"between two listings; {_AS_FILE}"
    )


class ScopeModel(BaseModel):
    """Which tables of a catalog are maintained, and how often it is listed."""

    enabled: bool
    namespaces: str = Field(description="which are maintained; blank: all")
    tables: str = Field(description="which are maintained; blank: all")
    detect_interval_seconds: int


class CatalogModel(ScopeModel):
    """A catalog with what holds now, and as detection knows it."""

    name: str
    configured: bool = Field(description="false: the configuration has it no more")
    pool: str | None
    configuration: ScopeModel | None = Field(description="as the configuration says; null: nothing else was set")
    detected_at: datetime | None = Field(description="when it last answered")
    failures: int = Field(description="in a row")
    error: str | None


@router.get("/catalogs", summary="Catalogs")
def catalogs(caller: Annotated[Caller, needs(Action.SYSTEM_READ)]) -> list[CatalogModel]:
    """Return current and former catalogs, whether they answer, and what is set for them."""
    rows = {row.name: row for row in caller.runtime.store.catalogs.list()}
    names = sorted({*caller.runtime.scopes, *rows})
    scopes = caller.runtime.scopes
    return [_model(name, scopes.get(name), rows.get(name)) for name in names if touches(caller.visibility, name)]


@router.put("/catalogs/{catalog:segment}", summary="Set a catalog", responses=documented(404))
def put(catalog: str, body: CatalogRequest, caller: Annotated[Caller, needs(Action.CATALOGS_CHANGE)]) -> CatalogModel:
    """Replace what is set for the catalog in the place of its configuration; processes follow within seconds."""
    caller.require((catalog,), f"catalog {catalog}")
    runtime = caller.runtime
    scope = runtime.scopes.get(catalog)
    if scope is None:
        raise Problem(404, f"the configuration has no catalog {catalog}")
    given = CatalogSettings(body.enabled, body.namespaces, body.tables, body.detect_interval_seconds)
    set_catalog(runtime, catalog, given)
    caller.audit(f"catalog {catalog}", (catalog,), **{k: v for k, v in asdict(given).items() if v is not None})
    row = next((row for row in runtime.store.catalogs.list() if row.name == catalog), None)
    return _model(catalog, with_settings(scope.configured or scope, None if given == CatalogSettings() else given), row)


def _model(name: str, scope: Scope | None, row: CatalogRow | None) -> CatalogModel:
    return CatalogModel(
        **_scope_model(scope or Scope()).model_dump(),
        name=name,
        configured=scope is not None,
        pool=scope.pool if scope else None,
        configuration=_scope_model(scope.configured) if scope and scope.configured else None,
        detected_at=row.detected_at if row else None,
        failures=row.failures if row else 0,
        error=row.error if row else None,
    )


def _scope_model(scope: Scope) -> ScopeModel:
    interval = scope.interval // timedelta(seconds=1)
    return ScopeModel(
        enabled=scope.enabled, namespaces=scope.namespaces, tables=scope.tables, detect_interval_seconds=interval
    )
