"""A process of its own for each side, asked and answering by lines of JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psutil

Answer = dict[str, Any]


class Child:
    """A running `python -m module`. It starts at once; the first question waits until it is ready.

    Whatever Java it starts takes `java_options` too. Without a `launcher` the module is a program.
    """

    def __init__(
        self, module: str, *arguments: str, java_options: str = "", launcher: Sequence[str] = (sys.executable, "-m")
    ) -> None:
        command = [*launcher, module, *arguments]
        more = {"JDK_JAVA_OPTIONS": java_options} if java_options else {}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **more}
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()
        self._process.wait()

    def leave(self) -> None:
        """Ask nothing more, which ends it."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    def ask(self, what: str, **more: Any) -> Answer:
        """Let it do something. Raises `RuntimeError` when it failed; the traceback is on standard error."""
        self.begin(what, **more)
        return self.wait()

    def begin(self, what: str, **more: Any) -> None:
        """Let it do something, and `wait` for it before the next question."""
        if self._process.stdin is None:
            raise RuntimeError("the process has no pipes")
        self._process.stdin.write(json.dumps({"what": what, **more}) + "\n")
        self._process.stdin.flush()

    def wait(self) -> Answer:
        """What came of it, as `ask` says."""
        if self._process.stdout is None:
            raise RuntimeError("the process has no pipes")
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
    """Wall and processor seconds of some processes and all that they start, and their peaks of resident memory."""

    pids: tuple[int, ...]
    seconds: float = 0.0
    cpu: float = 0.0
    peak_mib: float = 0.0
    most_of_a_child_mib: float = 0.0

    def answer(self, **more: Any) -> Answer:
        """As a child answers."""
        return {"s": self.seconds, "cpu": self.cpu, "mib": self.peak_mib, "child_mib": self.most_of_a_child_mib, **more}


@contextmanager
def measured(pids: Iterable[int] = ()) -> Iterator[Measured]:
    """Measure the block; the kernel forgets the processes' earlier peaks first."""
    found = Measured((os.getpid(), *pids))
    for process in _all(found.pids):
        with suppress(FileNotFoundError, ProcessLookupError):  # a worker that was idle for long has ended
            Path(f"/proc/{process.pid}/clear_refs").write_text("5", encoding="ascii")
    before = {process: _cpu(process) for process in _all(found.pids)}
    started = time.perf_counter()
    try:
        yield found
    finally:
        found.seconds = time.perf_counter() - started
        looking = time.process_time()
        after = _all(found.pids)
        # of an idle worker that has ended meanwhile nothing is counted: Spark's daemon lets its time be forgotten
        cpu = sum(_cpu(process) - before.get(process, 0.0) for process in after)
        found.cpu = cpu - (time.process_time() - looking)  # a look at all processes of the machine is no work of theirs
        peaks = {process.pid: _high_water(process.pid) for process in after}
        found.peak_mib = sum(peaks.values())
        found.most_of_a_child_mib = max((mib for pid, mib in peaks.items() if pid not in found.pids), default=0.0)


class ProcessorTime:
    """The processor seconds of this process and of all that it started, also of those that have ended. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._most: dict[psutil.Process, float] = {}

    def seconds(self) -> float:
        """Return the seconds by now, as far as any look saw them."""
        with self._lock:
            for process in _all([os.getpid()]):
                with suppress(psutil.NoSuchProcess):
                    self._most[process] = max(self._most.get(process, 0.0), sum(process.cpu_times()[:2]))
            return sum(self._most.values())


def _all(pids: Iterable[int]) -> set[psutil.Process]:
    """The processes and their descendants, such as the Python workers of a JVM."""
    roots = [psutil.Process(pid) for pid in pids]
    return {*roots, *(child for root in roots for child in root.children(recursive=True))}


def _cpu(process: psutil.Process) -> float:
    """Its own time and that of its children that have ended."""
    with suppress(psutil.NoSuchProcess):
        return sum(process.cpu_times()[:4])
    return 0.0


def _high_water(pid: int) -> float:
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return next((int(line.split()[1]) for line in status if line.startswith("VmHWM")), 0) / 1024
