"""The commands against a service, where --server names one: the same words, answered by its API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.markup import escape

from icewright.app import output
from icewright.app.cli.base import OPTIONS, leave, show_ignored, show_knobs
from icewright.app.cli.shown import show_removed
from icewright.app.config import server_token
from icewright.client import Client
from icewright.core.layering import parse_settings
from icewright.core.policy import Operation
from icewright.core.runs import JobState


def client() -> Client | None:
    """Return the service that --server names; None where the command works by itself."""
    return Client(OPTIONS.server, server_token()) if OPTIONS.server else None


def tables(to: Client, *, as_json: bool) -> None:
    """Run `icewright tables` against a service."""
    with to:
        found = list(to.tables())
    if as_json:
        output.print_json({"tables": found, "errors": []})
        return
    output.rows("Tables", ("table", "health", "state"), [(t["table"], t["health"], _state(t)) for t in found])


def explain(to: Client, table: str | None, *, as_json: bool) -> None:
    """As `icewright explain`, by the service's last evaluations."""
    with to:
        names = [table] if table is not None else [t["table"] for t in to.tables()]
        same = ("table", "paused", "error", "health", "verdicts", "ignored_properties")
        found = [{k: t[k] for k in same} for t in map(to.table, names)]
    if as_json:
        output.print_json(found[0] if table is not None else found)
        return
    for one in found:
        output.OUT.print(f"[bold]{escape(one['table'])}[/]")
        lines = [(v["operation"], v["verdict"], v["reason"]) for v in one["verdicts"]]
        output.rows("Verdicts", ("operation", "verdict", "reason"), lines)
        show_ignored(one["ignored_properties"])


def plan(to: Client, catalog: str | None, *, as_json: bool) -> None:
    """Run `icewright plan` against a service."""
    with to:
        made = to.plan(catalog)
    if as_json:
        output.print_json(made)
        return
    jobs = [
        (i, j["table"], ", ".join(j["operations"]), f"{j['score']:.3g}", j["why"])
        for i, j in enumerate(made["jobs"], 1)
    ]
    output.rows("To start now", ("#", "table", "operations", "score", "why"), jobs)
    waiting = [(d["position"], d["table"], d["operation"], d["reason"]) for d in made["deferred"]]
    output.rows("Waiting", ("place", "table", "operation", "reason"), waiting)


def run(
    to: Client,
    table: str,
    operations: Sequence[Operation],
    sets: dict[str, Any],
    *,
    dry_run: bool,
    force: bool,
    as_json: bool,
) -> None:
    """As `icewright run`: the service's workers do it, and this waits for the end."""
    with to:
        document = to.start(table, operations, parse_settings("--set", sets), dry_run=dry_run, force=force)
        if document["job_id"] is not None:
            job = to.follow(document["job_id"])
            same = ("operation", "state", "reason", "summary", "metrics", "notes", "statements", "partitions")
            runs = [{k: r[k] for k in same} for r in job["runs"]]
            document |= {"state": job["state"], "summary": job["summary"], "operations": runs}
    if as_json:
        output.print_json(document)
    else:
        lines = [(o["operation"], o["state"], o["summary"]) for o in document["operations"]]
        output.rows(f"{document['table']}: {document['state']}", ("operation", "state", "summary"), lines)
    leave(output.exit_code([JobState(document["state"])]))


def history(to: Client, table: str | None, limit: int, *, as_json: bool) -> None:
    """Run `icewright history` against a service."""
    with to:
        jobs = to.jobs(table, limit=limit)
    if as_json:
        output.print_json({"jobs": list(jobs)})
        return
    columns = ("job_id", "table", "state", "trigger", "started", "summary")
    output.rows("Jobs", columns, [[job[c] for c in columns] for job in jobs])


def show(to: Client, job_id: str, *, as_json: bool) -> None:
    """Run `icewright show` against a service."""
    with to:
        job = to.job(job_id)
        document = job | {"files": list(to.files(job["job_id"]))}
    if as_json:
        output.print_json(document)
        return
    output.OUT.print(f"[bold]{job['job_id']}[/]  {escape(job['table'])}  {output.coloured(job['state'])}")
    for one in job["runs"]:
        output.OUT.print(f"\n{one['operation']}: {output.coloured(one['state'])}  {escape(one['summary'])}")
        output.rows("Metrics", ("metric", "value"), list(one["metrics"].items()))
    show_removed(job["removed"], job["waiting"])
    files = [(f["state"], f["kind"], output.size(f["bytes"]), f["path"]) for f in document["files"]]
    if files:
        output.rows("Files", ("state", "kind", "size", "path"), files)


def cancel(to: Client, job_id: str) -> None:
    """Run `icewright cancel` against a service."""
    with to:
        output.OUT.print(f"job {to.cancel(job_id)['job_id']} was asked to stop")


def pause(to: Client, table: str, reason: str | None) -> None:
    """As `icewright pause`, or without a reason `icewright resume`."""
    with to:
        if reason is None:
            to.resume(table)
        else:
            to.pause(table, reason)
    output.OUT.print(f"{escape(table)} is {'maintained again' if reason is None else 'paused: ' + escape(reason)}")


def config_explain(to: Client, table: str, *, as_json: bool) -> None:
    """Run `icewright config explain` against a service."""
    with to:
        found = to.knobs(table)
    if as_json:
        output.print_json(found)
        return
    show_knobs(found)


def config_set(to: Client, scope: str, settings: dict[str, Any]) -> None:
    """As `icewright config set`: what the scope's stored rule says already stays."""
    with to:
        new, old = parse_settings("config set", settings), to.rule(scope)
        before = old["settings"] if old else {}
        to.set_rule(scope, {**before, **new}, old["version"] if old else 0)
    output.OUT.print(f"{escape(scope)}: {escape(', '.join(f'{k} = {v}' for k, v in new.items()))}")


def _state(table: dict[str, Any]) -> str:
    why = table["error"] or table["paused"]
    return f"{table['state']}: {why}" if why else str(table["state"])
