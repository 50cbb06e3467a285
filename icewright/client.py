"""HTTP client of the REST API, used by programs and by the command line; `client_types` has its documents."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self, cast
from urllib.parse import quote

import httpx2

from icewright import __version__
from icewright.core.errors import IcewrightError, StorageUnavailable, UsageError
from icewright.core.runs import TRANSITIONS, JobState

if TYPE_CHECKING:
    from icewright.client_types import (
        Bulk,
        Copy,
        File,
        Fleet,
        GivenUp,
        Job,
        JobDetail,
        Knobs,
        Me,
        Overview,
        Plan,
        Points,
        Policies,
        ProcessModel,
        Queue,
        Registered,
        Repair,
        Restore,
        Rule,
        Snapshots,
        Started,
        Table,
        TableDetail,
        Undone,
        VacuumAnswer,
        WaitingFiles,
    )

Document = dict[str, Any]
Order = Literal["asc", "desc"]
Filter = str | Sequence[str] | None
_USAGE = (400, 404, 405, 409, 413, 422)
_USERINFO = re.compile("(?<=://)[^/]*@")


class Refusal(IcewrightError):
    """The service refuses the caller (401 or 403)."""


class UnknownAnswer(IcewrightError):
    """The service is of a release whose answers this one does not know, or is no Icewright service."""


class _Answer(dict[str, Any]):
    """An object of the service's JSON; to ask it for a field that it lacks raises `UnknownAnswer`."""

    def __missing__(self, name: str) -> NoReturn:
        raise UnknownAnswer(
            f"the service's answer lacks {name}: the service is of another release than {__version__}, which asks, or "
            "it is no Icewright service"
        )


class Client:
    """A client of one service; close it with `close` or a `with` block."""

    def __init__(self, server: str, token: str | None = None, *, timeout: float = 60, **options: Any) -> None:
        token = (token or "").strip()  # what is read from a file ends with a newline
        if not (token.isascii() and token.isprintable()):
            raise UsageError("the token has characters that no token has: copy it again")
        headers = {"authorization": f"Bearer {token}"} if token else {}
        address = server.strip().rstrip("/")
        self._server = _USERINFO.sub("***@", address)  # as messages name it
        fault = UsageError(f"{self._server} is no address of a service: write one such as http://127.0.0.1:8765")
        if not address.startswith(("http://", "https://")):
            raise fault
        try:
            self._http = httpx2.Client(base_url=f"{address}/api/v1", headers=headers, timeout=timeout, **options)
        except httpx2.InvalidURL:
            raise fault from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections to the service."""
        self._http.close()

    # -- reads

    def me(self) -> Me:
        """Return the caller's name, grants and actions."""
        return self._get("/me")

    def overview(self) -> Overview:
        """Return the counts and sums of the overview."""
        return self._get("/overview")

    def tables(
        self,
        *,
        catalog: str | None = None,
        namespace: str | None = None,
        search: str | None = None,
        state: Filter = None,
        due: str | None = None,
        health_below: int | None = None,
        sort: str = "name",
        order: Order = "asc",
    ) -> Iterator[Table]:
        """Yield all tables that match the filters, page by page."""
        of = {"catalog": catalog, "namespace": namespace, "search": search, "state": state, "due": due}
        return self._pages("/tables", {**of, "health_below": health_below, "sort": sort, "order": order})

    def table(self, name: str) -> TableDetail:
        """Return a table with health, facts, verdicts and pins."""
        return self._get(f"/tables/{_segment(name)}")

    def knobs(self, name: str) -> Knobs:
        """Return every knob of a table with the level that set it."""
        return self._get(f"/tables/{_segment(name)}/knobs")

    def snapshots(self, name: str) -> Snapshots:
        """Return snapshots and refs of a table."""
        return self._get(f"/tables/{_segment(name)}/snapshots")

    def plan(self, catalog: str | None = None) -> Plan:
        """Return jobs that would start now, and deferred operations."""
        return self._get("/plan", catalog=catalog, limit=500)

    def queue(self) -> Queue:
        """Return open jobs, and due operations without a job."""
        return self._get("/queue")

    def jobs(
        self,
        table: str | None = None,
        *,
        catalog: str | None = None,
        state: Filter = None,
        operation: str | None = None,
        trigger: str | None = None,
        search: str | None = None,
        since: datetime | None = None,
        limit: int = 50,
    ) -> Sequence[Job]:
        """Return the newest jobs that match the filters; those created since a time, at most `limit`."""
        of = {"table": table, "catalog": catalog, "state": state, "operation": operation, "trigger": trigger}
        since_ = None if since is None else since.isoformat()
        pages = self._pages("/jobs", {**of, "search": search, "since": since_}, min(limit, 500))
        return [job for job, _ in zip(pages, range(limit), strict=False)]

    def job(self, job_id: str) -> JobDetail:
        """Return one job with its runs."""
        return self._get(f"/jobs/{_segment(job_id)}")

    def files(self, job_id: str) -> Iterator[File]:
        """Yield the files of a job in the deletion ledger."""
        return self._pages(f"/jobs/{_segment(job_id)}/files", {})

    def deletions(self, *, table: str | None = None, catalog: str | None = None) -> Iterator[WaitingFiles]:
        """Yield planned deletions by job and operation."""
        return self._pages("/deletions", {"table": table, "catalog": catalog})

    def policies(self) -> Policies:
        """Return the policy rules and the guardrails."""
        return self._get("/policies")

    # -- changes

    def start(
        self,
        table: str,
        operations: Sequence[str],
        knobs: Mapping[str, Any] | None = None,
        *,
        dry_run: bool = False,
        force: bool = False,
        key: str | None = None,
    ) -> Started:
        """Start operations on a table; the same `key` starts the same job once."""
        body = {"operations": list(operations), "set": dict(knobs or {}), "dry_run": dry_run, "force": force}
        headers = {"Idempotency-Key": key} if key else {}
        return self._document("POST", f"/tables/{_segment(table)}/jobs", json=body, headers=headers)

    def follow(self, job_id: str, every: float = 1.0) -> JobDetail:
        """Poll a job every `every` seconds until it ends, and return it."""
        while True:
            job = self.job(job_id)
            if not TRANSITIONS[JobState(job["state"])]:
                return job
            time.sleep(every)

    def cancel(self, job_id: str) -> Job:
        """Request cancellation of a job, and return it."""
        return self._document("POST", f"/jobs/{_segment(job_id)}/cancel")

    def undo(self, job_id: str, *, dry_run: bool = False) -> Undone:
        """Undo a job, or report what an undo would restore."""
        return self._document("POST", f"/jobs/{_segment(job_id)}/undo", json={"dry_run": dry_run})

    def points(self, table: str, *, costs: bool = False) -> Points:
        """Return the recovery points of a table, and what they cost where asked for."""
        return self._get(f"/tables/{_segment(table)}/points", costs=costs)

    def restore(self, table: str, to: str, *, dry_run: bool = False, expected: str | None = None) -> Restore:
        """Queue a restore of a table, or report what it would change; `expected` is the current snapshot."""
        body = {"to": to, "dry_run": dry_run, "expected_snapshot_id": expected}
        return self._document("POST", f"/tables/{_segment(table)}/restore", json=body)

    def repair(
        self, table: str, *, drop_lost: bool = False, approved_rows: int = 0, dry_run: bool = False
    ) -> Repair | Started:
        """Queue a repair of a table, or report what it would do; main loses `approved_rows` rows at most."""
        body = {"drop_lost": drop_lost, "approved_rows": approved_rows, "dry_run": dry_run}
        return self._document("POST", f"/tables/{_segment(table)}/repair", json=body)

    def erase(self, table: str, where: str, *, dry_run: bool = False) -> Started:
        """Queue an erasure of rows, or a search for them; `result` returns what the job found."""
        return self._document("POST", f"/tables/{_segment(table)}/erase", json={"where": where, "dry_run": dry_run})

    def layouts(self, table: str, filters: Sequence[str] = (), *, dry_run: bool = False) -> Started:
        """Queue trials of layouts for filters, or for those of scan reports; `result` returns what the job found."""
        body = {"filters": list(filters), "dry_run": dry_run}
        return self._document("POST", f"/tables/{_segment(table)}/layouts", json=body)

    def copy(self, table: str, to: str, *, dry_run: bool = False) -> Copy | Started:
        """Queue a copy of a table to another place, or report what would be copied."""
        return self._document("POST", f"/tables/{_segment(table)}/copy", json={"to": to, "dry_run": dry_run})

    def register(
        self, catalog: str, name: str, place: str, *, replace_lost: bool = False, dry_run: bool = False
    ) -> Registered:
        """Register a table from its files alone, or report what would be registered."""
        body = {"name": name, "place": place, "replace_lost": replace_lost, "dry_run": dry_run}
        return self._document("POST", f"/catalogs/{_segment(catalog)}/register", json=body)

    def result(self, job_id: str) -> Document:
        """Return what a job without operations found or made."""
        return cast(Document, self._get(f"/jobs/{_segment(job_id)}/result")["document"])

    def certificate(self, job_id: str) -> Document:
        """Return the signed certificate of an erasure."""
        return self._get(f"/jobs/{_segment(job_id)}/certificate")

    def vacuum(self, catalog: str, *, dry_run: bool = False) -> VacuumAnswer:
        """Start a vacuum of a catalog, or report what it would do."""
        return self._document("POST", f"/catalogs/{_segment(catalog)}/vacuum", json={"dry_run": dry_run})

    def give_up(self, job_id: str) -> GivenUp:
        """Drop the planned deletions of a job; its files stay."""
        return self._document("POST", f"/jobs/{_segment(job_id)}/give-up")

    def pause(self, table: str, reason: str) -> None:
        """Pause automatic maintenance of a table."""
        self._request("POST", f"/tables/{_segment(table)}/pause", json={"reason": reason})

    def resume(self, table: str) -> None:
        """Resume automatic maintenance of a table."""
        self._request("POST", f"/tables/{_segment(table)}/resume")

    def bulk(self, action: str, selection: Mapping[str, Any], expected: int | None = None) -> Bulk:
        """Pause, resume, cancel or run the tables of a selection; without `expected` only count them."""
        return self._document("POST", f"/tables/{action}", json={**selection, "expected": expected})

    def fleet(self) -> Fleet:
        """Return the pause of the fleet, if there is one."""
        return self._get("/fleet")

    def pause_fleet(self, reason: str, *, cancel_running: bool = False) -> Fleet:
        """Pause everything: no job begins until `resume_fleet`."""
        return self._document("POST", "/fleet/pause", json={"reason": reason, "cancel_running": cancel_running})

    def resume_fleet(self) -> Fleet:
        """End the pause of everything."""
        return self._document("POST", "/fleet/resume")

    def processes(self) -> Sequence[ProcessModel]:
        """Return the services and workers, including those without heartbeat."""
        return self._get("/processes")

    def drain(self, process: str) -> Document:
        """Ask a process to take no more jobs, and to end when its jobs have."""
        return self._document("POST", f"/processes/{_segment(process)}/drain")

    def rule(self, scope: str) -> Rule | None:
        """Return the newest version of a stored rule; None when there is none."""
        versions = self._get(f"/policies/{_segment(scope)}/versions")["items"]
        return versions[0] if versions else None

    def set_rule(self, scope: str, settings: Mapping[str, Any], version: int | None = None) -> Rule:
        """Replace the stored rule of a scope; a `version` other than the newest is a conflict."""
        return self._document("PUT", f"/policies/{_segment(scope)}", json={"set": dict(settings), "version": version})

    def delete_rule(self, scope: str, version: int | None = None) -> None:
        """Remove the stored rule of a scope; a `version` other than the newest is a conflict."""
        self._request("DELETE", f"/policies/{_segment(scope)}", params={} if version is None else {"version": version})

    # -- transport

    def _get(self, path: str, **params: Any) -> Any:  # noqa: ANN401 - JSON, typed by each method
        return self._document("GET", path, params={k: v for k, v in params.items() if v is not None})

    def _pages(self, path: str, params: Mapping[str, Any], limit: int = 200) -> Iterator[Any]:
        cursor: str | None = None
        while True:
            page = self._get(path, **params, limit=limit, cursor=cursor)
            if isinstance(page, list) or cursor == page["next"] is not None:
                raise UnknownAnswer(f"{self._server} answers {path} without pages that end; is this Icewright?")
            yield from page["items"]
            cursor = page["next"]
            if cursor is None:
                return

    def _document(self, method: str, path: str, **options: Any) -> Any:  # noqa: ANN401 - likewise
        response = self._request(method, path, **options)
        try:
            answer = response.json(object_hook=_Answer)
        except ValueError:
            answer = None
        if not isinstance(answer, dict | list):
            raise UnknownAnswer(f"{self._server} answers {path} without a document; is this an Icewright service?")
        return answer

    def _request(self, method: str, path: str, **options: Any) -> httpx2.Response:
        try:
            response = self._http.request(method, path, **options)
        except httpx2.HTTPError as error:
            raise StorageUnavailable(
                f"the service at {self._server} does not answer: {str(error) or type(error).__name__}"
            ) from error
        if response.is_success:
            return response
        raise _error(response)


def _segment(name: str) -> str:
    return quote(name, safe="")


def _error(response: httpx2.Response) -> IcewrightError:
    try:
        problem = response.json()
        detail = "; ".join([problem["detail"], *map(str, problem.get("errors", []))])
    except (ValueError, KeyError, TypeError):
        detail = f"the server answered {response.status_code} without problem details; is this an Icewright service?"
    if response.status_code in (401, 403):
        return Refusal(f"{detail} (the token is taken from ICEWRIGHT_TOKEN)" if response.status_code == 401 else detail)  # noqa: PLR2004
    return UsageError(detail) if response.status_code in _USAGE else StorageUnavailable(detail)
