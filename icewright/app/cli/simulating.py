"""Commands that try policies out: simulate, config test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from icewright.app import output
from icewright.app.bootstrap import read_config
from icewright.app.cli.base import OPTIONS, Json, Sets, app, config_app, knob_settings, leave
from icewright.app.config import Config, find_config
from icewright.app.plot import svg
from icewright.app.simulating import (
    BEGIN,
    CONFIG,
    CRON,
    DEFAULT,
    MEASURES,
    Made,
    Origin,
    Recorded,
    Tell,
    named_policies,
    simulate_all,
    slots,
)
from icewright.app.strict_yaml import read_lines, read_yaml
from icewright.core.errors import UsageError
from icewright.core.simulation.fleet import FLEETS
from icewright.core.simulation.meter import Result
from icewright.core.simulation.run import Span
from icewright.core.simulation.scenario import policy_failures, read_policy_tests
from icewright.core.simulation.trace import read_trace
from icewright.core.simulation.writes import Source

_MORE = timedelta(days=1)  # after the last commit of a trace, so that its work is seen
_MOST_TABLES = 1_000_000
_MOST_DAYS = 3660  # ten years
_MOST_MINUTES = 7 * 24 * 60


@app.command()
def simulate(  # noqa: PLR0913, PLR0917 - each is an option, given by its name
    trace: Annotated[
        Path | None, typer.Argument(metavar="[TRACE]", help="Commits, one JSON object a line; else a made-up fleet.")
    ] = None,
    fleet: Annotated[str | None, typer.Option("--fleet", help=f"{', '.join(FLEETS)}; default: mixed.")] = None,
    tables: Annotated[
        int | None, typer.Option("--tables", min=1, max=_MOST_TABLES, help="Of a made-up fleet; default: 1000.")
    ] = None,
    days: Annotated[
        int | None,
        typer.Option(
            "--days", min=1, max=_MOST_DAYS, help="How long; default: 7, of a trace a day beyond its last commit."
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Another made-up fleet of the same kind.")] = None,
    compare: Annotated[
        str | None,
        typer.Option("--compare", metavar="NAME[,NAME]", help="cron, default, config, presets; default: two of them."),
    ] = None,
    every: Annotated[
        int, typer.Option("--every", min=1, max=_MOST_MINUTES, help="Minutes between two looks at what changed.")
    ] = 60,
    sets: Sets = None,
    picture: Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="Draw how it went.")] = None,
    as_json: Json = False,
) -> None:
    """What policies would cost and reach, over recorded commits or a made-up fleet, cron beside them."""
    wanted = _wanted(compare)
    config = _config(wanted)
    names = wanted or [CRON, DEFAULT if config is None else CONFIG]
    policies = named_policies(names, config, knob_settings("--set", sets))
    if trace is not None and (fleet, tables, seed) != (None, None, None):
        raise UsageError("--fleet, --tables and --seed make up a fleet: leave them out where a trace is given")
    origin, sources, span = _origin(
        trace, Made(fleet or "mixed", tables or 1000, seed or 0, _catalog(config)), days, every
    )
    with _progress(names) as tell:
        results = simulate_all(origin, sources, policies, span, slots(config), tell)
    said = f"{len(sources)} tables over {(span.end - span.begin) / timedelta(days=1):.3g} days"
    title = f"{origin}: {said}"
    if picture is not None:
        _draw(picture, title, results)
    if as_json:
        output.print_json(_document(origin, sources, span, results))
    else:
        _show(title, results)


def _wanted(compare: str | None) -> list[str]:
    """Return the policies that are named, each once; none where nothing is said."""
    if compare is None:
        return []
    names = list(dict.fromkeys(name.strip() for name in compare.split(",") if name.strip()))
    if not names:
        raise UsageError("--compare: name at least one policy, such as cron,default")
    return names


def _config(wanted: Sequence[str]) -> Config | None:
    """Return the configuration, where one is named, or asked for by name, or lies here and no policy is named."""
    if OPTIONS.config is None and wanted and CONFIG not in wanted:
        return None
    try:
        path = find_config(OPTIONS.config)
    except UsageError:
        if OPTIONS.config is None and not wanted:
            return None
        raise
    return read_config(path)


def _catalog(config: Config | None) -> str:
    """Made-up tables are those of the first catalog, so that its rules hold for them."""
    return next(iter(config.catalogs), "lake") if config is not None else "lake"


def _origin(trace: Path | None, made: Made, days: int | None, every: int) -> tuple[Origin, Sequence[Source], Span]:
    minutes = timedelta(minutes=every)
    if trace is None:
        if made.name not in FLEETS:
            raise UsageError(f"--fleet {made.name}: there is no such fleet; there is: {', '.join(FLEETS)}")
        return made, made.sources(), Span(BEGIN, BEGIN + timedelta(days=days or 7), minutes)
    found = read_trace(str(trace), read_lines(trace))
    begin = found.first.replace(minute=0, second=0, microsecond=0)
    end = begin + timedelta(days=days) if days else found.last + _MORE
    return Recorded(trace), found.sources, Span(begin, end, minutes)


@contextmanager
def _progress(names: Sequence[str]) -> Iterator[Tell]:
    """A bar for each policy on a terminal; elsewhere a line when one is done."""
    if not output.ERR.is_terminal:
        done: set[str] = set()

        def line(name: str, share: float) -> None:
            if share >= 1 and name not in done:
                done.add(name)
                output.ERR.print(f"icewright: simulated policy={escape(name)}")

        yield line
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=output.ERR, transient=True) as bars:
        tasks = {name: bars.add_task(name, total=1.0) for name in names}
        yield lambda name, share: bars.update(tasks[name], completed=share)


def _draw(path: Path, title: str, results: Mapping[str, Result]) -> None:
    try:
        path.write_text(svg(title, results), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--svg {path}: cannot be written: {error.strerror}") from error


def _document(origin: Origin, sources: Sequence[Source], span: Span, results: Mapping[str, Result]) -> dict[str, Any]:
    of = {"trace": str(origin.path)} if isinstance(origin, Recorded) else {"fleet": origin.name, "seed": origin.seed}
    return {
        **of,
        "tables": len(sources),
        "begin": span.begin,
        "end": span.end,
        "every_minutes": span.every / timedelta(minutes=1),
        "policies": {name: _rounded(asdict(result)) for name, result in results.items()},
    }


def _rounded(value: Any) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list | tuple) else value


def _show(title: str, results: Mapping[str, Result]) -> None:
    """Measures side by side, where the GB-hours went, and each policy against cron in one line."""
    lines = [(name, *(say(result) for result in results.values())) for name, say in MEASURES]
    output.rows(title, ("", *results), lines)
    operations = dict.fromkeys(op for result in results.values() for op in result.gb_hours_by_operation)
    spent = [
        (op, *(f"{r.gb_hours_by_operation.get(op, 0):.2f} ({r.runs.get(op, 0):,})" for r in results.values()))
        for op in operations
    ]
    output.rows("GB-hours (and runs) by operation", ("operation", *results), spent)
    cron = results.get(CRON)
    for name, result in results.items():
        if cron is not None and name != CRON:
            spending = f"{result.gb_hours / cron.gb_hours:.0%}" if cron.gb_hours else "-"
            files = f"{result.average_files / cron.average_files:.0%}" if cron.average_files else "-"
            output.OUT.print(f"{escape(name)}: {spending} of cron's GB-hours, {files} of its files on average")


@config_app.command("test")
def config_test(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Tests of policies, as YAML.")], as_json: Json = False
) -> None:
    """Hold the policy against what its tests expect: tables, tick by tick."""
    tests = read_policy_tests(read_yaml(file))
    config = None if OPTIONS.config is None and all(t.rules is not None for t in tests) else _config([CONFIG])
    policy = config.policy if config is not None else None
    failures = {number: policy_failures(test, policy) for number, test in enumerate(tests)}
    failed = sum(bool(found) for found in failures.values())
    if as_json:
        said = [{"name": t.name, "ok": not failures[n], "failures": list(failures[n])} for n, t in enumerate(tests)]
        output.print_json({"file": str(file), "ok": not failed, "tests": said})
    else:
        for number, test in enumerate(tests):
            output.OUT.print(f"{'[red]failed[/]' if failures[number] else '[green]passed[/]'}  {escape(test.name)}")
            for failure in failures[number]:
                output.OUT.print(f"        {escape(failure)}", soft_wrap=True)
        output.OUT.print(f"{len(tests) - failed} passed, {failed} failed")
    leave(1 if failed else 0)
