"""What every route of the API does first: who asks, may they, and it is written down."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request

from icewright.app.web.app_state import AppState, app_state
from icewright.app.web.identity import principal_of, source_of
from icewright.app.web.problems import Problem
from icewright.app.web.response_cache import response_cache_of
from icewright.app.web.segments import LONGEST  # whose convertor the routes are declared with
from icewright.app.web.threads import in_thread
from icewright.core.errors import UsageError
from icewright.core.permissions import PERMISSIONS, Action, Place, Principal, VisibilityFilter, place_of
from icewright.core.table import TableRef
from icewright.flow.runtime import Runtime
from icewright.ports import MANUAL, JobRow, TableRow
from icewright.ports.access import AuditRow

T = TypeVar("T")


@dataclass(frozen=True)
class Caller:
    """Somebody who may do a kind of thing in some place at least."""

    principal: Principal
    action: Action
    request: Request
    opened: AppState

    @property
    def runtime(self) -> Runtime:
        """Ports and settings; what it starts is by whoever asks."""
        runtime = self.opened.runtime
        return replace(runtime, trigger=replace(runtime.trigger, kind=MANUAL, actor=self.principal.name))

    @property
    def sight(self) -> VisibilityFilter:
        """Return the visibility filter of what the caller may read."""
        return self.principal.sight(self.action)

    def recently(self, *key: Hashable, work: Callable[[], T]) -> T:
        """Return what anybody with the same sight was answered within the last second, or is worked out now."""
        return response_cache_of(self.request).get((*key, self.sight), work, lately=True)

    def unchanged(self, *key: Hashable, work: Callable[[], T]) -> T:
        """What follows from the store and the configuration: once for all of the same sight until the store changes."""
        return response_cache_of(self.request).get((*key, self.sight), work)

    def must(self, place: Place, target: str, action: Action | None = None) -> None:
        """Refuse, and write it down, when they may not do so there."""
        wanted = action or self.action
        if not self.principal.may(wanted, place):
            raise self.refused(target, place, wanted)

    def refused(self, target: str, place: Place, action: Action) -> Problem:
        """Record a refusal in the audit log and return it as a problem."""
        self._audit(action, target, place, refused=True)
        roles = " or ".join(sorted(PERMISSIONS[action].roles))
        return Problem(403, f"{action} on {target or 'everything'} is for {roles} of it", action=str(action))

    def done(self, target: str, place: Place, action: Action | None = None, **details: Any) -> None:  # noqa: ANN401
        """Record a change by the caller in the audit log."""
        self._audit(action or self.action, target, place, refused=False, **details)

    def table(self, name: str, *actions: Action) -> TableRow:
        """Return a table that they see, and may do these to; without any, what they asked to do."""
        try:
            ref = TableRef.parse(name)
        except UsageError as error:
            raise Problem(404, str(error)) from error
        row = response_cache_of(self.request).get(("table", ref), lambda: self.opened.runtime.store.tables.get(ref))
        if row is None or not self.principal.may(Action.TABLES_READ, place_of(ref)):
            if row is not None:
                self._audit(Action.TABLES_READ, str(ref), place_of(ref), refused=True)
            raise Problem(404, f"there is no table {ref}, or it is not yours to see")
        for action in actions or (self.action,):
            self.must(place_of(ref), str(ref), action)
        return row

    def job(self, job_id: str) -> JobRow:
        """Return a job of a table that they see, and may do so to."""
        found = self.runtime.store.jobs.get(job_id) if job_id else None
        if found is None or not self.principal.may(Action.JOBS_READ, place_of(found.ref)):
            if found is not None:
                self._audit(Action.JOBS_READ, found.job_id, place_of(found.ref), refused=True)
            raise Problem(404, "there is no such job, more than one begins so, or it is not yours to see")
        self.must(place_of(found.ref), f"job {found.job_id} of {found.ref}")
        return found

    def _audit(self, action: Action, target: str, place: Place, *, refused: bool, **details: Any) -> None:  # noqa: ANN401
        request_id = self.request.scope.get("state", {}).get("request_id")
        self.opened.runtime.store.audit.append(
            AuditRow(
                at=self.opened.runtime.clock.now(),
                actor=self.principal.name,
                via=str(self.principal.via),
                action=str(action),
                target=target[:LONGEST],
                place=place or None,
                refused=refused,
                source=source_of(self.request),
                details={**details, "request_id": request_id},
            )
        )


def _caller(action: Action | None) -> Callable[..., Coroutine[Any, Any, Caller]]:
    @in_thread
    def known(request: Request, to: Annotated[AppState, Depends(app_state)]) -> Caller:
        principal = principal_of(request, to)
        caller = Caller(principal, action or Action.TABLES_READ, request, to)
        if action is not None and not principal.may_somewhere(action):
            raise caller.refused(_target(request), (), action)
        return caller

    return known


def _target(request: Request) -> str:
    return ", ".join(str(value) for value in request.path_params.values())


_CALLERS = {action: _caller(action) for action in Action}
anybody = _caller(None)  # whoever is known


def needs(action: Action) -> Any:  # noqa: ANN401 - a dependency
    """Return the caller of a route, who may do so in some place at least."""
    return Depends(_CALLERS[action])


def said(action: Action) -> dict[str, Any]:
    """Return the route's permission in the OpenAPI document."""
    return {"x-permission": str(action)}


def allowed(principal: Principal) -> Sequence[str]:
    """Return what they may do somewhere."""
    return [str(action) for action in Action if principal.may_somewhere(action)]
