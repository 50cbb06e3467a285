"""The command line. Exit codes: 0 done or nothing to do, 1 failed, 2 usage or configuration, 3 partial."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from icewright import __version__
from icewright.app import output
from icewright.app.bootstrap import Application, application, is_dead, read_config, upgrade_store
from icewright.app.config import Config, find_config
from icewright.core.describe import evaluation_document
from icewright.core.errors import ConfigError, IcewrightError, UsageError
from icewright.core.layering import Rule, parse_pattern, parse_settings
from icewright.core.policy import KNOBS, Operation
from icewright.core.table import TableRef
from icewright.flow.cycle import plan_now, run_cycle
from icewright.flow.detect import detect
from icewright.flow.evaluate import evaluate_and_record
from icewright.flow.execute import Request, execute, settle_interrupted
from icewright.ports import TableRow

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Keeps Apache Iceberg tables healthy by itself.",
)
config_app = typer.Typer(no_args_is_help=True, help="Check the configuration, explain or set knobs.")
db_app = typer.Typer(no_args_is_help=True, help="The state store.")
app.add_typer(config_app, name="config")
app.add_typer(db_app, name="db")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Table = Annotated[
    str, typer.Argument(metavar="TABLE", help="catalog.namespace.table; quote a part with dots by backticks.")
]
CatalogOption = Annotated[str | None, typer.Option("--catalog", help="This catalog alone.")]
Sets = Annotated[list[str] | None, typer.Option("--set", metavar="KNOB=VALUE", help="A knob for this run alone.")]


@dataclass
class _Options:
    config: str | None = None


_OPTIONS = _Options()


@app.callback()
def _main(
    config: Annotated[str | None, typer.Option("--config", help="Configuration file (or ICEWRIGHT_CONFIG).")] = None,
    version: Annotated[bool, typer.Option("--version", help="Print the version and end.")] = False,
) -> None:
    _OPTIONS.config = config
    if version:
        output.OUT.print(__version__)
        raise typer.Exit


def _config() -> Config:
    return read_config(find_config(_OPTIONS.config))


@contextmanager
def _opened(kind: str = "manual", **more: Any) -> Iterator[Application]:  # noqa: ANN401 - see `application`
    with application(_config(), kind=kind, **more) as opened:
        yield opened


def _catalogs(opened: Application, catalog: str | None) -> list[str]:
    if catalog is None:
        return sorted(opened.world.catalogs)
    if catalog not in opened.world.catalogs:
        raise UsageError(f"there is no catalog {catalog}; there is: {', '.join(sorted(opened.world.catalogs))}")
    return [catalog]


def _settings(sets: list[str] | None) -> dict[str, Any]:
    pairs = [text.partition("=") for text in sets or []]
    if bad := [name for name, equals, _ in pairs if not equals]:
        raise UsageError(f"--set {bad[0]}: write knob=value, such as --set compact.min_input_files=2")
    return parse_settings("--set", {name.strip(): value.strip() for name, _, value in pairs})


def _row(opened: Application, text: str) -> TableRow:
    """What the store knows of a table, looked up in the catalog first."""
    ref = TableRef.parse(text)
    opened.world.catalog(ref)
    world = opened.world
    if not any(row.ref == ref for row in world.store.tables()):
        world.store.detected(ref.catalog, world.catalogs[ref.catalog].pointers(), world.clock.now())
    row = next((row for row in world.store.tables() if row.ref == ref and not row.dropped), None)
    if row is None:
        raise UsageError(f"{ref}: the catalog has no such table; `icewright tables` lists what it has")
    return row


@app.command()
def tables(as_json: Json = False) -> None:
    """All tables with health and state."""
    with _opened() as opened:
        world = opened.world
        found = detect(world, _catalogs(opened, None), world.clock.now())
        known = [row for row in world.store.tables() if not row.dropped]
        if as_json:
            output.print_json({"tables": [_table_document(row) for row in known], "errors": list(found.errors)})
        else:
            output.rows("Tables", ("table", "health", "state"), [(row.ref, row.health, _state(row)) for row in known])
            for name, error in found.errors:
                output.ERR.print(f"[red]{escape(name)}: {escape(error)}[/]")
    _exit(1 if found.errors else 0)


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
        "revisit_at": row.revisit_at,
        "paused": row.paused,
        "error": row.error,
    }


@app.command()
def health(table: Table, as_json: Json = False) -> None:
    """Evaluate one table now: health and its parts, facts, verdicts."""
    with _opened() as opened:
        row = _row(opened, table)
        evaluation = evaluate_and_record(opened.world, row.ref, opened.world.clock.now())
        if evaluation is None:
            said = next((r.error for r in opened.world.store.tables() if r.ref == row.ref), None)
            raise UsageError(f"{row.ref} cannot be evaluated: {said or 'it was dropped'}")
        document = evaluation_document(evaluation)
        if as_json:
            output.print_json(document)
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
    with _opened() as opened:
        world = opened.world
        if table is not None:
            refs = [_row(opened, table).ref]
        else:
            detect(world, _catalogs(opened, None), world.clock.now())
            refs = [row.ref for row in world.store.tables() if not row.dropped]
        documents = []
        for ref in refs:
            evaluation = evaluate_and_record(world, ref, world.clock.now())
            row = next(r for r in world.store.tables() if r.ref == ref)
            document: dict[str, Any] = {"table": str(ref), "paused": row.paused, "error": row.error, "verdicts": []}
            if evaluation is not None:
                full = evaluation_document(evaluation)
                document |= {"health": full["health"], "verdicts": full["verdicts"]}
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


@app.command()
def plan(catalog: CatalogOption = None, as_json: Json = False) -> None:
    """What the next cycle would start, in order, and what would wait. Changes nothing."""
    with _opened() as opened:
        made, count = plan_now(opened.world, _catalogs(opened, catalog))
    if as_json:
        output.print_json(
            {
                "tables": count,
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
def cycle(
    catalog: CatalogOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done; change no table.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Look past the evaluation cooldown.")] = False,
    as_json: Json = False,
) -> None:
    """One pass: detect, evaluate, plan, execute, record. For cron, Airflow, Kubernetes jobs."""
    with output.progress() as tell, _opened("cycle", tell=tell) as opened:
        for line in settle_interrupted(opened.world, is_dead):
            output.ERR.print(escape(line))
        result = run_cycle(opened.world, _catalogs(opened, catalog), dry_run=dry_run, force=force)
    if as_json:
        output.print_json(output.cycle_document(result))
    else:
        output.show_cycle(result)
    code = output.exit_code([job.state for job in result.jobs])
    if result.errors:
        code = 3 if result.tables else 1
    _exit(code)


@app.command()
def run(
    table: Table,
    op: Annotated[
        str | None, typer.Option("--op", metavar="OP[,OP]", help="Operations; default: all that are due.")
    ] = None,
    sets: Sets = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would be done; change nothing.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Run though the table is paused.")] = False,
    files: Annotated[bool, typer.Option("--files", help="List the files that were rewritten or deleted.")] = False,
    as_json: Json = False,
) -> None:
    """Run operations on one table now, past cooldowns and cadence, never past guardrails or leases."""
    operations = _operations(op)
    with output.progress() as tell, _opened(command=_settings(sets), tell=tell) as opened:
        settle_interrupted(opened.world, is_dead)
        row = _row(opened, table)
        if row.paused and not force and not dry_run:
            raise UsageError(f"{row.ref} is paused ({row.paused}): `icewright resume {row.ref}`, or run with --force")
        request = Request(row.ref, operations, by_hand=True, force=force, dry_run=dry_run)
        result = execute(opened.world, request)
    if as_json:
        output.print_json(output.job_document(result, files=files))
    else:
        output.show_job(result, files=files or dry_run)
    _exit(output.exit_code([result.state]))


def _operations(text: str | None) -> tuple[Operation, ...]:
    """The named operations in the canonical order; all when none is named."""
    names = [n.strip() for n in text.split(",")] if text else list(Operation)
    if bad := [n for n in names if n not in list(Operation)]:
        raise UsageError(f"--op {bad[0]}: there is no such operation; there is: {', '.join(Operation)}")
    return tuple(op for op in Operation if op in names)


@app.command()
def history(
    table: Annotated[str | None, typer.Argument(metavar="[TABLE]", help="One table, else all.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many jobs.")] = 50,
    as_json: Json = False,
) -> None:
    """Jobs that ran, newest first."""
    with _opened() as opened:
        jobs = opened.world.store.jobs(_row(opened, table).ref if table else None, limit)
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
    job: Annotated[str, typer.Argument(metavar="RUN", help="A job id, or a beginning of it.")], as_json: Json = False
) -> None:
    """One job: operations, metrics, statements, before and after, deleted files."""
    with _opened() as opened:
        store = opened.world.store
        found = store.job(job)
        if found is None:
            raise UsageError(f"no job, or more than one, begins with {job!r}; `icewright history` lists them")
        runs = [dict(r) for r in store.runs(found.job_id)]
        deleted = list(store.deleted_files(found.job_id))
    document = output.job_row_document(found) | {"runs": runs, "files": deleted}
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
        output.rows("Changes", ("fact", "before", "after"), changes)
    if deleted:
        output.rows(
            "Files",
            ("state", "kind", "size", "path"),
            [(f["state"], f["kind"], output.size(f["bytes"]), f["path"]) for f in deleted],
        )


@app.command()
def cancel(job: Annotated[str, typer.Argument(metavar="JOB")]) -> None:
    """Ask a running job to stop before its next step."""
    with _opened() as opened:
        found = opened.world.store.job(job)
        if found is None:
            raise UsageError(f"no job, or more than one, begins with {job!r}")
        if not opened.world.store.request_cancel(found.job_id):
            raise UsageError(f"job {found.job_id} does not run: it is {found.state}")
    output.OUT.print(f"job {found.job_id} was asked to stop")


@app.command()
def pause(
    table: Table, reason: Annotated[str, typer.Option("--reason", help="Shown wherever the table is.")] = "by hand"
) -> None:
    """Keep a table from being maintained by itself."""
    with _opened() as opened:
        row = _row(opened, table)
        opened.world.store.pause(row.ref, reason)
    output.OUT.print(f"{escape(str(row.ref))} is paused: {escape(reason)}")


@app.command()
def resume(table: Table) -> None:
    """Let a paused table be maintained again."""
    with _opened() as opened:
        row = _row(opened, table)
        opened.world.store.pause(row.ref, None)
    output.OUT.print(f"{escape(str(row.ref))} is {'maintained again' if row.paused else 'not paused'}")


@config_app.command("check")
def config_check(as_json: Json = False) -> None:
    """Read the configuration and say every fault."""
    path = find_config(_OPTIONS.config)
    faults: tuple[str, ...] = ()
    try:
        config = read_config(path)
    except ConfigError as error:
        faults = error.faults
    if as_json:
        output.print_json({"config": str(path), "ok": not faults, "faults": list(faults)})
    elif faults:
        for fault in faults:
            output.ERR.print(f"[red]{escape(fault)}[/]", soft_wrap=True)
    else:
        output.OUT.print(
            f"{escape(str(path))}: {len(config.catalogs)} catalog(s), {len(config.policy.rules)} rule(s), no fault"
        )
    _exit(2 if faults else 0)


@config_app.command("explain")
def config_explain(table: Table, as_json: Json = False) -> None:
    """Every knob of a table: its value, and the level and rule that set it."""
    with _opened() as opened:
        row = _row(opened, table)
        metadata = opened.world.catalog(row.ref).load(row.ref)
        knobs = opened.world.policy().knobs_for(row.ref, metadata)
    listed = []
    for name, knob in KNOBS.items():
        origins = knobs.origins.get(name, ())
        first = origins[0] if origins else None
        listed.append(
            {
                "knob": name,
                "value": knobs[knob],
                "unit": knob.unit,
                "level": first.level if first else "default",
                "rule": first.rule if first else "",
                "note": first.note if first else "",
                "overrides": [{"level": o.level, "rule": o.rule, "value": o.value} for o in origins[1:]],
            }
        )
    if as_json:
        output.print_json({"table": str(row.ref), "knobs": listed})
        return
    lines = [
        (k["knob"], k["value"], k["unit"], k["level"], "; ".join(t for t in (k["rule"], k["note"]) if t))
        for k in listed
    ]
    output.rows(f"Knobs of {row.ref}", ("knob", "value", "unit", "level", "set by"), lines)


@config_app.command("set")
def config_set(
    scope: Annotated[
        str, typer.Argument(metavar="SCOPE", help="platform, or a pattern: lake, lake.events-*, lake.sales.orders")
    ],
    settings: Annotated[list[str], typer.Argument(metavar="KNOB=VALUE")],
) -> None:
    """Store a policy rule; it wins over the file's rules of the same level."""
    with _opened() as opened:
        match = () if scope == "platform" else parse_pattern(scope)
        if match and not any(c in match[0] for c in "*?"):
            _catalogs(opened, match[0])
        guardrails = opened.world.policy().guardrails
        new = parse_settings("config set", dict(s.partition("=")[::2] for s in settings), guardrails)
        store = opened.world.store
        old = next((r.settings for r in store.rules() if r.match == match), {})
        store.set_rule(Rule(match, {**old, **new}, "store"), opened.world.trigger.actor, opened.world.clock.now())
    output.OUT.print(f"{escape(scope)}: {escape(', '.join(f'{k} = {v}' for k, v in new.items()))}")


@app.command()
def doctor(as_json: Json = False) -> None:
    """Check the store, every catalog, its storage and Spark; say how to mend what fails."""
    from icewright.app.doctor import examine  # noqa: PLC0415 - starts Spark, and is needed here alone

    with _opened() as opened:
        checks = examine(opened)
    if as_json:
        output.print_json({"checks": [{"check": c.name, "ok": c.ok, "said": c.said} for c in checks]})
    else:
        output.rows(
            "Doctor", ("check", "result", "said"), [(c.name, "ok" if c.ok else "failed", c.said) for c in checks]
        )
    _exit(0 if all(c.ok for c in checks) else 1)


@app.command()
def demo(
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Where the lakehouse is made; default: a new folder.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Maintain until nothing is due, prove it, and end.")] = False,
    as_json: Json = False,
) -> None:
    """A lakehouse made on the spot, rotting, maintained before your eyes."""
    from icewright.app.demo.show import run_demo  # noqa: PLC0415 - brings PyIceberg's writers, needed here alone

    _exit(run_demo(directory, once=once, as_json=as_json))


@db_app.command("upgrade")
def db_upgrade() -> None:
    """Bring the state store to the newest revision."""
    upgrade_store(_config())
    output.OUT.print("the state store has the newest revision")


def _exit(code: int) -> None:
    if code:
        raise typer.Exit(code)


def main() -> None:
    """Entry point: errors of ours become one readable message and an exit code."""
    try:
        app(standalone_mode=True)
    except ConfigError as error:
        for fault in error.faults:
            output.ERR.print(f"[red]{escape(fault)}[/]", soft_wrap=True)
        sys.exit(2)
    except UsageError as error:
        output.ERR.print(f"[red]{escape(str(error))}[/]", soft_wrap=True)
        sys.exit(2)
    except IcewrightError as error:
        output.ERR.print(f"[red]{escape(str(error))}[/]", soft_wrap=True)
        sys.exit(1)
