"""Routes of the limits: those that hold, where each comes from, and their change without a restart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Annotated, Any

from pydantic import BaseModel, Field

from icewright.app.documents import limits_document
from icewright.app.web.api.models.requests import RequestBody, Text
from icewright.app.web.callers import Caller, api_router, needs
from icewright.app.web.problems import Problem, documented
from icewright.core.limit_settings import SHARES, parse_limits
from icewright.core.permissions import Action, touches
from icewright.core.table import split_name
from icewright.flow.queue import plan_now

router = api_router("system")
_TARGET = "the limits"
_NAMED = "by key paths as in the configuration, such as `limits.global`"
_Value = int | float | Text | None


class LimitModel(BaseModel):
    """One limit: what holds, and what the configuration says."""

    name: str = Field(description="its key path in the configuration")
    value: int | float | None = Field(description="null: none")
    configured: int | float | None = Field(description="that of the configuration")
    stored: bool = Field(description="whether it is set in the place of the configuration's")
    help: str
    expects: str


class LimitsModel(BaseModel):
    """Limits on what runs at the same time."""

    total: int
    per_worker: int = Field(description="a process takes it when it starts, from the configuration alone")
    per_operation: dict[str, int]
    max_jobs_per_detection: int
    max_wait_hours: dict[str, int] = Field(description="by importance; what is due for longer goes first")
    catalogs: dict[str, dict[str, Any]]
    items: list[LimitModel] = Field(description="all that may be set without a restart")
    version: int = Field(description="of what is set; 0: nothing ever was")
    author: str | None
    at: datetime | None


class LimitsRequest(RequestBody):
    """Limits to set in the place of the configuration's; what is not named is taken back."""

    set: dict[Text, _Value] = Field(description=f"{_NAMED}; null: no limit")
    version: Annotated[int, Field(ge=0)] | None = Field(None, description="newest version known; another is a conflict")


class LimitChange(BaseModel):
    """A limit that would change."""

    name: str
    before: int | float | None
    after: int | float | None


class LimitsPreview(BaseModel):
    """What a change of limits would do."""

    changed: list[LimitChange]
    starts: int = Field(description="jobs that would start now, as the limits are")
    starts_after: int = Field(description="jobs that would start now, with the change")


@router.get("/limits", summary="Limits")
def limits(caller: Annotated[Caller, needs(Action.SYSTEM_READ)]) -> LimitsModel:
    """Return the limits of concurrent jobs and of daily GB-hours, and what is set in the place of the configuration."""
    now, document = caller.runtime.limits(), limits_document(caller.runtime.limits)
    document["items"] = [item for item in document["items"] if _is_visible(caller, item["name"])]
    return LimitsModel(
        total=now.total,
        per_worker=now.per_worker,
        per_operation={str(op): most for op, most in now.per_operation.items()},
        max_jobs_per_detection=now.max_jobs,
        max_wait_hours={importance: wait // timedelta(hours=1) for importance, wait in now.max_wait.items()},
        catalogs={
            name: {"max_concurrent": c.max_concurrent, "gb_hours_per_day": c.gb_hours_per_day}
            for name, c in now.catalogs.items()
            if touches(caller.visibility, name)
        },
        **document,
    )


@router.put("/limits", summary="Set limits", responses=documented(409))
def put(body: LimitsRequest, caller: Annotated[Caller, needs(Action.LIMITS_CHANGE)]) -> LimitsModel:
    """Replace what is set in the place of the configuration's limits; all processes follow at once."""
    settings = _settings(caller, body)
    runtime, stored = caller.runtime, caller.runtime.limits.stored()
    expected = body.version if body.version is not None else stored.version if stored else 0
    changed = runtime.limits.changed_by(settings)
    version = runtime.store.limits.put(settings, caller.principal.name, runtime.clock.now(), expected)
    if version is None:
        raise Problem(409, "the limits were changed meanwhile; read them again")
    caller.audit(_TARGET, (), version=version, changed={name: list(values) for name, values in changed.items()})
    return limits(replace(caller, action=Action.SYSTEM_READ))


@router.post("/limits/preview", summary="What a change of limits would do")
def preview(body: LimitsRequest, caller: Annotated[Caller, needs(Action.LIMITS_CHANGE)]) -> LimitsPreview:
    """Return the limits that would change, and how many jobs would start now; nothing is changed."""
    settings, runtime = _settings(caller, body), caller.runtime
    catalogs = sorted(runtime.scopes)
    with caller.heavy():
        starts = len(plan_now(runtime, catalogs).jobs)
        after = len(plan_now(replace(runtime, limits=runtime.limits.with_settings(settings)), catalogs).jobs)
    changed = runtime.limits.changed_by(settings)
    changes = [LimitChange(name=name, before=before, after=new) for name, (before, new) in changed.items()]
    return LimitsPreview(changed=changes, starts=starts, starts_after=after)


def _settings(caller: Caller, body: LimitsRequest) -> Mapping[str, Any]:
    caller.require((), _TARGET)
    return parse_limits("set", body.set, caller.runtime.limits.configured)


def _is_visible(caller: Caller, name: str) -> bool:
    """Return whether a limit is everybody's, or that of a catalog of which the caller may see something."""
    section, _, key = name.partition(".")
    catalog = (split_name(name.removeprefix(SHARES)) or ("",))[0] if name.startswith(SHARES) else ""
    catalog = catalog or (key.rpartition(".")[0] if section == "catalogs" else "")
    return not catalog or touches(caller.visibility, catalog)
