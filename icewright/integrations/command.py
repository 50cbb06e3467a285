"""The command line of Icewright, called from a process of somebody else's."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

DONE, FAILED, WRONG, PARTIAL = 0, 1, 2, 3  # exit codes


class CommandFailed(Exception):
    """The command did not do what it was asked to."""


class CommandWrong(CommandFailed):
    """The command or its configuration is wrong: trying again cannot help."""


@dataclass
class Icewright:
    """An installation of Icewright: its program, and the configuration to use."""

    executable: str = "icewright"
    config: str | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    _running: subprocess.Popen[str] | None = field(default=None, init=False, repr=False)

    def __call__(self, *arguments: str, names: Sequence[str] = (), partial_fails: bool = True) -> Any:  # noqa: ANN401
        """Return what the command prints as JSON; its log goes where ours goes. `names` are never taken for options.

        Raises `CommandFailed` by the exit code: a part that failed counts as failure, unless that is not wanted.
        """
        config = ("--config", self.config) if self.config else ()
        command = [self.executable, *config, *arguments, "--json", *(("--", *names) if names else ())]
        try:
            self._running = subprocess.Popen(  # noqa: S603 - who configures it may run programs anyway
                command,
                stdout=subprocess.PIPE,
                env={**os.environ, **self.env},  # noqa: TID251 - handed on
                text=True,
            )
        except OSError as error:
            raise CommandWrong(f"{self.executable} cannot be started: {error.strerror}") from error
        with self._running:
            printed, _ = self._running.communicate()
        code = self._running.returncode
        if code == WRONG:
            raise CommandWrong(f"icewright {arguments[0]}: the command or its configuration is wrong; see the log")
        try:
            document = json.loads(printed)
        except ValueError:
            raise CommandFailed(f"icewright {arguments[0]} ended with {code}; see the log") from None
        if code != DONE and not (code == PARTIAL and not partial_fails):
            raise CommandFailed(f"icewright {arguments[0]} ended with {code}: {_why(document)}")
        return document

    def stop(self) -> None:
        """End a running command. What it leaves is settled by the next one."""
        if self._running is not None and self._running.poll() is None:
            self._running.terminate()


def maintenance(
    table: str | None, operations: Sequence[str], catalog: str | None, settings: Mapping[str, Any], *, dry_run: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Arguments and names of `run` for one table, else of `cycle` for all."""
    dry = ("--dry-run",) if dry_run else ()
    if table is None:
        return ("cycle", *dry, *(("--catalog", catalog) if catalog else ())), ()
    sets = (part for name, value in settings.items() for part in ("--set", f"{name}={value}"))
    return ("run", *dry, *(("--op", ",".join(operations)) if operations else ()), *sets), (table,)


def idle(document: Mapping[str, Any]) -> bool:
    """Return whether there was nothing to do."""
    jobs = document.get("jobs", [document])
    return all(job["state"] == "skipped" for job in jobs)


def _why(document: Mapping[str, Any]) -> str:
    """Return the summaries of what did not succeed."""
    jobs = [job for job in document.get("jobs", [document]) if job.get("state") not in ("succeeded", "skipped")]
    said = [f"{job.get('table')}: {job.get('summary')}" for job in jobs]
    said += [f"{e['source']}: {e['error']}" for e in document.get("errors", ())]
    return "; ".join(said) or "see the log"
