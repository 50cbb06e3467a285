"""Answer every error as problem details (RFC 9457), without stack traces."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from icewright.core.errors import (
    BadEvent,
    CatalogUnavailable,
    CommitConflict,
    ConfigError,
    RetryableError,
    TableNotFound,
    TerminalError,
    UnknownOutcome,
    UsageError,
)

MEDIA_TYPE = "application/problem+json"
AGAIN_SECONDS = 5  # Retry-After for an unavailable store or catalog
_log = logging.getLogger(__name__)


class Problem(Exception):
    """An error response of a route; `more` holds extension members."""

    def __init__(self, status: int, detail: str, *, headers: Mapping[str, str] | None = None, **more: object) -> None:
        super().__init__(detail)
        self.status, self.detail, self.headers, self.more = status, detail, headers, more

    def response(self, scope: Scope) -> Response:
        """Return the problem as a response to the request of this scope."""
        title = HTTPStatus(self.status).phrase
        content = {"type": "about:blank", "title": title, "status": self.status, "detail": self.detail, **self.more}
        if request_id := scope.get("state", {}).get("request_id"):
            content["request_id"] = request_id
        return JSONResponse(content, self.status, dict(self.headers or {}), MEDIA_TYPE)


def install(app: FastAPI) -> None:
    """Register handlers that answer every error of a route as a problem."""

    def handle(error: type[Exception]) -> None:
        app.add_exception_handler(error, _handled)

    for error in (Problem, HTTPException, RequestValidationError, TerminalError, RetryableError, UnknownOutcome):
        handle(error)


async def _handled(request: Request, error: Exception) -> Response:
    return _problem(error).response(request.scope)


def _problem(error: Exception) -> Problem:
    match error:
        case Problem():
            return error
        case HTTPException(status_code=404):
            return Problem(404, "there is nothing at this address: a part of it is missing or misspelt")
        case HTTPException():
            return Problem(error.status_code, error.detail, headers=error.headers)
        case RequestValidationError():
            return Problem(422, "the request is not as it must be", errors=list(map(_fault, error.errors())))
        case BadEvent():
            return Problem(422, "an event cannot be parsed; no event was accepted", errors=list(error.faults))
        case ConfigError():
            return Problem(422, "the settings have faults", errors=list(error.faults))
        case UsageError():
            return Problem(422, str(error))
        case TableNotFound():
            return Problem(404, str(error))
        case TerminalError() | CommitConflict():
            return Problem(409, str(error))
    _log.warning("%s: %s", type(error).__name__, error)  # the response hides names of hosts and databases
    headers = {"Retry-After": str(AGAIN_SECONDS)}
    service = "the catalog" if isinstance(error, CatalogUnavailable) else "the state store or a storage"
    return Problem(503, f"{service} does not answer; try again", headers=headers)


def _fault(item: Mapping[str, Any]) -> str:
    """Return a fault of a request, with its place."""
    if item["type"] == "json_invalid":
        return f"body: not JSON from character {item['loc'][-1]} on: {item['ctx']['error']}"
    return f"{'.'.join(map(str, item['loc']))}: {item['msg']}"


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI entries of the problems that a route may answer."""
    schema = {"type": "object", "required": ["type", "title", "status", "detail"]}
    return {
        status: {"description": HTTPStatus(status).phrase, "content": {MEDIA_TYPE: {"schema": schema}}}
        for status in statuses
    }
