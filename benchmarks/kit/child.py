"""A process of its own for each side, asked and answering by lines of JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

Answer = dict[str, Any]


class Child:
    """A running `python -m module`. It starts at once; the first question waits until it is ready."""

    def __init__(self, module: str, *arguments: str) -> None:
        command = [sys.executable, "-m", module, *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()  # which ends it
        self._process.wait()

    def ask(self, what: str, **more: Any) -> Answer:  # noqa: ANN401 - JSON
        """Let it do something. Raises `RuntimeError` when it failed; the traceback is on standard error."""
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the process has no pipes")
        self._process.stdin.write(json.dumps({"what": what, **more}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args!r} ended")
        answer: Answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer


def serve(handlers: Mapping[str, Callable[..., Answer]]) -> None:
    """The child's side: answer until the parent is gone. What others print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = handlers[request.pop("what")](**request)
        except Exception as error:  # noqa: BLE001 - the parent ends the benchmark
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {str(error)[:500]}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


@dataclass
class Measured:
    """Wall and processor seconds, and the peak resident memory, of some processes together."""

    pids: tuple[int, ...]
    seconds: float = 0.0
    cpu: float = 0.0
    peak_mib: float = 0.0

    def answer(self, **more: Any) -> Answer:  # noqa: ANN401 - JSON
        """As a child answers."""
        return {"s": self.seconds, "cpu": self.cpu, "mib": self.peak_mib, **more}


@contextmanager
def measured(pids: Iterable[int] = ()) -> Iterator[Measured]:
    """Measure the block; the kernel forgets the processes' earlier peaks first."""
    found = Measured((os.getpid(), *pids))
    for pid in found.pids:
        Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")
    before, started = sum(map(_cpu, found.pids)), time.perf_counter()
    try:
        yield found
    finally:
        found.seconds = time.perf_counter() - started
        found.cpu = sum(map(_cpu, found.pids)) - before
        found.peak_mib = sum(map(_high_water, found.pids))


def _cpu(pid: int) -> float:
    said = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(said[11]) + int(said[12])) / os.sysconf("SC_CLK_TCK")


def _high_water(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024
