"""How `make mutants` runs tests: each mutant in a fork of one pytest session that has collected every test already.

mutmut starts a pytest for each mutant, which costs more than most of the tests do.
"""

from __future__ import annotations

import os
import resource
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import Phase, settings
from mutmut.configuration import config
from mutmut.runners.harness import PytestRunner, TestRunner
from mutmut.state import state
from mutmut.utils.file_utils import change_cwd
from mutmut.workers.isolation import ForkServerRunner

_KILLERS = Path("killers.txt")  # a line for each mutant that was killed: its function, and the test
_SLACK_SECONDS = 5  # of a processor, beside thrice what the tests took
_WAITING = 20  # how many times longer a test may take where others keep the processors busy


class Collected(TestRunner):
    """Runs tests of a session as it stands; only a fork may, which ends after it."""

    def __init__(self, session: pytest.Session) -> None:
        self._items: Mapping[str, pytest.Item] = {item.nodeid: item for item in session.items}

    def run_tests(self, *, mutant_name: str | None, tests: Iterable[str]) -> int:
        """Run the tests in their order until one fails: 1 when one does."""
        tests = list(tests)
        limit = int(time.process_time() + 3 * seconds(tests)) + _SLACK_SECONDS
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))
        os.environ["PYTEST_DEBUG_TEMPROOT"] = root = tempfile.mkdtemp(prefix="mutant-")
        try:
            with change_cwd("mutants"):
                items = [self._items[test] for test in tests]
                for item, following in zip(items, [*items[1:], None], strict=True):
                    if any(report.failed for report in runtestprotocol(item, log=False, nextitem=following)):
                        with _KILLERS.open("a", encoding="utf-8") as killers:
                            killers.write(f"{_function(mutant_name)}\t{item.nodeid}\n")
                        return 1
            return 0
        finally:
            shutil.rmtree(root, ignore_errors=True)


class Unchanged(PytestRunner):
    """Runs tests on code without a mutant, and names those that fail, whose output mutmut hides."""

    def execute_pytest(self, params: list[str], plugins: Sequence[object] = (), **options: object) -> int:
        """Run pytest; when it measures the tests, which is when mutmut has a plugin, print each failure on stderr."""
        return super().execute_pytest(params, plugins=[*plugins, _Failures()] if plugins else [], **options)


class _Failures:
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            print(f"\n{report.nodeid} fails on code without a mutant:\n{report.longreprtext}", file=sys.__stderr__)


class Runner(ForkServerRunner):
    """A fork server of mutmut inside of a pytest session.

    A mutant meets the tests of its module: those first that have killed others in its function, then the fastest.
    """

    def __init__(self, max_workers: int, tests: Mapping[str, tuple[str, ...]]) -> None:
        super().__init__(max_workers, Unchanged, {}, max_restarts=0)
        self._tests = tests

    def submit(self, mutant_name: str, tests: list[str], cpu_time_limit: int, estimated_time: float) -> None:
        """Hand a mutant to the fork server."""
        del cpu_time_limit, estimated_time  # of all tests that reach the function, which are more
        prefixes = next(p for module, p in self._tests.items() if mutant_name.startswith(f"{module}."))
        kills = Counter(_killers(_function(mutant_name)))
        duration = state().duration_by_test
        chosen = sorted((t for t in tests if t.startswith(prefixes)), key=lambda test: (-kills[test], duration[test]))
        expected = seconds(chosen)
        super().submit(mutant_name, chosen, int(_WAITING * (expected + _SLACK_SECONDS)), expected)

    def run_clean_tests(self, tests: Iterable[str]) -> int:
        """Say that the tests pass: they did when it was counted which of them reach what."""
        del tests
        return 0

    def _forkserver_main(self, work_fd: int, result_fd: int) -> None:
        serve = super()._forkserver_main

        class Serving:
            def pytest_runtestloop(self, session: pytest.Session) -> bool:
                runner.test_runner_class, runner.test_runner_args = Collected, {"session": session}
                os.chdir(above)
                warnings.simplefilter(
                    "ignore", ResourceWarning
                )  # mutmut leaves a file open; tests set filters of their own
                serve(work_fd, result_fd)
                os._exit(0)

        runner, above = self, Path.cwd()
        args: list[str] = [*config().pytest_add_cli_args_test_selection, *config().pytest_add_cli_args]
        once = settings(
            database=None, deadline=None, phases=(Phase.explicit, Phase.generate)
        )  # the first failure will do
        settings.register_profile("mutants", once)
        settings.load_profile("mutants")
        with change_cwd("mutants"):
            pytest.main(["--rootdir=.", "--capture=no", "-pno:terminal", *args], plugins=[Serving()])


def _function(mutant_name: str | None) -> str:
    return (mutant_name or "").rpartition("__mutmut_")[0]


def _killers(function: str) -> Iterator[str]:
    """Yield the test that killed it for each mutant of a function so far."""
    path = Path("mutants") / _KILLERS
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        killed, _, test = line.partition("\t")
        if killed == function:
            yield test


def seconds(tests: Iterable[str]) -> float:
    """How long the tests took when nothing was changed."""
    return sum(state().duration_by_test[test] for test in tests)
