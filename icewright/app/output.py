"""Printing of commands: one JSON document, or tables that fit the terminal; progress on standard error.

Names, reasons and errors come from catalogs and files of others: control characters in them are printed escaped, so
that they cannot drive the terminal.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

from icewright.app import environment
from icewright.core import words

if TYPE_CHECKING:  # Rich takes a tenth of a second to load, which `--help` and `--json` do not need
    from rich.console import Console

    from icewright.flow.runtime import Listener

PLAIN_WIDTH = 160  # of output that is piped or logged, unless COLUMNS is set
_PATIENCE = 2.0  # seconds of silence
#: Control characters but tab and newline.
_CONTROL = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f{words.INVISIBLE}]")
_UNESCAPED = re.compile(f"[\x7f-\x9f{words.INVISIBLE}]")

STYLES = {
    **dict.fromkeys(("not_due", "succeeded", "committed", "healthy", "ok"), "green"),
    **dict.fromkeys(("due", "partial", "deferred", "cancelled", "warning", "paused", "planned"), "yellow"),
    **dict.fromkeys(("failed", "interrupted", "critical", "unreadable", "blocked"), "red"),
    **dict.fromkeys(("blocked", "unsupported"), "magenta"),
    **dict.fromkeys(("running", "busy"), "cyan"),
    "skipped": "dim",
}


@cache
def console(*, stderr: bool = False) -> Console:
    """Return the console of standard output or standard error."""
    from rich.console import Console

    detected = Console(stderr=stderr, highlight=False)
    if detected.is_terminal:
        return detected
    return Console(stderr=stderr, highlight=False, width=get_terminal_size((PLAIN_WIDTH, 24)).columns)


@contextmanager
def paged() -> Iterator[None]:
    """Show what the block prints by the pager of the terminal, once it is whole, where it is longer than the screen."""
    program = environment.pager()
    if program is None or not (sys.stdin.isatty() and sys.stdout.isatty()):
        yield
        return
    try:
        with console().capture() as printed:
            yield
    except KeyboardInterrupt:
        raise
    except BaseException:
        _page(program, printed.get())
        raise
    _page(program, printed.get())


def _page(program: str, text: str) -> None:
    if text.count("\n") < console().height or not _is_paged(program, text):
        sys.stdout.write(text)


def _is_paged(program: str, text: str) -> bool:
    """Return whether the pager could be started; Ctrl-C is for it alone while it runs."""
    import subprocess

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        env = environment.with_less_options()
        subprocess.run(shlex.split(program), input=text.encode(), env=env, check=False)  # noqa: S603 - the user's own
    except OSError:
        return False
    finally:
        signal.signal(signal.SIGINT, before)
    return True


def open_closed_streams() -> None:
    """Let standard input, output and error be those of the null device where the caller closed them, as by `>&-`."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115, PTH123 - until the process ends


def escape(text: object) -> str:
    """Return text on one line that Rich's markup leaves as it is."""
    from rich.markup import escape as escaped

    return escaped(words.one_line(str(text)))


def printable(text: str) -> str:
    r"""Return text with its control characters as escapes, such as `\x1b`; tabs and newlines stay."""
    return _CONTROL.sub(words.escaped, text)


def echo(markup: str) -> None:
    """Print a line in Rich's markup on standard output."""
    console().print(printable(markup), soft_wrap=not console().is_terminal)


def error(text: object) -> None:
    """Print a plain message on standard error, in red."""
    console(stderr=True).print(_message(text), style="red", markup=False, soft_wrap=True)


def note(text: object) -> None:
    """Print a plain message on standard error."""
    console(stderr=True).print(_message(text), markup=False, soft_wrap=True)


def _message(text: object) -> str:
    """Return a message whose further lines are indented, so that none looks like a message of its own."""
    return "\n  ".join(line.removeprefix("  ") for line in printable(str(text)).split("\n"))


def print_json(document: object) -> None:
    """Print one JSON document on standard output, and nothing else."""
    sys.stdout.write(printable_json(json.dumps(document, indent=2, default=_plain, ensure_ascii=False)) + "\n")


def show(document: Any, as_json: bool, view: Callable[..., None], **options: Any) -> None:  # noqa: ANN401 - JSON
    """Print a document as JSON, or as `view` shows it to people."""
    if as_json:
        print_json(document)
    else:
        view(document, **options)


def printable_json(text: str) -> str:
    """Return JSON with control and invisible characters as escapes; encoders leave DEL, C1 and more as they are."""
    return _UNESCAPED.sub(lambda match: json.dumps(match[0])[1:-1], text)


def _plain(value: object) -> object:
    return value.isoformat() if isinstance(value, datetime) else str(value)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Cells stay on one line unless `wrap` is set. Where the terminal is narrow, the column with the highest `rank` is
    left out first; columns of rank 0 always stay.
    """

    name: str
    wrap: bool = False
    rank: int = 0
    right: bool = False


def rows(title: str, columns: Sequence[str | Column], lines: Sequence[Sequence[object]]) -> None:
    """Print a table that fits the terminal. A column that is given by its name alone wraps its text."""
    if not lines:
        echo(f"{escape(title)}: none")
        return
    from icewright.app.terminal_tables import print_table

    shape = [Column(column, wrap=True) if isinstance(column, str) else column for column in columns]
    print_table(title, shape, [[cell(value) for value in line] for line in lines])


def cell(value: object) -> str:
    """Return a value as a cell shows it: `-` for None, times to the second, four digits of a fraction."""
    match value:
        case None:
            return "-"
        case datetime():
            return moment(value)
        case float():
            return words.figure(value)
    return words.one_line(str(value))


def styled(word: str) -> str:
    """Return a word that names a state as markup in the state's colour."""
    style = STYLES.get(word)
    return f"[{style}]{word}[/]" if style else escape(word)


def details(event: Mapping[str, Any]) -> str:
    """Return the details of an event as `name=value`."""
    texts = {name: ",".join(map(str, value)) if isinstance(value, list) else value for name, value in event.items()}
    return " ".join(f"{name}={text}" for name, text in texts.items() if text not in (None, ""))


def moment(at: datetime | str | None) -> str:
    """Return a time in UTC to the second; `at` may be in ISO 8601, as the API has it."""
    if at is None:
        return "-"
    parsed = datetime.fromisoformat(at) if isinstance(at, str) else at
    return f"{parsed if parsed.tzinfo is None else parsed.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def size(count: float | None) -> str:
    """Return a number of bytes in a unit that suits it."""
    return "-" if count is None else words.byte_size(count)


def cost(document: Mapping[str, Any]) -> str:
    """Return a predicted cost in GB-hours, and in money where there is a price; nothing where nothing is due."""
    return _priced(document["cost_gb_hours"], document.get("cost_money")) if "cost_gb_hours" in document else ""


def spent(job: Mapping[str, Any]) -> str:
    """Return what the runs of a job took in GB-hours, and in money where there is a price; nothing before a run."""
    return _priced(job["gb_hours"], job["money"]) if job["gb_hours"] else ""


def _priced(gb_hours: float, money: float | None) -> str:
    return words.decimal(gb_hours) + ("" if money is None else f" ({words.decimal(money)} in money)")


@contextmanager
def waiting_for(catalogs: Sequence[str]) -> Iterator[None]:
    """Say on a terminal, on standard error, that the block asks catalogs, once that takes a while.

    It is a line that stays: a spinner hides the cursor, also when the command is ended by force.
    """
    text = f"waiting for catalogs: {', '.join(catalogs)} (at most detect.timeout_seconds)"
    late = threading.Timer(_PATIENCE, note, [text])
    late.daemon = True
    if sys.stderr.isatty():
        late.start()
    try:
        yield
    finally:
        late.cancel()


@contextmanager
def progress() -> Iterator[Listener]:
    """Yield a listener that shows bars on a terminal, and writes log lines elsewhere, on standard error."""
    if not sys.stderr.isatty():
        from icewright.app import logs

        yield logs.listener()
        return
    from icewright.app.progress_bars import job_bars

    with job_bars(console(stderr=True)) as listener:
        yield listener
