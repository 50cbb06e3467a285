"""Work in threads that a supervisor can give up, as neither a thread nor a call in the kernel can be ended.

A thread that hangs in a read of a dead mount stays for as long as the kernel likes. Its supervisor abandons the work:
others go on, and when the call returns after all, every write, deletion and commit of the thread raises `LeaseLost`.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

from icewright.core.errors import LeaseLost

_PACKAGE = __name__.partition(".")[0]
_MACHINERY = frozenset({__name__, f"{_PACKAGE}.app.worker", f"{_PACKAGE}.flow.evaluate"})  # where threads begin
_ANSWERED = tuple(
    f"{_PACKAGE}.{part}" for part in ("adapters.catalogs.", "adapters.files.", "ports.deadlines", "ports.memory")
)
_SPARK = f"{_PACKAGE}.adapters.engines.spark."
WAITS_AFTER = 5.0  # seconds without progress in a call to a catalog or to storage, after which work is said to wait
UNSCHEDULED_AFTER = 30.0  # the same of Spark, which plans for seconds before it has tasks
_MAX_THREADS = 64  # threads of one work after which ended ones are forgotten


@dataclass(frozen=True, slots=True)
class CallSite:
    """The innermost function of this package in a thread, and the file that it works on where it names one."""

    module: str
    function: str
    line: int
    path: str = ""

    def __str__(self) -> str:
        """Return the function as a person looks for it."""
        of_file = f" of {self.path}" if self.path else ""
        return f"{self.module}.{self.function} (line {self.line}){of_file}"


@dataclass(frozen=True, slots=True)
class WorkState:
    """How long a job or an evaluation has made no progress, and where its thread is; None outside of this package."""

    name: str
    table: str
    idle_seconds: float
    site: CallSite | None
    abandoned: bool

    @property
    def is_waiting(self) -> bool:
        """Return whether the work waits for an answer of a catalog or of storage, and so leaves its slot to others.

        So does work for which Spark has run no task for a while, as with a cluster that has no executor to give.
        """
        if self.site is None or self.idle_seconds < WAITS_AFTER:
            return False
        unscheduled = self.site.module.startswith(_SPARK) and self.idle_seconds >= UNSCHEDULED_AFTER
        return unscheduled or self.site.module.startswith(_ANSWERED)


@dataclass(eq=False)
class SupervisedWork:
    """Work of one or more threads: when it made progress, and whether its supervisor has abandoned it. Thread-safe."""

    name: str
    seconds: Callable[[], float] = time.monotonic
    abandoned: bool = field(default=False, init=False)
    _progressed_at: float = field(init=False)
    _threads: list[threading.Thread] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        """Count the time without progress from now on."""
        self.progress()

    def progress(self) -> None:
        """Mark that something was done."""
        self._progressed_at = self.seconds()

    def idle_seconds(self) -> float:
        """Return the seconds since the last progress."""
        return self.seconds() - self._progressed_at

    def abandon(self) -> None:
        """Bar the work's threads from every further write, deletion and commit."""
        self.abandoned = True

    def require_attended(self) -> None:
        """Raise `LeaseLost` when the work was abandoned."""
        if self.abandoned:
            raise LeaseLost(f"{self.name} was given up while its thread hung: its results do not count any more")

    def state(self, table: str) -> WorkState:
        """Return what the work, on this table, does now."""
        return WorkState(self.name, table, self.idle_seconds(), self.call_site(), self.abandoned)

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Make this the work of the current thread for the duration of the block."""
        previous = _current.work
        self._attach()
        try:
            yield
        finally:
            _current.work = previous

    def call_site(self) -> CallSite | None:
        """Return where the newest of the work's threads is now; None when all have ended."""
        frames = _current_frames()
        alive = [t for t in reversed(self._threads.copy()) if t.is_alive() and t.ident in frames]
        sites = (_call_site(frames[thread.ident or 0]) for thread in alive)
        return next((site for site in sites if site is not None), None)

    def _attach(self) -> None:
        if len(self._threads) >= _MAX_THREADS:
            self._threads = [thread for thread in self._threads if thread.is_alive()]
        self._threads.append(threading.current_thread())
        _current.work = self


_looking = threading.Lock()


def _current_frames() -> Mapping[int, FrameType]:
    """Return the frame of each thread, without a garbage collection meanwhile.

    The call holds a lock of the interpreter for which a collection may wait: then all threads stop for good, and no
    signal ends the process (CPython issue 106883).
    """
    with _looking:
        enabled = gc.isenabled()
        gc.disable()
        try:
            return sys._current_frames()  # noqa: SLF001 - documented, and the only way to see another thread
        finally:
            if enabled:
                gc.enable()


class _Current(threading.local):
    work: SupervisedWork | None = None
    catalog: str = ""


_current = _Current()


def current_work() -> SupervisedWork | None:
    """Return the work of the current thread; None in a thread without a supervisor."""
    return _current.work


@contextmanager
def catalog_context(catalog: str) -> Iterator[None]:
    """Let the current thread open paths with the storage properties of this catalog, which names them, in the block."""
    previous = _current.catalog
    _current.catalog = catalog
    try:
        yield
    finally:
        _current.catalog = previous


def current_catalog() -> str:
    """Return the catalog with whose properties the current thread opens paths; blank where that is not known."""
    return _current.catalog


def progress() -> None:
    """Mark progress of the current thread's work, and raise `LeaseLost` when the work was abandoned."""
    if (work := _current.work) is not None:
        work.require_attended()
        work.progress()


class WorkerThreads(ThreadPoolExecutor):
    """A pool of threads that belong to the work of the thread that makes the pool, and work on paths of its catalog.

    An error ends what has not begun.
    """

    def __init__(self, max_workers: int, thread_name_prefix: str = "") -> None:
        super().__init__(
            max_workers, thread_name_prefix, initializer=_attach_to, initargs=(_current.work, _current.catalog)
        )

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait for the threads, without what they have not begun when the block raised an error."""
        self.shutdown(cancel_futures=kind is not None)


def _attach_to(work: SupervisedWork | None, catalog: str) -> None:
    _current.catalog = catalog
    if work is not None:
        work._attach()  # noqa: SLF001 - of this module


def _call_site(innermost: FrameType) -> CallSite | None:
    frame: FrameType | None = innermost
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith(f"{_PACKAGE}."):
            if module in _MACHINERY:
                return None
            path = frame.f_locals.get("path")
            code = frame.f_code
            return CallSite(module, code.co_qualname, frame.f_lineno, path if isinstance(path, str) else "")
        frame = frame.f_back
    return None
