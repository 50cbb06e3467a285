"""Commands that look: tables, health, explain, plan, history, show, doctor."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.markup import escape

from icewright.app import output
from icewright.app.cli import remote
from icewright.app.cli.base import (
    CatalogOption,
    Json,
    Table,
    app,
    chosen_catalogs,
    known_table,
    leave,
    opened_application,
    show_ignored,
)
from icewright.app.cli.shown import show_removed
from icewright.app.undoing import removal_document, waiting_document
from icewright.core.describe import evaluation_document
from icewright.core.errors import MetadataUnreadable, UsageError
from icewright.flow.cycle import look
from icewright.flow.detect import detect
from icewright.flow.evaluate import evaluate_and_record, maintained
from icewright.flow.queue import plan_now
from icewright.ports import TableRow


@app.command()
def tables(as_json: Json = False) -> None:
    """All tables with health and state."""
    if to := remote.client():
        remote.tables(to, as_json=as_json)
        return
    with opened_application() as opened:
        runtime = opened.runtime
        found = detect(runtime, chosen_catalogs(opened, None))
        known = [row for row in runtime.store.tables.list() if not row.dropped]
        if as_json:
            output.print_json({"tables": [_table_document(row) for row in known], "errors": list(found.errors)})
        else:
            output.rows("Tables", ("table", "health", "state"), [(row.ref, row.health, _state(row)) for row in known])
            for name, error in found.errors:
                output.ERR.print(f"[red]{escape(name)}: {escape(error)}[/]")
    leave(1 if found.errors else 0)


def _state(row: TableRow) -> str:
    if row.error:
        return f"unreadable: {row.error}"
    if row.paused:
        return f"paused: {row.paused}"
    if row.held_by:
        return f"running {row.held_by}"
    if row.evaluated_at is None:
        return "not evaluated yet"
    if row.metadata_location != row.evaluated_location:
        return "changed"
    return "due" if row.due_since else "nothing due"


def _table_document(row: TableRow) -> dict[str, Any]:
    return {
        "table": str(row.ref),
        "health": row.health,
        "state": _state(row),
        "evaluated_at": row.evaluated_at,
        "evaluate_at": row.evaluate_at,
        "paused": row.paused,
        "error": row.error,
    }


@app.command()
def health(table: Table, as_json: Json = False) -> None:
    """Evaluate one table now: health and its parts, facts, verdicts."""
    with opened_application() as opened:
        row = known_table(opened, table)
        evaluation = evaluate_and_record(opened.runtime, row.ref, opened.runtime.clock.now())
        if evaluation is None:
            said = next((r.error for r in opened.runtime.store.tables.list() if r.ref == row.ref), None)
            raise MetadataUnreadable(f"{row.ref} cannot be evaluated: {said or 'it was dropped'}")
        standing = maintained(opened.runtime, row, evaluation.facts.metadata)
        document = evaluation_document(evaluation)
        if as_json:
            output.print_json({**document, "maintenance": {op: asdict(said) for op, said in standing.items()}})
            return
        score = document["health"]
        output.OUT.print(f"[bold]{escape(str(row.ref))}[/]  health [bold]{'unknown' if score is None else score}[/]")
        output.rows(
            "Parts",
            ("part", "score", "behind it"),
            [(n, p["score"], p["behind"]) for n, p in document["parts"].items()],
        )
        shown = {k: v for k, v in document["facts"].items() if not isinstance(v, list | dict)}
        shown |= {k: output.size(shown[k]) for k in shown if k.endswith("bytes")}
        output.rows("Facts", ("fact", "value"), list(shown.items()))
        _show_verdicts(document)
        lines = [(op, said.status, said.last_run, said.message) for op, said in standing.items()]
        output.rows("Maintenance", ("operation", "status", "last run", "message"), lines)
        show_ignored(document["ignored_properties"])


def _show_verdicts(document: Any) -> None:  # noqa: ANN401 - JSON
    lines = [
        (v["operation"], v["verdict"], "; ".join([v["reason"], *v.get("notes", [])])) for v in document["verdicts"]
    ]
    output.rows("Verdicts", ("operation", "verdict", "reason"), lines)


@app.command()
def explain(
    table: Annotated[str | None, typer.Argument(metavar="[TABLE]", help="One table, else all.")] = None,
    as_json: Json = False,
) -> None:
    """Why each operation is due or not, for one table or for all."""
    if to := remote.client():
        remote.explain(to, table, as_json=as_json)
        return
    with opened_application() as opened:
        runtime = opened.runtime
        if table is not None:
            refs = [known_table(opened, table).ref]
        else:
            detect(runtime, chosen_catalogs(opened, None))
            refs = [row.ref for row in runtime.store.tables.list() if not row.dropped]
        documents = []
        for ref in refs:
            evaluation = evaluate_and_record(runtime, ref, runtime.clock.now())
            row = next(r for r in runtime.store.tables.list() if r.ref == ref)
            document: dict[str, Any] = {"table": str(ref), "paused": row.paused, "error": row.error, "verdicts": []}
            if evaluation is not None:
                full = evaluation_document(evaluation)
                document |= {name: full[name] for name in ("health", "verdicts", "ignored_properties")}
            documents.append(document)
    if as_json:
        output.print_json(documents[0] if table is not None else documents)
        return
    for document in documents:
        paused = f"  paused: {document['paused']}" if document["paused"] else ""
        output.OUT.print(f"[bold]{escape(document['table'])}[/]{escape(paused)}")
        if document["error"]:
            output.OUT.print(f"[red]{escape(document['error'])}[/]")
        else:
            _show_verdicts(document)
            show_ignored(document.get("ignored_properties", []))


@app.command()
def plan(catalog: CatalogOption = None, as_json: Json = False) -> None:
    """What the next cycle would start, in order, and what would wait. Changes nothing."""
    if to := remote.client():
        remote.plan(to, catalog, as_json=as_json)
        return
    with opened_application() as opened:
        catalogs = chosen_catalogs(opened, catalog)
        found, _ = look(opened.runtime, catalogs)
        made = plan_now(opened.runtime, catalogs)
    if as_json:
        output.print_json(
            {
                "tables": found.tables,
                "jobs": [
                    {
                        "table": str(j.ref),
                        "operations": [str(op) for op in j.operations],
                        "score": round(j.score, 3),
                        "benefit_mb": round(j.benefit, 3),
                        "cost_gb_hours": round(j.cost, 6),
                        "why": j.why,
                    }
                    for j in made.jobs
                ],
                "deferred": [
                    {"table": str(d.ref), "operation": str(d.operation), "reason": d.reason, "position": d.position}
                    for d in made.deferred
                ],
            }
        )
        return
    jobs = [(i, j.ref, ", ".join(j.operations), f"{j.score:.3g}", j.why) for i, j in enumerate(made.jobs, 1)]
    output.rows("To start now", ("#", "table", "operations", "score", "why"), jobs)
    if made.deferred:
        waiting = [(d.position, d.ref, d.operation, d.reason) for d in made.deferred]
        output.rows("Waiting", ("place", "table", "operation", "reason"), waiting)


@app.command()
def history(
    table: Annotated[str | None, typer.Argument(metavar="[TABLE]", help="One table, else all.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many jobs.")] = 50,
    as_json: Json = False,
) -> None:
    """Jobs that ran, newest first."""
    if to := remote.client():
        remote.history(to, table, limit, as_json=as_json)
        return
    with opened_application() as opened:
        jobs = opened.runtime.store.jobs.list(known_table(opened, table).ref if table else None, limit)
    if as_json:
        output.print_json({"jobs": [output.job_row_document(job) for job in jobs]})
        return
    lines = [
        (j.job_id, j.ref, j.state, j.trigger, f"{j.started:%Y-%m-%d %H:%M:%S}" if j.started else None, j.summary)
        for j in jobs
    ]
    output.rows("Jobs", ("job", "table", "state", "trigger", "started (UTC)", "summary"), lines)


@app.command()
def show(
    job: Annotated[str, typer.Argument(metavar="RUN", help="A job id, or a unique prefix of one.")],
    as_json: Json = False,
) -> None:
    """One job: operations, metrics, statements, before and after, what expired and what waits, its log, its files."""
    if to := remote.client():
        remote.show(to, job, as_json=as_json)
        return
    with opened_application() as opened:
        store = opened.runtime.store
        found = store.jobs.get(job)
        if found is None:
            raise UsageError(f"no job, or more than one, begins with {job!r}; `icewright history` lists them")
        runs = [dict(r) for r in store.runs.list(found.job_id)]
        deleted = list(store.ledger.files(found.job_id))
        log = list(store.activity.list(found.job_id))
        removed = [removal_document(removal) for removal in store.ledger.removals(found.job_id)]
        waiting = [waiting_document(w) for w in store.ledger.pending(found.ref) if w.job_id == found.job_id]
    document = output.job_row_document(found)
    document |= {"runs": runs, "removed": removed, "waiting": waiting, "files": deleted, "log": log}
    if as_json:
        output.print_json(document)
        return
    output.OUT.print(
        f"[bold]{found.job_id}[/]  {escape(str(found.ref))}  {output.coloured(found.state)}  "
        f"{found.trigger} by {escape(found.actor)}"
    )
    for r in runs:
        changes = [
            (k, r["before"].get(k), r["after"].get(k)) for k in r["before"] if r["before"].get(k) != r["after"].get(k)
        ]
        output.OUT.print(f"\n{r['operation']}: {output.coloured(r['state'])}  {escape(r['summary'])}")
        for text in (*r["notes"], *r["statements"]):
            output.OUT.print(f"  {escape(text)}")
        output.rows("Metrics", ("metric", "value"), list(r["metrics"].items()))
        if r["partitions"]:
            columns = ("partition", "files_in", "bytes_in", "files_out", "bytes_out")
            sized = [{**p, **{c: output.size(p[c]) for c in ("bytes_in", "bytes_out")}} for p in r["partitions"]]
            output.rows("Partitions", columns, [[p[c] for c in columns] for p in sized])
        output.rows("Changes", ("fact", "before", "after"), changes)
    show_removed(removed, waiting)
    told = [(f"{e['at']:%H:%M:%S}", e["kind"], output.details(e["details"])) for e in log]
    output.rows("Log", ("at", "event", "details"), told)
    if deleted:
        output.rows(
            "Files",
            ("state", "kind", "size", "path"),
            [(f["state"], f["kind"], output.size(f["bytes"]), f["path"]) for f in deleted],
        )


@app.command()
def doctor(as_json: Json = False) -> None:
    """Check the store, every catalog, its storage and Spark; say how to mend what fails."""
    from icewright.app.doctor import examine  # noqa: PLC0415 - starts Spark, and is needed here alone

    with opened_application() as opened:
        checks = examine(opened)
    if as_json:
        output.print_json({"checks": [{"check": c.name, "ok": c.ok, "said": c.said} for c in checks]})
    else:
        output.rows(
            "Doctor", ("check", "result", "said"), [(c.name, "ok" if c.ok else "failed", c.said) for c in checks]
        )
    leave(0 if all(c.ok for c in checks) else 1)
