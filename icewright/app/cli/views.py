"""Documents as people read them: tables that fit the terminal, ids on one line, times in UTC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from posixpath import commonprefix
from typing import Any

from icewright.app import output
from icewright.app.cli.verdict_views import show_ignored, show_verdicts
from icewright.app.output import Column, cost, echo, escape, moment, rows, size, spent, styled
from icewright.core.words import count

Documents = Sequence[Mapping[str, Any]]

MAX_LISTED = 20  # files or snapshots that are listed; of more the number, unless --files asks for all
_TABLE, _ID = Column("table"), Column("job")
_PLAN = (
    Column("#", right=True),
    _TABLE,
    "operations",
    Column("saves", right=True, rank=1),
    Column("GB-hours", right=True, rank=2),
    "why",
)
_TABLES = (
    _TABLE,
    Column("health", right=True),
    Column("state"),
    Column("due", wrap=True, rank=1),
    Column("files", right=True, rank=3),
    Column("size", right=True, rank=2),
    Column("last success (UTC)", rank=4),
    Column("reason", wrap=True),  # of what is unreadable, paused, busy or blocked
)
_JOBS = (
    _ID,
    _TABLE,
    Column("state"),
    Column("trigger", rank=2),
    Column("started (UTC)", rank=3),
    Column("GB-hours", right=True, rank=1),
    Column("summary", wrap=True),
)
_FILES = (Column("state"), Column("kind"), Column("size", right=True), "path")


def show_tables(tables: Documents) -> None:
    """Print tables with health, state, due operations, size and the time of the last success."""
    lines = [
        (
            t["table"],
            t["health"],
            t["state"],
            ", ".join(t["due"]),
            t["files"],
            size(t["bytes"]),
            moment(t["succeeded_at"]),
            t["error"] or t["paused"] or (f"job {t['job']}" if t["job"] else t.get("blocked") or ""),
        )
        for t in tables
    ]
    rows("Tables", _TABLES if any(line[-1] for line in lines) else _TABLES[:-1], lines)


def show_integrity(documents: Documents) -> None:
    """Print how many files of each table were checked, and those at fault with the snapshots that need them."""
    for document in documents:
        if document["error"] is not None:
            echo(f"[bold]{escape(document['table'])}[/]: [red]{escape(document['error'])}[/]")
            continue
        checked = f"{document['files']:,} files of {count(document['snapshots'], 'snapshot')}"
        if document["unread"]:
            path, why = next(iter(document["unread"].items()))
            checked += f", {count(len(document['unread']), 'file')} not read ({escape(path)}: {escape(why)})"
        if not document["faults"]:
            echo(f"[bold]{escape(document['table'])}[/]: {checked}, [green]no fault[/]")
            continue
        echo(f"[bold]{escape(document['table'])}[/]: {checked}, [red]{len(document['faults'])} at fault[/]")
        for fault in document["faults"]:
            ids = f"; snapshots {', '.join(map(str, fault['snapshot_ids']))}" if fault["snapshot_ids"] else ""
            echo(f"  {fault['kind']} {fault['file']} {escape(fault['path'])}: {escape(fault['detail'])}{ids}")


def show_plan(document: Mapping[str, Any]) -> None:
    """Print the jobs to start, with what each saves and costs, and the operations that wait."""
    jobs = [
        (number, job["table"], ", ".join(job["operations"]), size(job["benefit_mb"] * 1024**2), cost(job), job["why"])
        for number, job in enumerate(document["jobs"], 1)
    ]
    rows("To start now", _PLAN, jobs)
    _show_waiting(document["deferred"])
    _show_errors(document.get("errors", ()))


def show_cycle(document: Mapping[str, Any]) -> None:
    """Print the funnel of a cycle, its jobs, the operations that wait, and the errors."""
    echo(" > ".join(f"[bold]{document['funnel'][stage]}[/] {stage}" for stage in ("tables", "changed", "due", "run")))
    if document["jobs"]:
        lines = [(j["table"], j["state"], j["summary"]) for j in document["jobs"]]
        rows("Jobs", (_TABLE, Column("state"), "summary"), lines)
    _show_waiting(document["deferred"])
    _show_errors(document["errors"])


def _show_waiting(deferred: Sequence[Mapping[str, Any]]) -> None:
    """Print the operations that wait: those of a table with one reason together, a reason of all of them once."""
    waiting: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for one in deferred:
        waiting.setdefault((one["table"], one["reason"]), []).append(one)
    lines = [
        (same[0]["position"], table, ", ".join(one["operation"] for one in same), reason)
        for (table, reason), same in waiting.items()
    ]
    columns = (Column("place", right=True, rank=1), _TABLE, "operations", "reason")
    if len(lines) > 1 and len({reason for _, reason in waiting}) == 1:
        rows(f"Waiting: {deferred[0]['reason']}", columns[:-1], [line[:-1] for line in lines])
    elif lines:
        rows("Waiting", columns, lines)


def _show_errors(errors: Sequence[Mapping[str, str]]) -> None:
    if errors:
        rows("Errors", (Column("source"), "error"), [(e["source"], e["error"]) for e in errors])


def show_job(document: Mapping[str, Any], *, files: bool) -> None:
    """Print the operations of a job that has just run, or of a dry run with the files that it would delete."""
    dry_run, job_id = document["dry_run"], document["job_id"]
    done = f"{document['state']}  job {job_id}" if job_id else document["state"]
    title = f"{document['table']}: {'dry run, nothing was changed' if dry_run else done}"
    if not document["operations"]:
        echo(f"{escape(title)}: {escape(document.get('reason') or document['summary'])}")
        return
    states = {"committed": "planned"} if dry_run else {}
    lines = [(o["operation"], states.get(o["state"], o["state"]), o["summary"]) for o in document["operations"]]
    rows(title, (Column("operation"), Column("state"), "summary"), lines)
    for operation in document["operations"]:
        name = operation["operation"]
        for note in operation.get("notes") or ():
            echo(f"  {name}: {escape(note)}")
        if dry_run and operation.get("kept"):
            retained = [(pin["snapshot_id"], pin["by"]) for pin in operation["kept"]]
            rows(f"{name}: old snapshots that stay", (Column("snapshot"), "kept by"), retained)
        if (files or dry_run) and operation.get("files"):
            show_files(f"{name}: files", operation["files"], _FILES[1:], everything=files)


def show_files(title: str, files: Documents, columns: Sequence[Column | str], *, everything: bool) -> None:
    """Print files, or the first of many with their number and the sum of the known sizes."""
    listed = files if everything or len(files) <= MAX_LISTED else files[:MAX_LISTED]
    names = [column if isinstance(column, str) else column.name for column in columns]
    folder = commonprefix([f["path"] for f in listed]).rpartition("/")[0] if len(listed) > 1 else ""
    shown = [{**f, "size": size(f["bytes"]), "path": f["path"].removeprefix(f"{folder}/")} for f in listed]
    lines = [[f[name] for name in names] for f in shown]
    rows(f"{title} below {folder}/" if folder else title, columns, lines)
    if len(listed) < len(files):
        sizes = [f["bytes"] for f in files if f["bytes"] is not None]
        least = "" if len(sizes) == len(files) else "at least "
        echo(f"{len(files):,} files, {least}{size(sum(sizes))}; --files lists all")


def show_jobs(jobs: Documents) -> None:
    """Print the jobs of the history, newest first."""
    names = ("job_id", "table", "state", "trigger")
    lines = [(*(j[name] for name in names), moment(j["started"]), spent(j), j["summary"]) for j in jobs]
    rows("Jobs", _JOBS, lines)


def show_job_detail(document: Mapping[str, Any], *, files: bool) -> None:
    """Print a job of the history: its runs, what expired, what waits to be deleted, its log and its files."""
    job_id, table, state = document["job_id"], document["table"], document["state"]
    by = f"  {document['trigger']} by {escape(document['actor'])}"
    echo(f"[bold]{job_id}[/]  {escape(table)}  {styled(state)}{by}")
    facts = [f"{name} {moment(document[name])}" for name in ("started", "finished") if document[name]]
    facts += [f"{took} GB-hours"] if (took := spent(document)) else []
    echo("; ".join(facts) or "not started")
    for run in document["runs"]:
        _show_run(run)
    show_removed(document["removed"], everything=files)
    if document["waiting"]:
        show_waiting(document["waiting"])
    if log := document.get("log"):
        lines = [(moment(e["at"]), e["kind"], output.details(e["details"])) for e in log]
        rows("Log", (Column("time (UTC)", rank=1), Column("event"), "details"), lines)
    if document["files"]:
        show_files("Files", document["files"], _FILES, everything=files)


def _show_run(run: Mapping[str, Any]) -> None:
    echo(f"\n{run['operation']}: {styled(run['state'])}  {escape(run['summary'])}")
    for text in (*run["notes"], *run["statements"]):
        echo(f"  {escape(text)}")
    metrics = [(name, size(value) if name.startswith("bytes") else value) for name, value in run["metrics"].items()]
    rows("Metrics", (Column("metric"), Column("value", right=True)), metrics)
    if run["partitions"]:
        names = ("partition", "files_in", "bytes_in", "files_out", "bytes_out")
        lines = [[size(p[name]) if name.startswith("bytes") else p[name] for name in names] for p in run["partitions"]]
        columns = [Column(name, wrap=name == "partition", right=name != "partition") for name in names]
        rows("Partitions", columns, lines)
    before, after = run.get("before") or {}, run.get("after") or {}
    changes = [
        (name, *(_fact(name, facts.get(name)) for facts in (before, after)))
        for name in before
        if before[name] != after.get(name)
    ]
    if changes:
        rows("Changes", (Column("fact"), "before", "after"), changes)


def _fact(name: str, value: Any) -> Any:  # noqa: ANN401 - JSON
    """Return a fact as people read it: sizes with units, and times to the second."""
    if name.endswith("bytes"):
        return size(value)
    return moment(value) if name == "last_updated" else value


def show_health(document: Mapping[str, Any]) -> None:
    """Print the health of a table with its parts, facts, verdicts and the state of its maintenance."""
    score = document["health"]
    echo(f"[bold]{escape(document['table'])}[/]  health [bold]{'unknown' if score is None else score}[/]")
    parts = [(name, part["score"], part["behind"]) for name, part in document["parts"].items()]
    rows("Parts", (Column("part"), Column("score", right=True), "because of"), parts)
    facts = {name: value for name, value in document["facts"].items() if not isinstance(value, list | dict)}
    rows("Facts", (Column("fact"), "value"), [(name, _fact(name, value)) for name, value in facts.items()])
    show_verdicts(document["verdicts"])
    lines = [
        (operation, _maintained(m), moment(m["last_run"]), m["message"])
        for operation, m in document["maintenance"].items()
    ]
    rows("Maintenance", (Column("operation"), Column("status"), Column("last run (UTC)", rank=1), "message"), lines)
    show_ignored(document["ignored_properties"])


def _maintained(maintenance: Mapping[str, Any]) -> str:
    """Return the state of the last run as its job has it; of an operation that is off or has not run, that."""
    state, status = maintenance["state"], str(maintenance["status"])
    return str(state) if state is not None and status != "Disabled" else status.replace("_", " ").lower()


def show_knobs(document: Mapping[str, Any], *, everything: bool) -> None:
    """Print the knobs of a table with the level and rule that set each; those at their defaults only on demand."""
    knobs = [k for k in document["knobs"] if everything or k["level"] != "default"]
    lines = [
        (k["knob"], k["value"], k["unit"], k["level"], "; ".join(t for t in (k["rule"], k["note"]) if t)) for k in knobs
    ]
    columns = (Column("knob"), "value", Column("unit", rank=1), Column("level", rank=2), Column("set by", wrap=True))
    rows(f"Knobs of {document['table']}", columns, lines)
    if hidden := len(document["knobs"]) - len(knobs):
        echo(f"{hidden} knobs have their defaults; --all lists them")
    show_ignored(document["ignored_properties"])


def show_undo(document: Mapping[str, Any]) -> None:
    """Print the snapshots, refs and files that an undo restored, or would restore."""
    echo(f"[bold]{escape(document['table'])}[/]  {escape(document['summary'])}")
    for text in document["not_restored"]:
        echo(f"[yellow]does not return:[/] {escape(text)}")
    for text in document["notes"]:
        echo(f"  {escape(text)}")
    if document["snapshots"]:
        lines = [(s["snapshot_id"], moment(s["at"]), s["operation"]) for s in document["snapshots"]]
        rows("Snapshots", (Column("snapshot"), Column("time (UTC)"), "operation"), lines)
    if document["refs"]:
        echo(f"Refs: {escape(', '.join(document['refs']))}")
    if document["files"]:
        echo(f"Files that are not deleted: {document['files']} ({size(document['bytes'])})")


def show_restored(results: Documents) -> None:
    """Print for each table which commits leave main, which return, and what reads otherwise."""
    for document in results:
        echo(f"[bold]{escape(document['table'])}[/]  {escape(document['summary'])}")
        for text in document["notes"]:
            echo(f"  [yellow]{escape(text)}[/]")
        for name, title in (("leaving", "Commits that leave main"), ("returning", "Commits that return")):
            lines = [
                (s["snapshot_id"], moment(s["at"]), s["operation"], _rows_of(s["summary"]))
                for s in document[name][:MAX_LISTED]
            ]
            if lines:
                hidden = len(document[name]) - len(lines)
                more = f", the newest {len(lines)} of {len(document[name])}" if hidden else ""
                rows(f"{title}{more}", (Column("snapshot"), Column("time (UTC)"), "operation", "rows"), lines)


def _rows_of(summary: Mapping[str, str]) -> str:
    changes = [
        f"{sign}{summary[name]}" for sign, name in (("+", "added-records"), ("-", "deleted-records")) if name in summary
    ]
    return " ".join(changes)


def show_removed(removed: Documents, *, everything: bool) -> None:
    """Print the snapshots and refs that the commits of an expiry removed; of many snapshots the newest."""
    for removal in removed:
        undone = f", undone at {moment(removal['undone_at'])}" if removal["undone_at"] else ""
        lines = [
            (s["snapshot_id"], moment(s["at"]), s["operation"], _rows_of(s["summary"]))
            for s in (removal["snapshots"] if everything else removal["snapshots"][-MAX_LISTED:])
        ]
        columns = (Column("snapshot"), Column("time (UTC)"), Column("operation"), "rows")
        rows(f"Expired at {moment(removal['at'])}{undone}", columns, lines)
        if len(lines) < (count := len(removal["snapshots"])):
            echo(f"{count:,} snapshots; --files lists all")
        if read := [s for s in removal["snapshots"] if s["read_at"]]:
            last = max(moment(s["read_at"]) for s in read)
            echo(f"{len(read):,} of them were read by queries in the last 14 days, last at {last}")
        for ref in removal["refs"]:
            echo(f"  {ref['type']} {escape(ref['name'])} pointed to snapshot {ref['snapshot_id']}")


def show_waiting(items: Documents) -> None:
    """Print the planned deletions, job by job."""
    lines = [
        (
            i["job_id"],
            i["table"],
            ", ".join(i["operations"]),
            i["files"],
            size(i["bytes"]),
            moment(i["delete_after"]) if i["delete_after"] else "the next reconciliation",
            i["failed"] or None,
            i["reason"] or None,
        )
        for i in items
    ]
    columns = (
        _ID,
        _TABLE,
        Column("operation", wrap=True, rank=2),
        Column("files", right=True),
        Column("size", right=True, rank=1),
        Column("until (UTC)"),
        Column("failed", right=True, rank=1),
        Column("why", wrap=True, rank=1),
    )
    rows("Planned deletions", columns, lines)


def show_alerts(alerts: Documents) -> None:
    """Print alerts, newest first, with the channels that were notified."""
    lines = []
    for alert in alerts:
        over = " (over)" if alert["resolved_at"] else ""
        channels = {t["channel"] for t in alert["tellings"] if not t["resolved"] and t["told_at"]}
        notified = ", ".join(sorted(channels)) or None
        raised = f"{moment(alert['raised_at'])}{over}"
        number = alert["id"], alert["severity"], alert["rule"], alert["subject"]
        lines.append((*number, raised, notified, _acknowledged(alert), alert["message"]))
    columns = (
        Column("id", right=True),
        Column("severity"),
        Column("rule"),
        Column("subject", wrap=True),
        Column("raised (UTC)", rank=1),
        Column("notified", wrap=True, rank=2),
        Column("acknowledged", wrap=True, rank=1),
        "message",
    )
    rows("Alerts", columns, lines)


def _acknowledged(alert: Mapping[str, Any]) -> str | None:
    if (given := alert["acknowledgement"]) is None:
        return None
    silent = f", silent until {moment(given['silent_until'])}" if given["silent_until"] else ""
    return f"by {given['author']}{silent}{': ' if given['note'] else ''}{given['note']}"


def _is_quiet(job: Mapping[str, Any]) -> bool:
    """Return whether a job of a vacuum succeeded without finding a snapshot or a file to remove."""
    found = ("snapshots_expired", "refs_removed", "orphans_found", "files_deleted", "files_waiting", "files_failed")
    metrics = [operation["metrics"] for operation in job["operations"]]
    return job["state"] == "succeeded" and not any(metric.get(name) for metric in metrics for name in found)


def show_vacuum(document: Mapping[str, Any]) -> None:
    """Print the sums, metrics and errors of a vacuum, and the tables on which something was done or kept it off."""
    if document["state"] == "started":
        echo(f"The service vacuums {escape(document['catalog'])}: `icewright history` lists the jobs.")
        return
    deleted = "dry run, nothing was changed; would delete" if document["dry_run"] else "deleted"
    files = f"{count(document['deleted_files_count'], 'file')}, {size(document['deleted_bytes'])}"
    echo(f"[bold]Vacuum of {escape(document['catalog'])}[/]: {deleted} {files}")
    rows("Metrics", (Column("metric"), Column("value", right=True)), list(document["metrics"].items()))
    lines = [(j["table"], j["state"], j["summary"]) for j in document["jobs"] if not _is_quiet(j)]
    if lines:
        rows("Tables", (_TABLE, Column("state"), "summary"), lines)
    if quiet := len(document["jobs"]) - len(lines):
        echo(f"Nothing to do on {quiet:,} of {count(len(document['jobs']), 'table')}")
    for line in [document["reason"], *(f"{e['subject']}: {e['error']}" for e in document["errors"])]:
        if line:
            echo(escape(line))
