"""Commands that try policies out: simulate, config test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, assert_never

import typer

from icewright.app import output
from icewright.app.cli.base import (
    OPTIONS,
    Json,
    Sets,
    app,
    config_app,
    leave,
    open_application,
    parse_knobs,
    split_settings,
    write_file,
)
from icewright.app.cli.completing import complete_table
from icewright.core.errors import UsageError
from icewright.core.words import count

if TYPE_CHECKING:
    from icewright.app.config import Config
    from icewright.app.simulating import GeneratedFleet, Origin, Progress, ReplayedFleet
    from icewright.core.simulation.meter import Result
    from icewright.core.simulation.run import Span
    from icewright.core.simulation.trace import Trace
    from icewright.core.simulation.writes import Source

CONFIG = "config"  # the name of the configuration's own policy
_AFTER_TRACE = timedelta(days=1)  # is simulated too, so that the work for the last commits is seen
_MAX_TABLES = 1_000_000
_MAX_DAYS = 3660  # ten years
_MAX_MINUTES = 7 * 24 * 60


_Tables = Annotated[
    list[str] | None,
    typer.Option(
        "--table",
        metavar="TABLE",
        help="The history of a table, as its snapshots tell it.",
        autocompletion=complete_table,
    ),
]

_TableCount = Annotated[
    int | None,
    typer.Option(
        "--tables",
        metavar="N",
        min=1,
        max=_MAX_TABLES,
        help="Of a generated fleet; default: 1000, or as many as it has.",
    ),
]
_Days = Annotated[
    int | None,
    typer.Option(
        "--days",
        metavar="N",
        min=1,
        max=_MAX_DAYS,
        help="Default: 7, of fleets by month 25; of recorded commits until a day after the last one.",
    ),
]


@app.command()
def simulate(  # noqa: PLR0913, PLR0917 - each is an option, given by its name
    trace: Annotated[
        Path | None,
        typer.Argument(metavar="TRACE", help="Commits, one JSON object a line; default: a generated fleet."),
    ] = None,
    table: _Tables = None,
    fleet: Annotated[
        str | None, typer.Option("--fleet", metavar="KIND", help="The kind of generated fleet; default: mixed.")
    ] = None,
    tables: _TableCount = None,
    days: _Days = None,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", help="Another generated fleet of the same kind.")
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option("--compare", metavar="NAME[,NAME]", help="cron, default, config, presets, oracle; default: two."),
    ] = None,
    every: Annotated[
        int, typer.Option("--every", metavar="MINUTES", min=1, max=_MAX_MINUTES, help="Between two detections.")
    ] = 60,
    sets: Sets = None,
    picture: Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="Draw the results over time.")] = None,
    as_json: Json = False,
) -> None:
    """Simulate what policies cost and achieve, beside cron.

    The commits are those of a trace, of tables as their snapshots tell them, or of a generated fleet.
    """
    from icewright.app.simulating import CRON, DEFAULT, ORACLE, GeneratedFleet, named_policies, simulate_all, slots
    from icewright.core.simulation.oracle import least_gb_hours

    compared = _policy_names(compare)
    policy_names = [name for name in compared if name != ORACLE]
    config = _config(policy_names)
    names = policy_names or [CRON, DEFAULT if config is None else CONFIG]
    policies = named_policies(names, config, parse_knobs("--set", split_settings("--set", sets)))
    if (trace or table) and (fleet, tables, seed) != (None, None, None):
        raise UsageError("--fleet, --tables and --seed generate a fleet: leave them out where commits are given")
    catalog = next(iter(config.catalogs), "lake") if config is not None else "lake"  # whose rules are to apply
    generated = GeneratedFleet(fleet or "mixed", tables, seed or 0, catalog)
    origin, recorded = _origin(trace, table or [], generated)
    sources, span = recorded.sources if recorded else origin.sources(), _span(recorded, days, every, generated.days)
    with _progress(names) as progress:
        results = simulate_all(origin, sources, policies, span, slots(config), progress)
    least = least_gb_hours(sources, span) if ORACLE in compared else None
    price = slots(config).gb_hour_price(sources)
    title = f"{origin}: {count(len(sources), 'table')} over {(span.end - span.begin) / timedelta(days=1):.3g} days"
    if as_json:
        output.print_json(_document(origin, sources, span, results, least, price))
    else:
        _show(title, results, least, price)
    if picture is not None:  # last, as a file that cannot be written takes no numbers away
        _draw(picture, title, results)


def _policy_names(compare: str | None) -> list[str]:
    """Return the policies that --compare names, each once; none where the option is not given."""
    if compare is None:
        return []
    names = list(dict.fromkeys(name.strip() for name in compare.split(",") if name.strip()))
    if not names:
        raise UsageError("--compare: name at least one policy, such as cron,default")
    return names


def _config(policies: Sequence[str]) -> Config | None:
    """Return the configuration that an option or a policy name asks for, or that is here when no policy is named."""
    from icewright.app.bootstrap import read_config
    from icewright.app.environment import find_config

    if OPTIONS.config is None and policies and CONFIG not in policies:
        return None
    try:
        path = find_config(OPTIONS.config)
    except UsageError:
        if OPTIONS.config is None and not policies:
            return None
        raise
    return read_config(path)


def _origin(trace: Path | None, tables: Sequence[str], generated: GeneratedFleet) -> tuple[Origin, Trace | None]:
    """Return where the commits come from, and the recorded ones."""
    from icewright.app.simulating import Recorded
    from icewright.app.strict_yaml import read_lines
    from icewright.core.simulation.fleet import FLEET_NAMES
    from icewright.core.simulation.trace import read_trace, trace_of

    if trace is not None and tables:
        raise UsageError("--table: leave it out where a trace is given, or name no trace")
    if trace is not None:
        return Recorded(trace), read_trace(str(trace), read_lines(trace))
    if tables:
        replayed = _history(tables)
        return replayed, trace_of(replayed.writes, replayed.reads_per_day)
    if generated.name not in FLEET_NAMES:
        raise UsageError(f"--fleet {generated.name}: there is no such fleet; there is: {', '.join(FLEET_NAMES)}")
    return generated, None


def _history(names: Sequence[str]) -> ReplayedFleet:
    """Return the commits of writers that the snapshots of tables tell of, and the reads that engines report."""
    from icewright.app.simulating import ReplayedFleet, reported_reads
    from icewright.core.simulation.trace import writes_of
    from icewright.core.table import TableRef

    with open_application() as opened:
        refs = [TableRef.parse(name) for name in names]
        writes = {ref: writes_of(opened.runtime.catalog(ref).load(ref)) for ref in refs}
        reads = reported_reads(opened.runtime, refs)
    if silent := [str(ref) for ref, found in writes.items() if not found]:
        raise UsageError(f"--table {silent[0]}: no snapshot tells of a writer's commit; record them as a trace")
    return ReplayedFleet(writes, reads)


def _span(recorded: Trace | None, days: int | None, every: int, generated_days: int) -> Span:
    from icewright.app.simulating import BEGIN
    from icewright.core.simulation.run import Span

    begin = BEGIN if recorded is None else recorded.first.replace(minute=0, second=0, microsecond=0)
    last = begin + timedelta(days=generated_days) if recorded is None else recorded.last + _AFTER_TRACE
    return Span(begin, begin + timedelta(days=days) if days else last, timedelta(minutes=every))


@contextmanager
def _progress(names: Sequence[str]) -> Iterator[Progress]:
    """Yield a bar for each policy on a terminal; elsewhere a line is printed when a policy is done."""
    from icewright.app.progress_bars import policy_bars

    console = output.console(stderr=True)
    if console.is_terminal:
        with policy_bars(console, names) as bars:
            yield bars
        return
    done: set[str] = set()

    def line(name: str, share: float) -> None:
        if share >= 1 and name not in done:
            done.add(name)
            output.note(f"icewright: simulated policy={name}")

    yield line


def _draw(path: Path, title: str, results: Mapping[str, Result]) -> None:
    from icewright.app.simulating import svg

    write_file("--svg", path, svg(title, results))


def _document(
    origin: Origin,
    sources: Sequence[Source],
    span: Span,
    results: Mapping[str, Result],
    least: float | None,
    price: float | None,
) -> dict[str, Any]:
    from icewright.app.simulating import ORACLE, GeneratedFleet, Recorded, ReplayedFleet

    match origin:
        case Recorded():
            of: dict[str, Any] = {"trace": str(origin.path)}
        case ReplayedFleet():
            of = {"recorded": [str(ref) for ref in origin.writes]}
        case GeneratedFleet():
            of = {"fleet": origin.name, "seed": origin.seed}
        case _:
            assert_never(origin)
    return {
        **of,
        "tables": len(sources),
        "begin": span.begin,
        "end": span.end,
        "every_minutes": span.every / timedelta(minutes=1),
        "gb_hour_price": price,
        "policies": {
            **{name: _rounded(asdict(result)) for name, result in results.items()},
            **({} if least is None else {ORACLE: {"total_gb_hours": round(least, 4)}}),
        },
    }


def _rounded(value: Any) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list | tuple) else value


def _show(title: str, results: Mapping[str, Result], least: float | None, price: float | None) -> None:
    """Print the measures side by side, the GB-hours by operation, and each policy beside cron and the least cost."""
    from icewright.app.simulating import CRON, gb_hours, measured

    columns = [output.Column(name, right=True) for name in results]
    output.rows(title, (output.Column(""), *columns), measured(results, price))
    operations = dict.fromkeys(op for result in results.values() for op in result.gb_hours_by_operation)
    spent = [
        (op, *(f"{gb_hours(r.gb_hours_by_operation.get(op, 0))} ({r.runs.get(op, 0):,})" for r in results.values()))
        for op in operations
    ]
    output.rows("GB-hours (and runs) by operation", (output.Column("operation"), *columns), spent)
    cron = results.get(CRON)
    for name, result in results.items():
        if cron is not None and name != CRON:
            spending = f"{result.gb_hours / cron.gb_hours:.0%}" if cron.gb_hours else "-"
            files = f"{result.average_files / cron.average_files:.0%}" if cron.average_files else "-"
            output.echo(f"{output.escape(name)}: {spending} of cron's GB-hours, {files} of its files on average")
        if least:
            times = result.total_gb_hours / least
            output.echo(f"{output.escape(name)}: {times:.2f} times the least GB-hours with readers of any schedule")


@config_app.command("test")
def config_test(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Tests of policies, as YAML.")], as_json: Json = False
) -> None:
    """Run tests of the policy: tables, tick by tick, with the expected operations."""
    from icewright.app.strict_yaml import read_yaml
    from icewright.core.simulation.scenario import policy_failures, read_policy_tests

    tests = read_policy_tests(read_yaml(file))
    config = None if OPTIONS.config is None and all(t.rules is not None for t in tests) else _config([CONFIG])
    policy = config.policy if config is not None else None
    failures = [policy_failures(test, policy) for test in tests]
    failed = sum(map(bool, failures))
    if as_json:
        results = [
            {"name": test.name, "ok": not messages, "failures": list(messages)}
            for test, messages in zip(tests, failures, strict=True)
        ]
        output.print_json({"file": str(file), "ok": not failed, "tests": results})
    else:
        for test, messages in zip(tests, failures, strict=True):
            output.echo(f"{'[red]failed[/]' if messages else '[green]passed[/]'}  {output.escape(test.name)}")
            for failure in messages:
                output.echo(f"        {output.escape(failure)}")
        output.echo(f"{len(tests) - failed} passed, {failed} failed")
    leave(1 if failed else 0)
