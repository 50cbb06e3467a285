"""The benchmarks as scripts: each is run as `python benchmarks/NAME.py`."""

from __future__ import annotations

import runpy
import statistics
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def test_the_benchmark_of_statistics_hides_no_module_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script finds files beside it first, and what imports `statistics` there still gets that of Python."""
    monkeypatch.setitem(sys.modules, "statistics", statistics)
    runpy.run_path(str(BENCHMARKS / "statistics.py"), run_name="statistics")
    assert Path(sys.modules["statistics"].__file__ or "").parent != BENCHMARKS
    assert sys.modules["statistics"].median([1, 3]) == 2
