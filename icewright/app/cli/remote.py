"""The commands against a service: its API answers, and no configuration is needed here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Literal, cast

from icewright.app.cli.backend import Document, JobFilter, RunRequest, TableFilter, changed_limits, removed_settings
from icewright.app.cli.base import parse_knobs, parse_since
from icewright.app.environment import server_token
from icewright.client import Client
from icewright.core.errors import Refused
from icewright.core.policy import Operation
from icewright.core.selection import TableSelection, is_pattern, matching_tables, tables_of_namespace
from icewright.core.table import TableRef

_UNLIMITED = 1_000_000  # tables that are listed where no limit is given
_EXPLAINED = (
    "table", "paused", "error", "health", "verdicts", "ignored_properties", "due_since", "goes_first_from"
)  # fmt: skip
_RUN = ("operation", "state", "reason", "summary", "metrics", "notes", "statements", "partitions")


class RemoteBackend:
    """Does what `LocalBackend` does by the service at a URL; the token is that of ICEWRIGHT_TOKEN."""

    def __init__(self, url: str) -> None:
        self._url = url

    def _client(self) -> Client:
        return Client(self._url, server_token())

    def _ask(self, question: Callable[[Client], Mapping[str, Any]]) -> Document:
        with self._client() as client:
            return cast(Document, question(client))

    def tables(self, criteria: TableFilter) -> tuple[Document, int]:
        order: Literal["asc", "desc"] = "asc" if criteria.sort in ("name", "health") else "desc"
        with self._client() as client:
            matching = client.tables(
                catalog=criteria.catalog,
                namespace=criteria.namespace,
                state=criteria.states,
                due=criteria.operation,
                sort=criteria.sort,
                order=order,
            )
            tables = [table for _, table in zip(range(criteria.limit or _UNLIMITED), matching, strict=False)]
            if not tables and criteria.namespace:
                tables_of_namespace(criteria.namespace, _names(client, criteria.catalog))
        return {"tables": tables, "errors": []}, len(tables)

    def explain(self, table: str | None, namespace: str | None) -> tuple[list[Document], list[str]]:
        with self._client() as client:
            if table is not None and not is_pattern(table):
                names = [table]
            else:
                listed = matching_tables(table, _names(client))
                names = [str(ref) for ref in (tables_of_namespace(namespace, listed) if namespace else listed)]
            return [
                _part(t, _EXPLAINED) | {"advice": t["facts"].get("advice", [])} for t in map(client.table, names)
            ], []

    def plan(self, catalog: str | None) -> Document:
        return self._ask(lambda client: client.plan(catalog))

    def run(self, request: RunRequest) -> Document:
        settings = parse_knobs("--set", request.settings)
        with self._client() as client:
            started = client.start(
                request.table, request.operations, settings, dry_run=request.dry_run, force=request.force
            )
            document: Document = {**started}
            if (job_id := started["job_id"]) is not None:
                job = client.follow(job_id)
                runs = [_part(run, _RUN) for run in job["runs"]]
                document |= {"state": job["state"], "summary": job["summary"], "operations": runs}
        return document

    def history(self, criteria: JobFilter) -> list[Document]:
        since = None if criteria.since is None else parse_since(criteria.since, datetime.now(UTC))  # noqa: TID251 - an age counts from this machine's time
        with self._client() as client:
            jobs = client.jobs(
                criteria.table, state=criteria.states, operation=criteria.operation, limit=criteria.limit
            )
        return [
            cast(Document, job)
            for job in jobs
            if since is None or datetime.fromisoformat(job["started"] or job["created"]) >= since
        ]

    def show(self, job: str) -> Document:
        with self._client() as client:
            document = cast(Document, client.job(job))
            document["files"] = list(client.files(document["job_id"]))
            return document

    def cancel(self, job: str) -> Document:
        return self._ask(lambda client: client.cancel(job))

    def pause(self, table: str, reason: str | None) -> Document:
        with self._client() as client:
            was_paused = client.table(table)["paused"]
            if reason is None:
                client.resume(table)
            else:
                client.pause(table, reason)
        return {"table": table, "paused": reason, "was_paused": was_paused}

    def bulk(
        self,
        action: str,
        selection: TableSelection,
        expected: int | None = None,
        reason: str | None = None,
        operations: Sequence[Operation] = (),
    ) -> Document:
        more: dict[str, Any] = {"reason": reason} if action == "pause" else {}
        more |= {"operations": list(operations)} if action == "run" else {}
        return self._ask(lambda client: client.bulk(action, _selected(selection) | more, expected))

    def run_many(self, selection: TableSelection, request: RunRequest, counted: Document) -> list[Document]:
        if request.dry_run:
            return [self.run(replace(request, table=table)) for table in counted["tables"]]
        settings = parse_knobs("--set", request.settings)
        body = {"operations": list(request.operations), "set": settings, "force": request.force}
        with self._client() as client:
            started = client.bulk("run", _selected(selection) | body, counted["count"])
            jobs = [client.follow(job_id) for job_id in started["jobs"]]
        finished = [
            {"table": job["table"], "job_id": job["job_id"], "state": job["state"], "dry_run": False}
            | {"summary": job["summary"], "operations": [_part(run, _RUN) for run in job["runs"]]}
            for job in jobs
        ]
        refused = [
            {"table": table, "job_id": None, "state": "failed", "dry_run": False}
            | {"operations": [], "summary": reason, "reason": reason}
            for table, reason in started["refused"].items()
        ]
        return finished + refused

    def fleet(self) -> Document:
        with self._client() as client:
            return {"paused": client.fleet()["paused"], "processes": list(client.processes())}

    def pause_fleet(self, reason: str, *, cancel_running: bool) -> Document:
        return self._ask(lambda client: client.pause_fleet(reason, cancel_running=cancel_running))

    def resume_fleet(self) -> Document:
        return self._ask(lambda client: client.resume_fleet())

    def drain(self, process: str) -> Document:
        return self._ask(lambda client: client.drain(process))

    def knobs(self, table: str) -> Document:
        return self._ask(lambda client: client.knobs(table))

    def set_rule(self, scope: str, settings: Mapping[str, str]) -> Mapping[str, Any]:
        new = parse_knobs("config set", settings)
        with self._client() as client:
            old = client.rule(scope)
            before = old["settings"] if old else {}
            client.set_rule(scope, {**before, **new}, old["version"] if old else 0)
        return new

    def unset_rule(self, scope: str, knobs: Sequence[str]) -> Mapping[str, Any]:
        with self._client() as client:
            old = client.rule(scope)
            settings = old["settings"] if old else {}
            removed = removed_settings(scope, settings, knobs)
            version = old["version"] if old else 0
            if remaining := {name: value for name, value in settings.items() if name not in removed}:
                client.set_rule(scope, remaining, version)
            else:
                client.delete_rule(scope, version)
        return removed

    def limits(self) -> Document:
        return self._ask(lambda client: client.limits())

    def set_limits(self, settings: Mapping[str, str], unset: Sequence[str]) -> Document:
        with self._client() as client:
            known = client.limits()
            old = {item["name"]: item["value"] for item in known["items"] if item["stored"]}
            return {**client.set_limits(changed_limits(old, new=settings, unset=unset), known["version"])}

    def catalogs(self) -> list[Document]:
        with self._client() as client:
            return [{**catalog} for catalog in client.catalogs()]

    def set_catalog(self, catalog: str, settings: Mapping[str, Any]) -> Document:
        return self._ask(lambda client: client.set_catalog(catalog, settings))

    def undo(self, job: str, *, dry_run: bool) -> Document:
        return self._ask(lambda client: client.undo(job, dry_run=dry_run))

    def restore(self, table: str, to: str, *, dry_run: bool, expected: str | None = None) -> Document:
        """Return what a restore would change, or the restore with the state of its job."""
        with self._client() as client:
            document = client.restore(table, to, dry_run=dry_run, expected=expected)
            return {**document, **_follow_job(client, document["job_id"])}

    def repair(self, table: str, *, drop_lost: bool, dry_run: bool, approved_rows: int = 0) -> Document:
        """Return what a repair would do, or the state of its job."""
        with self._client() as client:
            document: Document = {
                **client.repair(table, drop_lost=drop_lost, dry_run=dry_run, approved_rows=approved_rows)
            }
            if dry_run and document.get("job_id") is not None:  # of many files a job finds it out
                return _result(client, document["job_id"])
            return document | _follow_job(client, document.get("job_id"))

    def erase(self, table: str, where: str, *, dry_run: bool) -> Document:
        """Return what an erasure found, ran and left, or what a search found."""
        with self._client() as client:
            return _result(client, client.erase(table, where, dry_run=dry_run)["job_id"] or "")

    def layouts(self, table: str, filters: Sequence[str], *, measure: bool) -> Document:
        """Return what filters would read in other layouts, by Spark's measure too where that is asked for."""
        with self._client() as client:
            return _result(client, client.layouts(table, filters, dry_run=not measure)["job_id"] or "")

    def copy(self, table: str, to: str, *, dry_run: bool) -> Document:
        """Return what was copied, or would be."""
        with self._client() as client:
            document: Document = {**client.copy(table, to, dry_run=dry_run)}
            return document if dry_run else _result(client, document["job_id"])

    def certificate(self, job_id: str) -> Document:
        return self._ask(lambda client: client.certificate(job_id))

    def register(self, name: str, place: str, *, replace_lost: bool, dry_run: bool) -> Document:
        """Return what was registered, or would be."""
        catalog, _, rest = name.partition(".")
        how = {"replace_lost": replace_lost, "dry_run": dry_run}
        return self._ask(lambda client: client.register(catalog, rest, place, **how))

    def points(self, table: str) -> Document:
        return self._ask(lambda client: client.points(table, costs=True))

    def vacuum(self, catalog: str, *, dry_run: bool) -> Document:
        return self._ask(lambda client: client.vacuum(catalog, dry_run=dry_run))

    def deletions(self, table: str | None, catalog: str | None) -> list[Document]:
        with self._client() as client:
            return [cast(Document, waiting) for waiting in client.deletions(table=table, catalog=catalog)]

    def give_up(self, job: str) -> Document:
        return self._ask(lambda client: client.give_up(job))


def _names(client: Client, catalog: str | None = None) -> list[TableRef]:
    return [TableRef.parse(table["table"]) for table in client.tables(catalog=catalog)]


def _follow_job(client: Client, job_id: str | None) -> Document:
    """Return state and summary of a job when it has ended; nothing where there is none."""
    if job_id is None:
        return {}
    job = client.follow(job_id)
    return {"state": job["state"], "summary": job["summary"]}


def _result(client: Client, job_id: str) -> Document:
    """Return what a job found or made when it has ended. Raises `Refused` when it did not succeed."""
    job = client.follow(job_id)
    if job["state"] != "succeeded":
        raise Refused(f"job {job_id} is {job['state']}: {job['summary']}")
    return client.result(job_id) | {"job_id": job_id}


def _part(document: Mapping[str, Any], names: Sequence[str]) -> Document:
    return {name: document[name] for name in names}


def _selected(selection: TableSelection) -> Document:
    return {"tables": list(selection.names), "catalog": selection.catalog, "all": selection.everything}
