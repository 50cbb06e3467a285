"""Progress bars on a terminal: one for each running job, and one for each simulated policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from icewright.core import words
from icewright.core.runs import OperationState
from icewright.flow.runtime import Listener


@contextmanager
def job_bars(console: Console) -> Iterator[Listener]:
    """Yield a listener for the events of jobs, which keeps a bar for each job that runs."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=24), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        yield _listener(bars)


def _listener(bars: Progress) -> Listener:
    tasks: dict[str, TaskID] = {}

    def text(details: Mapping[str, Any], name: str) -> str:
        return escape(words.one_line(str(details[name])))

    def listen(kind: str, details: Mapping[str, Any]) -> None:
        task = tasks.get(details.get("job_id", ""))
        match kind:
            case "job_started":
                tasks[details["job_id"]] = bars.add_task(text(details, "table"), total=len(details["operations"]))
            case "operation_started" if task is not None:
                bars.update(task, description=f"{text(details, 'table')} {details['operation']}")
            case "operation_finished":
                if task is not None:
                    bars.advance(task)
                if details["state"] is not OperationState.SKIPPED:
                    bars.console.print(f"  {text(details, 'table')}: {text(details, 'summary')}")
            case "job_finished" if task is not None:
                bars.remove_task(tasks.pop(details["job_id"]))
            case "catalog_failed" | "unreadable":
                bars.console.print(f"[red]{text(details, 'error')}[/]")

    return listen


@contextmanager
def policy_bars(console: Console, names: Sequence[str]) -> Iterator[Callable[[str, float], None]]:
    """Yield a function that takes a policy's name and the share of its simulation that is done, from 0 to 1."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        tasks = {name: bars.add_task(name, total=1.0) for name in names}
        yield lambda name, share: bars.update(tasks[name], completed=share)
