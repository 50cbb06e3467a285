"""Authenticate, authorise and audit the caller of a route."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Request

from icewright.app.web.app_state import AppState, app_state, response_cache_of
from icewright.app.web.identity import client_address, principal_of
from icewright.app.web.middlewares import PrincipalSlots
from icewright.app.web.problems import Problem, documented
from icewright.app.web.routing import (
    LONGEST,  # importing registers the convertor that routes use
    SingleThreadRoute,
    in_thread,
)
from icewright.core.errors import IcewrightError, UsageError
from icewright.core.permissions import PERMISSIONS, Action, Place, Principal, VisibilityFilter, place_of
from icewright.core.table import TableRef
from icewright.flow.runtime import Runtime
from icewright.ports import MANUAL, JobRow, TableRow
from icewright.ports.access import AuditRow

T = TypeVar("T")


@dataclass(frozen=True)
class Caller:
    """An authenticated caller with a permission in at least one place."""

    principal: Principal
    action: Action
    request: Request
    app: AppState

    @property
    def runtime(self) -> Runtime:
        """Return the runtime, whose jobs are attributed to the caller."""
        runtime = self.app.runtime
        return replace(runtime, trigger=replace(runtime.trigger, kind=MANUAL, actor=self.principal.name))

    @property
    def visibility(self) -> VisibilityFilter:
        """Return the filter for the tables that the caller may read."""
        return self.principal.visibility(self.action)

    def cached_briefly(self, *key: Hashable, work: Callable[[], T]) -> T:
        """Return `work()`, or its result for a caller of the same visibility within the last second."""
        return response_cache_of(self.request).get((*key, self.visibility), work, allow_stale=True)

    def cached_until_change(self, *key: Hashable, work: Callable[[], T]) -> T:
        """Return `work()`, or its result for a caller of the same visibility since the store last changed."""
        return response_cache_of(self.request).get((*key, self.visibility), work)

    def is_current(self) -> bool:
        """Return whether the caller still is who it was: its token may be revoked, and its session have ended."""
        try:
            return principal_of(self.request, self.app) == self.principal
        except (Problem, IcewrightError):
            return False

    @property
    def slot_key(self) -> str:
        """Return the name by which the caller's open streams and heavy requests are counted."""
        return f"{self.principal.via} {self.principal.name}"

    def heavy(self) -> AbstractContextManager[None]:
        """Return a context that holds a slot for a heavy request. Raises `Problem` 429 or 503 when none is free."""
        slots: PrincipalSlots = self.request.app.state.heavy_slots
        return slots.hold(self.slot_key)

    def require(self, place: Place, target: str, action: Action | None = None) -> None:
        """Raise an audited 403 `Problem` unless the caller has the permission in the place."""
        needed = action or self.action
        if not self.principal.may(needed, place):
            raise self.refused(target, place, needed)

    def refused(self, target: str, place: Place, action: Action) -> Problem:
        """Record a refusal in the audit log and return it as a problem."""
        self._audit(action, target, place, refused=True)
        roles = " or ".join(sorted(PERMISSIONS[action].roles))
        return Problem(403, f"{action} on {target or 'everything'} is for {roles} of it", action=str(action))

    def audit(self, target: str, place: Place, action: Action | None = None, **details: Any) -> None:
        """Record a change by the caller in the audit log."""
        self._audit(action or self.action, target, place, refused=False, **details)

    def audit_tables(self, refs: Sequence[TableRef], action: Action | None = None, **details: Any) -> None:
        """Record a change of many tables, an entry for each: whoever may see a table sees what was done to it."""
        whose = action or self.action
        rows = [self._audit_row(whose, str(ref), place_of(ref), refused=False, **details) for ref in refs]
        self.app.runtime.store.audit.append(*rows)

    def require_catalog(self, catalog: str) -> None:
        """Raise `Problem` 404 for a catalog that the configuration does not name."""
        if catalog not in self.runtime.catalogs:
            raise Problem(404, f"there is no catalog {catalog}")

    def table(self, name: str, *actions: Action) -> TableRow:
        """Return a visible table after checking the permissions, by default the caller's action. Raises `Problem`."""
        try:
            ref = TableRef.parse(name)
        except UsageError as error:
            raise Problem(404, str(error)) from error
        row = response_cache_of(self.request).get(("table", ref), lambda: self.app.runtime.store.tables.get(ref))
        if row is None or not self.principal.may(Action.TABLES_READ, place_of(ref)):
            if row is not None:
                self._audit(Action.TABLES_READ, str(ref), place_of(ref), refused=True)
            raise Problem(404, f"there is no table {ref}, or it is not yours to see")
        for action in actions or (self.action,):
            self.require(place_of(ref), str(ref), action)
        return row

    def job(self, job_id: str) -> JobRow:
        """Return a job of a visible table after checking the caller's action. Raises `Problem`."""
        job = self.runtime.store.jobs.get(job_id)
        if job is None or not self.principal.may(Action.JOBS_READ, place_of(job.ref)):
            if job is not None:
                self._audit(Action.JOBS_READ, job.job_id, place_of(job.ref), refused=True)
            raise Problem(404, "there is no such job, more than one begins so, or it is not yours to see")
        self.require(place_of(job.ref), f"job {job.job_id} of {job.ref}")
        return job

    def _audit(self, action: Action, target: str, place: Place, *, refused: bool, **details: Any) -> None:
        self.app.runtime.store.audit.append(self._audit_row(action, target, place, refused=refused, **details))

    def _audit_row(self, action: Action, target: str, place: Place, *, refused: bool, **details: Any) -> AuditRow:
        request_id = self.request.scope.get("state", {}).get("request_id")
        return AuditRow(
            at=self.app.runtime.clock.now(),
            actor=self.principal.name,
            via=str(self.principal.via),
            action=str(action),
            target=target[:LONGEST],
            place=place or None,
            refused=refused,
            source=client_address(self.request),
            details={**details, "request_id": request_id},
        )


def _caller(action: Action | None) -> Callable[..., Coroutine[Any, Any, Caller]]:
    @in_thread
    def authenticate(request: Request, app: Annotated[AppState, Depends(app_state)]) -> Caller:
        principal = principal_of(request, app)
        caller = Caller(principal, action or Action.TABLES_READ, request, app)
        if action is not None and not principal.may_somewhere(action):
            target = ", ".join(map(str, request.path_params.values()))
            raise caller.refused(target, (), action)
        return caller

    return authenticate


_CALLERS = {action: _caller(action) for action in Action}
any_caller = _caller(None)  # with any or no permission
_PERMISSIONS: Mapping[Any, str] = {any_caller: "anybody"} | {call: str(action) for action, call in _CALLERS.items()}


def needs(action: Action) -> Any:  # noqa: ANN401 - a dependency
    """Return the dependency that yields a caller with the permission in at least one place."""
    return Depends(_CALLERS[action])


class _PermissionRoute(SingleThreadRoute):
    """A route whose OpenAPI names the permission that its caller needs."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        for dependency in self.dependant.dependencies:
            if dependency.call in _PERMISSIONS:
                self.openapi_extra = {"x-permission": _PERMISSIONS[dependency.call]}


def api_router(tag: str, prefix: str = "") -> APIRouter:
    """Return a router for routes of the API, with the errors that each of them may answer."""
    errors = documented(400, 401, 403, 408, 413, 422, 429, 503)
    return APIRouter(prefix=prefix, tags=[tag], responses=errors, route_class=_PermissionRoute)


def allowed_actions(principal: Principal) -> Sequence[str]:
    """Return the actions that a principal has in at least one place."""
    return [str(action) for action in Action if principal.may_somewhere(action)]
