"""HTTP client of the REST API, used by programs and by the command line; `client_types` has its documents."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, cast
from urllib.parse import quote

from icewright.client_connection import Connection, Refusal, UnknownAnswer
from icewright.core.runs import TRANSITIONS, JobState

if TYPE_CHECKING:
    from icewright.client_types import (
        AlertModel,
        AuditEntry,
        Bulk,
        CatalogModel,
        Copy,
        Event,
        File,
        Fleet,
        GivenUp,
        Job,
        JobDetail,
        Knobs,
        LimitsModel,
        LimitsPreview,
        Me,
        NewToken,
        Overview,
        Pin,
        Plan,
        Points,
        Policies,
        PoolModel,
        Preview,
        ProcessModel,
        Queue,
        Registered,
        Repair,
        Restore,
        Rule,
        Run,
        Snapshots,
        Started,
        Table,
        TableDetail,
        Tested,
        Token,
        Trend,
        Undone,
        VacuumAnswer,
        WaitingFiles,
    )

Document = dict[str, Any]
Order = Literal["asc", "desc"]
Filter = str | Sequence[str] | None

__all__ = ["Client", "Refusal", "UnknownAnswer"]


class Client(Connection):
    """A client of one service; close it with `close` or a `with` block."""

    def me(self) -> Me:
        """Return the caller's name, grants and actions."""
        return self._get("/me")

    def overview(self, *, days: int | None = None) -> Overview:
        """Return the counts and sums of the overview; those of work over so many days."""
        return self._get("/overview", days=days)

    def trend(self, *, hours: int | None = None, catalog: str | None = None, table: str | None = None) -> Trend:
        """Return cost, saving and health over the last hours, of a catalog or table, or of all."""
        return self._get("/trend", hours=hours, catalog=catalog, table=table)

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

    def queue(self, *, catalog: str | None = None, operation: str | None = None, search: str | None = None) -> Queue:
        """Return open jobs, and due operations without a job, that match the filters."""
        return self._get("/queue", catalog=catalog, operation=operation, search=search)

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
        pages = self._pages("/jobs", {**of, "search": search, "since": _time(since)}, min(limit, 500))
        return [job for job, _ in zip(pages, range(limit), strict=False)]

    def job(self, job_id: str) -> JobDetail:
        """Return one job with its runs."""
        return self._get(f"/jobs/{_segment(job_id)}")

    def files(self, job_id: str) -> Iterator[File]:
        """Yield the files of a job in the deletion ledger."""
        return self._pages(f"/jobs/{_segment(job_id)}/files", {})

    def events(self, job_id: str) -> Iterator[Event]:
        """Yield the events of a job."""
        return self._pages(f"/jobs/{_segment(job_id)}/events", {})

    def runs(
        self,
        *,
        table: str | None = None,
        catalog: str | None = None,
        operation: str | None = None,
        state: Filter = None,
        since: datetime | None = None,
    ) -> Iterator[Run]:
        """Yield all runs of operations that match the filters, newest first; those that ended since a time."""
        of = {"table": table, "catalog": catalog, "operation": operation, "state": state}
        return self._pages("/runs", {**of, "since": _time(since)})

    def deletions(self, *, table: str | None = None, catalog: str | None = None) -> Iterator[WaitingFiles]:
        """Yield planned deletions by job and operation."""
        return self._pages("/deletions", {"table": table, "catalog": catalog})

    def policies(self) -> Policies:
        """Return the policy rules and the guardrails."""
        return self._get("/policies")

    def preview(self, scope: str, settings: Mapping[str, Any]) -> Preview:
        """Return what a rule would change, without storing it."""
        return self._document("POST", f"/policies/{_segment(scope)}/preview", json={"set": dict(settings)})

    def all_knobs(self) -> Sequence[Document]:
        """Return every knob that there is, with type, default and description."""
        return self._list("GET", "/knobs")

    def alerts(
        self,
        *,
        resolved: bool = False,
        severity: str | None = None,
        since: datetime | None = None,
        search: str | None = None,
        limit: int = 100,
    ) -> Sequence[AlertModel]:
        """Return at most `limit` open alerts that match the filters, newest first; with `resolved`, ended ones too."""
        of = {"resolved": resolved, "severity": severity, "since": _time(since), "search": search}
        return self._list("GET", "/alerts", params={**of, "limit": limit})

    def catalogs(self) -> Sequence[CatalogModel]:
        """Return the catalogs, with the tables that are maintained and how the last listing went."""
        return self._list("GET", "/catalogs")

    def last_vacuum(self, catalog: str) -> VacuumAnswer:
        """Return how the vacuum of a catalog goes, or how the last one went."""
        return self._get(f"/catalogs/{_segment(catalog)}/vacuum")

    def pools(self) -> Sequence[PoolModel]:
        """Return the compute pools with their slots and budgets."""
        return self._list("GET", "/pools")

    def limits(self) -> LimitsModel:
        """Return the limits of jobs and of GB-hours, and those that are set in the place of the configuration's."""
        return self._get("/limits")

    def permissions(self) -> Sequence[Document]:
        """Return what each role may do."""
        return self._list("GET", "/permissions")

    def tokens(self) -> Sequence[Token]:
        """Return the API tokens, without their secrets."""
        return cast("Sequence[Token]", self._get("/tokens")["items"])

    def audit(
        self,
        *,
        actor: str | None = None,
        action: str | None = None,
        refused: bool | None = None,
        since: datetime | None = None,
        search: str | None = None,
    ) -> Iterator[AuditEntry]:
        """Yield all changes and refusals that match the filters, newest first."""
        of = {"actor": actor, "action": action, "refused": refused, "since": _time(since), "search": search}
        return self._pages("/audit", of)

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

    def pin(self, table: str, reader: str, snapshot_id: int, hours: int | None = None) -> Pin:
        """Pin a snapshot for a reader: it stays until the pin ends."""
        body = {"snapshot_id": snapshot_id, "hours": hours}
        return self._document("PUT", f"/tables/{_segment(table)}/pins/{_segment(reader)}", json=body)

    def unpin(self, table: str, reader: str) -> None:
        """Remove the pin of a reader."""
        self._request("DELETE", f"/tables/{_segment(table)}/pins/{_segment(reader)}")

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
        return self._list("GET", "/processes")

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
        self._request("DELETE", f"/policies/{_segment(scope)}", params={"version": version})

    def set_limits(self, settings: Mapping[str, Any], version: int | None = None) -> LimitsModel:
        """Replace the limits that are set in the place of the file's; `version` is the newest known."""
        return self._document("PUT", "/limits", json={"set": dict(settings), "version": version})

    def preview_limits(self, settings: Mapping[str, Any]) -> LimitsPreview:
        """Return which limits such a change would change, and how many jobs would start now."""
        return self._document("POST", "/limits/preview", json={"set": dict(settings)})

    def acknowledge(self, alert: int, note: str = "", *, silent_hours: int | None = None) -> AlertModel:
        """Acknowledge an open alert; for `silent_hours` no channel is told about it."""
        body = {"note": note, "silent_hours": silent_hours}
        return self._document("PUT", f"/alerts/{alert}/acknowledgement", json=body)

    def unacknowledge(self, alert: int) -> AlertModel:
        """Take the acknowledgement of an alert back."""
        return self._document("DELETE", f"/alerts/{alert}/acknowledgement")

    def test_alerts(self) -> Sequence[Tested]:
        """Send a test message to each channel, and return how that went."""
        return self._list("POST", "/alerts/test")

    def set_catalog(self, catalog: str, settings: Mapping[str, Any]) -> CatalogModel:
        """Replace what is set for a catalog beside its configuration; without settings, return to that."""
        return self._document("PUT", f"/catalogs/{_segment(catalog)}", json=dict(settings))

    def create_token(self, name: str, role: str, scope: Sequence[str] = (), *, days: int | None = 90) -> NewToken:
        """Create an API token, whose secret no later answer has; without `days` it never expires."""
        return self._document("POST", "/tokens", json={"name": name, "role": role, "scope": list(scope), "days": days})

    def revoke_token(self, token_id: str) -> None:
        """Revoke an API token, at once and for good."""
        self._request("DELETE", f"/tokens/{_segment(token_id)}")


def _segment(name: str) -> str:
    return quote(name, safe="")


def _time(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()
