"""Runs the `icewright` command from the process of an orchestrator."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

DONE, FAILED, WRONG, PARTIAL = 0, 1, 2, 3  # exit codes


class CommandFailed(Exception):
    """The command failed, or a part of its work did."""


class CommandWrong(CommandFailed):
    """The command or its configuration is wrong: trying again cannot help."""


@dataclass
class IcewrightCommand:
    """The `icewright` program with the configuration and environment to use."""

    executable: str = "icewright"
    config: str | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    _running: subprocess.Popen[str] | None = field(default=None, init=False, repr=False)

    def __call__(self, *arguments: str, names: Sequence[str] = (), partial_fails: bool = True) -> Any:  # noqa: ANN401
        """Return the command's JSON document; its log goes to standard error. `names` are never parsed as options.

        Raises `CommandFailed` by the exit code: a partial failure counts only with `partial_fails`.
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
            raise CommandFailed(f"icewright {arguments[0]} ended with {code}: {_failure_reason(document)}")
        return document

    def stop(self) -> None:
        """End a running command; the next one reconciles its job."""
        if self._running is not None and self._running.poll() is None:
            self._running.terminate()


def maintenance(
    table: str | None, operations: Sequence[str], catalog: str | None, settings: Mapping[str, Any], *, dry_run: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return arguments and names: of `run` for one table, else of `cycle` for all."""
    dry = ("--dry-run",) if dry_run else ()
    if table is None:
        return ("cycle", *dry, *(("--catalog", catalog) if catalog else ())), ()
    sets = (part for name, value in settings.items() for part in ("--set", f"{name}={value}"))
    return ("run", *dry, *(("--op", ",".join(operations)) if operations else ()), *sets), (table,)


def idle(document: Mapping[str, Any]) -> bool:
    """Return whether there was nothing to do."""
    jobs = document.get("jobs", [document])
    return all(job["state"] == "skipped" for job in jobs)


def _failure_reason(document: Mapping[str, Any]) -> str:
    """Return the summaries of what did not succeed, or why nothing began."""
    if error := document.get("error"):
        return str(error)
    jobs = [job for job in document.get("jobs", [document]) if job.get("state") not in ("succeeded", "skipped")]
    reasons = [f"{job.get('table')}: {job.get('summary')}" for job in jobs]
    reasons += [f"{e['source']}: {e['error']}" for e in document.get("errors", ())]
    return "; ".join(reasons) or "see the log"
