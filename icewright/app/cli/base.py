"""Shared parts of the commands: Typer applications, common options, and opening the application.

Command modules load what a command needs when it runs: `icewright --help` and shell completion import neither
adapters nor Rich (`tests/cli/test_start.py`).
"""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperGroup

from icewright import __version__
from icewright.app import output
from icewright.app.cli.auditing import AuditedCommand, Declined
from icewright.app.cli.auditing import opened as begin_change
from icewright.app.cli.completing import complete_catalog, complete_job, complete_knob, complete_table
from icewright.app.interrupts import requested
from icewright.core.errors import UsageError, requires_extra
from icewright.core.words import one_line

if TYPE_CHECKING:
    from pathlib import Path

    from icewright.app.bootstrap import Application
    from icewright.app.config import Config
    from icewright.core.guardrails import Guardrail
    from icewright.core.policy import Operation
    from icewright.core.runs import JobState
    from icewright.ports import TableRow

#: The commands in the order in which `--help` lists them, by purpose.
SECTIONS: Mapping[str, tuple[str, ...]] = {
    "Look": (
        "tables", "health", "explain", "advise", "check", "plan", "status", "history", "show", "alerts", "acknowledge",
        "deletions", "pins",
    ),
    "Maintain": (
        "cycle", "run", "vacuum", "cancel", "undo", "restore", "give-up", "pause", "resume", "pin", "unpin", "adopt",
        "repair", "erase", "copy", "register",
    ),
    "Run as a service": ("serve", "worker", "drain", "token", "archive", "db", "mcp"),
    "Set up and try out": ("demo", "init", "config", "doctor", "simulate"),
}  # fmt: skip
_LISTS = {*SECTIONS["Look"], "limits"}
_Function = TypeVar("_Function", bound=Callable[..., Any])
_AGE, _MINUTES = re.compile(r"(\d{1,6})([mhdw])"), {"m": 1, "h": 60, "d": 1440, "w": 10080}
_COLLECTION, _SELDOM = gc.get_threshold(), 1_000_000  # allocations between collections
EXAMPLES = """\
Examples:
  icewright demo --once                    maintain a neglected lakehouse
  icewright explain lake.sales.orders      why each operation is due or not
  icewright run lake.sales.orders --op compact --dry-run
  icewright history --state failed --since 7d
"""


class _Group(TyperGroup):
    """A group of commands, whose help has the first sentence of each in full."""

    def format_commands(self, _ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - Typer's context and formatter
        width = max(map(len, self.commands))
        for section, names in self.sections().items():
            with formatter.section(section):
                lines = [(name.ljust(width), self.commands[name].get_short_help_str(limit=200)) for name in names]
                formatter.write_dl(lines)

    def sections(self) -> Mapping[str, Iterable[str]]:
        """Return the names of the commands by the title under which the help lists them."""
        return {"Commands": self.commands}


class _SectionedGroup(_Group):
    """The group of all commands, whose help lists them by purpose."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401
        listed = [name for names in SECTIONS.values() for name in names if name in self.commands]
        return listed + [name for name in super().list_commands(ctx) if name not in listed]

    def sections(self) -> Mapping[str, Iterable[str]]:
        return SECTIONS

    def format_epilog(self, _ctx: Any, formatter: Any) -> None:  # noqa: ANN401
        formatter.write("\n" + EXAMPLES)


class _Command(AuditedCommand):
    """A command, whose long list is shown by a pager on a terminal."""

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401
        with output.paged() if self.name in _LISTS and not ctx.params.get("as_json") else nullcontext():
            return super().invoke(ctx)


class _App(typer.Typer):
    """An application whose commands leave entries in the audit log for what they change."""

    def command(self, name: str | None = None, **options: Any) -> Callable[[_Function], _Function]:
        return super().command(name, cls=_Command, **options)


app = _App(
    cls=_SectionedGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    help="Keep Apache Iceberg tables healthy.",
)
config_app = _App(cls=_Group, no_args_is_help=True, help="Check the configuration; explain, set and unset knobs.")
db_app = _App(cls=_Group, no_args_is_help=True, help="Migrate the state store.")
token_app = _App(cls=_Group, no_args_is_help=True, help="Create, list and revoke API tokens.")
app.add_typer(config_app, name="config")
app.add_typer(db_app, name="db")
app.add_typer(token_app, name="token")


Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done; change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
Table = Annotated[
    str,
    typer.Argument(
        metavar="TABLE",
        help="catalog.namespace.table; a part that holds a dot is quoted with backticks.",
        autocompletion=complete_table,
    ),
]
OptionalTable = Annotated[
    str | None, typer.Argument(metavar="TABLE", help="Default: all tables.", autocompletion=complete_table)
]
Job = Annotated[
    str,
    typer.Argument(
        metavar="JOB", help="A job id, or its last eight letters, or a unique prefix.", autocompletion=complete_job
    ),
]
CatalogOption = Annotated[
    str | None,
    typer.Option("--catalog", metavar="NAME", help="Only this catalog.", autocompletion=complete_catalog),
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KNOB=VALUE", help="A knob for this run only.", autocompletion=complete_knob),
]


@dataclass
class _Options:
    config: str | None = None
    server: str | None = None
    server_asked: bool = False  # by --server, not by the environment


OPTIONS = _Options()


def _version(requested: bool) -> None:
    if requested:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _main(
    context: typer.Context,
    config: Annotated[
        str | None, typer.Option("--config", metavar="FILE", help="Configuration file (or ICEWRIGHT_CONFIG).")
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(
            "--server",
            metavar="URL",
            envvar="ICEWRIGHT_SERVER",
            help="Ask this service instead; its token is in ICEWRIGHT_TOKEN.",
        ),
    ] = None,
    version: Annotated[  # noqa: ARG001 - the callback acts on it
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    OPTIONS.config, OPTIONS.server = config, server
    source = context.get_parameter_source("server")
    OPTIONS.server_asked = source is not None and source.name == "COMMANDLINE"


def configuration(*, without_catalogs: bool = False) -> Config:
    """Return the configuration that --config or the environment names, and set up logging by it.

    Raises `UsageError` where --server names a service, which the command that wants the configuration does not ask.
    """
    from icewright.app import logs
    from icewright.app.bootstrap import read_config
    from icewright.app.environment import find_config

    if OPTIONS.server_asked:
        raise UsageError("--server: this command works only where Icewright is configured: leave out --server")
    logs.configure()  # for what is logged before the configuration is read
    config = read_config(find_config(OPTIONS.config), without_catalogs=without_catalogs)
    logs.configure_by(config)
    return config


def collect_seldom() -> None:
    """Collect garbage seldom until the application is open: modules stay, and each look at them takes time."""
    gc.set_threshold(_SELDOM)


@contextmanager
def open_application(kind: str = "manual", *, without_catalogs: bool = False, **more: Any) -> Iterator[Application]:
    """Open the application over the configuration; its pools, catalogs and store close with the block."""
    from icewright.app.bootstrap import application

    with application(configuration(without_catalogs=without_catalogs), kind=kind, **more) as opened:
        if gc.get_threshold()[0] == _SELDOM:
            gc.freeze()  # what is loaded stays, and no collection looks at it again
            gc.set_threshold(*_COLLECTION)
        begin_change(opened.runtime)
        yield replace(opened, runtime=replace(opened.runtime, stopping=requested.is_set))


def reconcile(app: Application) -> None:
    """Reconcile interrupted jobs before something is changed, and say what was done."""
    from icewright.flow.reconcile import reconcile_interrupted

    for line in reconcile_interrupted(app.runtime):
        output.note(line)


def select_catalogs(app: Application, catalog: str | None) -> list[str]:
    """Return the named catalog, or all of them. Raises `UsageError` for an unknown name."""
    catalogs = sorted(app.runtime.catalogs)
    if catalog is None:
        return catalogs
    if catalog not in catalogs:
        raise UsageError(f"there is no catalog {catalog or 'with a blank name'}; there is: {', '.join(catalogs)}")
    return [catalog]


def split_settings(option: str, texts: Sequence[str] | None) -> dict[str, str]:
    """Return `knob=value` texts as a dictionary. Raises `UsageError`, which names the option."""
    pairs = [text.partition("=") for text in texts or []]
    if bad := [name for name, equals, _ in pairs if not equals]:
        raise UsageError(f"{option} {bad[0]}: write knob=value, such as compact.min_input_files=2")
    return {name.strip(): value.strip() for name, _, value in pairs}


def parse_knobs(option: str, settings: Mapping[str, str], guardrails: Sequence[Guardrail] = ()) -> dict[str, Any]:
    """Return knobs of a command line as checked values. Raises `ConfigError`, which names the option."""
    from icewright.core.layering import parse_settings

    return parse_settings(option, settings, guardrails, separator=" ")


def parse_operations(option: str, texts: Sequence[str] | None) -> list[Operation]:
    """Return the operations that an option names, each time one or several with commas. Raises `UsageError`."""
    from icewright.core.policy import Operation

    named = set()
    for name in (part.strip() for text in texts or [] for part in text.split(",")):
        try:
            named.add(Operation(name))  # takes the names of Iceberg's procedures, too
        except ValueError:
            names = ", ".join(Operation)
            raise UsageError(f"{option} {name}: there is no such operation; there is: {names}") from None
    return [operation for operation in Operation if operation in named]


def parse_since(text: str, now: datetime) -> datetime:
    """Return the time that `--since` names: an age such as 90m, 24h or 7d, or a date or time in ISO 8601 (UTC)."""
    try:
        if age := _AGE.fullmatch(text.strip()):
            return now - timedelta(minutes=int(age[1]) * _MINUTES[age[2]])
        at = datetime.fromisoformat(text.strip())
    except (ValueError, OverflowError):
        raise UsageError(f"--since {text}: write an age such as 24h or 7d, or a date such as 2026-11-24") from None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def known_table(app: Application, text: str) -> TableRow:
    """Return the store's row of a table; a table that the store does not know is looked up in its catalog."""
    from icewright.app.output import waiting_for
    from icewright.core.table import TableRef
    from icewright.core.words import near

    runtime = app.runtime
    try:
        ref = TableRef.parse(text)
    except UsageError as error:  # such as a name without its catalog
        raise UsageError(f"{error}{near(text, _known_names(app), listed=False)}") from error
    catalog = runtime.catalog(ref)
    row = runtime.store.tables.get(ref)
    if row is None or row.dropped:
        with waiting_for([ref.catalog]):
            runtime.store.tables.record_listing(ref.catalog, catalog.pointers(), runtime.clock.now())
        row = runtime.store.tables.get(ref)
    if row is None or row.dropped:
        hint = near(text, _known_names(app, ref.catalog), listed=False)
        raise UsageError(f"{ref}: the catalog has no such table; `icewright tables` lists what it has{hint}")
    return row


def _known_names(app: Application, catalog: str | None = None) -> list[str]:
    return [str(ref) for ref in app.runtime.store.tables.known(catalog)]


def write_file(option: str, path: Path, text: str) -> None:
    """Write the file that an option names, a new one for this user alone: it may hold a password, or name a person.

    Raises `UsageError` where it cannot be written.
    """
    try:
        path.touch(mode=0o600)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{option} {path}: cannot be written: {error.strerror}; name another one") from error


def require_engine(what: str) -> None:
    """Raise `UsageError` unless tables can be read: each would wait for its next turn, and nothing would be due."""
    with requires_extra("engine", what):
        import polars as pl  # noqa: F401 - the largest of the extra


def confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation on standard error, unless `yes` is set; exit with code 1 on any other answer.

    Raises `UsageError` where there is nobody to answer.
    """
    try:
        if yes or typer.confirm(one_line(question), err=True):
            return
    except typer.Abort:
        if sys.stdin.isatty():
            raise
        typer.echo(err=True)
        raise UsageError("no answer came: confirm with --yes") from None
    raise Declined(1)


def exit_code(states: Sequence[JobState | str]) -> int:
    """Return the exit code of jobs: 0 done or nothing to do, 1 all failed, 3 some failed or ended early."""
    bad = {"failed", "interrupted"}
    if states and all(state in bad for state in states):
        return 1
    return 3 if bad.union(("partial", "cancelled")).intersection(map(str, states)) else 0


def leave_unless_read(documents: Sequence[Mapping[str, Any]], errors: Sequence[str]) -> None:
    """Exit with code 1 where no table, or 3 where not every table and catalog, could be read; print the errors."""
    for error in errors:
        output.error(error)
    states = ["failed" if document["error"] else "succeeded" for document in documents]
    leave(exit_code([*states, *("failed" for _ in errors)]))


def leave(code: int) -> None:
    """Exit with a code other than 0; return when it is 0."""
    if code:
        raise typer.Exit(code)
