"""Hours of real commits and jobs on a virtual clock, and their simulation."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.spark
@pytest.mark.external
@pytest.mark.nightly
def test_a_real_day_goes_as_it_is_simulated() -> None:
    """Files, on average and at the end, and bytes are within a quarter of the simulated ones."""
    command = [sys.executable, "-m", "benchmarks.real_day", "--quick"]
    line = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=600).stdout
    found = json.loads(line)
    assert found["measured"]["seconds"] > 0
    assert all(0.8 < found["ratios"][name] < 1.25 for name in ("average_files", "final_files", "bytes")), found
