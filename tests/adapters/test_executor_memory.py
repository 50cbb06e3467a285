"""Memory of Python tasks in containers: what a pool asks for, and when its own settings are too little."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from icewright.adapters.engines.spark.classic import memory_overhead, memory_shortage

YARN, K8S = "yarn", "k8s://https://kubernetes.default.svc:443"
OVERHEAD, PYTHON, FACTOR = (
    f"spark.executor.{name}" for name in ("memoryOverhead", "pyspark.memory", "memoryOverheadFactor")
)
CORES = "spark.executor.cores"


@pytest.mark.parametrize(
    ("master", "conf", "asked", "short"),
    [
        (YARN, {}, "896m", False),
        (K8S, {CORES: "4"}, "2432m", False),
        (K8S, {CORES: "4", "spark.task.cpus": "2"}, "1408m", False),
        ("local[4]", {}, None, False),
        ("spark://one:7077", {CORES: "4"}, None, False),  # its workers do not bound executors
        (YARN, {OVERHEAD: "896"}, None, False),
        (YARN, {OVERHEAD: "895"}, None, True),
        (YARN, {OVERHEAD: "1g"}, None, False),
        (YARN, {OVERHEAD: "1g", CORES: "2"}, None, True),
        (YARN, {PYTHON: "512m"}, None, False),  # beside 384 MB
        (YARN, {PYTHON: "511m"}, None, True),
        (K8S, {FACTOR: "0.4"}, None, True),
        (K8S, {FACTOR: "0.4", "spark.executor.memory": "8g"}, None, False),
        (K8S, {"spark.kubernetes.memoryOverheadFactor": "0.9"}, None, False),
    ],
)
def test_each_task_has_its_memory(master: str, conf: Mapping[str, str], asked: str | None, short: bool) -> None:
    """Overhead is asked for where containers are bounded and nobody set it; too little of it has a remedy."""
    assert memory_overhead(master, conf).get(OVERHEAD) == asked
    found = memory_shortage(master, conf)
    assert (found is not None) is short
    assert found is None or f"set {OVERHEAD} to" in found
