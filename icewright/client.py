"""A client of the service's API, for programs and for the command line: plain documents in, plain documents out."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Self, cast
from urllib.parse import quote

import httpx2

from icewright.core.errors import IcewrightError, StorageUnavailable, UsageError
from icewright.core.runs import TRANSITIONS, JobState

Document = dict[str, Any]
Order = Literal["asc", "desc"]
_USAGE = (400, 404, 409, 413, 422)


class Refusal(IcewrightError):
    """The service does not let who asks do this."""


class Client:
    """One service. Closed by `close`, or by the end of a `with` block."""

    def __init__(self, server: str, token: str | None = None, *, timeout: float = 60, **more: Any) -> None:  # noqa: ANN401
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self._http = httpx2.Client(base_url=f"{server.rstrip('/')}/api/v1", headers=headers, timeout=timeout, **more)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the connection."""
        self._http.close()

    # -- what there is

    def me(self) -> Document:
        """Return who the caller is and may do."""
        return self._get("/me")

    def overview(self) -> Document:
        """Return the counts and sums of the overview."""
        return self._get("/overview")

    def tables(self, *, sort: str = "name", order: Order = "asc", **filters: Any) -> Iterator[Document]:  # noqa: ANN401
        """Return all tables, page by page."""
        return self._pages("/tables", {"sort": sort, "order": order, **filters})

    def table(self, name: str) -> Document:
        """Return one table: health, facts, verdicts, pins."""
        return self._get(f"/tables/{_segment(name)}")

    def knobs(self, name: str) -> Document:
        """Return every knob of a table, and who set it."""
        return self._get(f"/tables/{_segment(name)}/knobs")

    def snapshots(self, name: str) -> Document:
        """Return snapshots and refs of a table."""
        return self._get(f"/tables/{_segment(name)}/snapshots")

    def plan(self, catalog: str | None = None) -> Document:
        """Return what would start now, and what would wait."""
        return self._get("/plan", catalog=catalog, limit=500)

    def queue(self) -> Document:
        """Return what runs, and what waits."""
        return self._get("/queue")

    def jobs(self, table: str | None = None, *, limit: int = 50, **filters: Any) -> Sequence[Document]:  # noqa: ANN401
        """Return the newest jobs, of one table or of all."""
        found = self._pages("/jobs", {"table": table, **filters}, min(limit, 500))
        return [job for job, _ in zip(found, range(limit), strict=False)]

    def job(self, job_id: str) -> Document:
        """Return one job with its runs."""
        return self._get(f"/jobs/{_segment(job_id)}")

    def files(self, job_id: str) -> Iterator[Document]:
        """Return what a job deleted, found or kept."""
        return self._pages(f"/jobs/{_segment(job_id)}/files", {})

    def deletions(self, **filters: Any) -> Iterator[Document]:  # noqa: ANN401
        """Return files that are still to be deleted, by job and operation."""
        return self._pages("/deletions", {name: value for name, value in filters.items() if value is not None})

    def policies(self) -> Document:
        """Return the policy rules and the guardrails."""
        return self._get("/policies")

    # -- what changes

    def start(
        self,
        table: str,
        operations: Sequence[str],
        knobs: Mapping[str, Any] | None = None,
        *,
        dry_run: bool = False,
        force: bool = False,
        key: str | None = None,
    ) -> Document:
        """Start operations on a table; the same `key` starts the same job once."""
        body = {"operations": list(operations), "set": dict(knobs or {}), "dry_run": dry_run, "force": force}
        headers = {"Idempotency-Key": key} if key else {}
        return self._document("POST", f"/tables/{_segment(table)}/jobs", json=body, headers=headers)

    def follow(self, job_id: str, every: float = 1.0) -> Document:
        """Wait until a job has ended."""
        while True:
            found = self.job(job_id)
            if not TRANSITIONS[JobState(found["state"])]:
                return found
            time.sleep(every)

    def cancel(self, job_id: str) -> Document:
        """Ask a job to stop."""
        return self._document("POST", f"/jobs/{_segment(job_id)}/cancel")

    def undo(self, job_id: str, *, dry_run: bool = False) -> Document:
        """Take a job back, or say what that would bring back."""
        return self._document("POST", f"/jobs/{_segment(job_id)}/undo", json={"dry_run": dry_run})

    def give_up(self, job_id: str) -> Document:
        """Leave the files of a job that wait to be deleted where they are."""
        return self._document("POST", f"/jobs/{_segment(job_id)}/give-up")

    def pause(self, table: str, reason: str) -> None:
        """Keep a table from being maintained by itself."""
        self._ask("POST", f"/tables/{_segment(table)}/pause", json={"reason": reason})

    def resume(self, table: str) -> None:
        """Let a paused table be maintained again."""
        self._ask("POST", f"/tables/{_segment(table)}/resume")

    def rule(self, scope: str) -> Document | None:
        """Return the newest version of a stored rule; None when there is none."""
        found = self._get(f"/policies/{_segment(scope)}/versions")["items"]
        return cast(Document, found[0]) if found else None

    def set_rule(self, scope: str, settings: Mapping[str, Any], version: int | None = None) -> Document:
        """Make this the rule of the scope; `version` is the newest that was seen."""
        return self._document("PUT", f"/policies/{_segment(scope)}", json={"set": dict(settings), "version": version})

    def delete_rule(self, scope: str) -> None:
        """Take the stored rule of a scope back."""
        self._ask("DELETE", f"/policies/{_segment(scope)}")

    # -- how

    def _get(self, path: str, **params: Any) -> Document:  # noqa: ANN401 - query parameters
        return self._document("GET", path, params={k: v for k, v in params.items() if v is not None})

    def _pages(self, path: str, params: Mapping[str, Any], limit: int = 200) -> Iterator[Document]:
        cursor: str | None = None
        while True:
            page = self._get(path, **params, limit=limit, cursor=cursor)
            yield from page["items"]
            cursor = page["next"]
            if cursor is None:
                return

    def _document(self, method: str, path: str, **more: Any) -> Document:  # noqa: ANN401 - see httpx
        return cast(Document, self._ask(method, path, **more).json())

    def _ask(self, method: str, path: str, **more: Any) -> httpx2.Response:  # noqa: ANN401 - see httpx
        try:
            answer = self._http.request(method, path, **more)
        except httpx2.HTTPError as error:
            raise StorageUnavailable(f"{self._http.base_url}: {type(error).__name__}: {error}") from error
        if answer.is_success:
            return answer
        raise _error(answer)


def _segment(name: str) -> str:
    return quote(name, safe="")


def _error(answer: httpx2.Response) -> IcewrightError:
    try:
        said = answer.json()
        detail = "; ".join([said["detail"], *map(str, said.get("errors", []))])
    except (ValueError, KeyError, TypeError):
        detail = f"the server answered {answer.status_code}, and nothing that is of this API"
    if answer.status_code in (401, 403):
        return Refusal(f"{detail} (the token is taken from ICEWRIGHT_TOKEN)" if answer.status_code == 401 else detail)  # noqa: PLR2004
    return UsageError(detail) if answer.status_code in _USAGE else StorageUnavailable(detail)
