"""The memory of an executor's container beside the JVM's heap, in which Python tasks rewrite as Arrow."""

from __future__ import annotations

import re
from collections.abc import Mapping

from icewright.core.rewriting import TASK_MEMORY

_OVERHEAD, _PYTHON = "spark.executor.memoryOverhead", "spark.executor.pyspark.memory"
_FACTORS = ("spark.executor.memoryOverheadFactor", "spark.kubernetes.memoryOverheadFactor")
_JVM_MB = 384  # that Spark reckons with at least
_SIZE = re.compile(r"(\d+)\s*([kmgt]?)b?", re.IGNORECASE)
_MEGABYTES = {"k": 2.0**-10, "m": 1.0, "g": 2.0**10, "t": 2.0**20}


def overhead(master: str, conf: Mapping[str, str]) -> dict[str, str]:
    """Return the setting that gives each task `compact.task_memory_mb`; nothing where the pool sets memory itself.

    YARN and Kubernetes end a container that takes more than its heap and its overhead: 384 MB by Spark's default.
    """
    if not _in_containers(master) or any(name in conf for name in (_OVERHEAD, _PYTHON, *_FACTORS)):
        return {}
    return {_OVERHEAD: f"{_needed(conf)}m"}


def shortage(master: str, conf: Mapping[str, str]) -> str | None:
    """Return why the pool's settings may end its executors, with the remedy; None when they do not."""
    if not _in_containers(master) or _OVERHEAD in overhead(master, conf):
        return None
    given = sum(megabytes(conf[name]) or 0.0 for name in (_OVERHEAD, _PYTHON) if name in conf)
    if _OVERHEAD not in conf:
        factor = next((float(conf[name]) for name in _FACTORS if name in conf), 0.1)
        given += max(_JVM_MB, factor * (megabytes(conf.get("spark.executor.memory", "1g")) or 0.0))
    needed = _needed(conf)
    if given >= needed:
        return None
    return (
        f"executors have {given:.0f} MB beside their heap, and {_tasks(conf)} Python tasks take up to {needed} MB with "
        f"the JVM: set {_OVERHEAD} to {needed}m or leave it out"
    )


def _in_containers(master: str) -> bool:
    return master.startswith(("yarn", "k8s:"))


def _needed(conf: Mapping[str, str]) -> int:
    return _JVM_MB + _tasks(conf) * TASK_MEMORY.default


def _tasks(conf: Mapping[str, str]) -> int:
    """Return how many tasks an executor runs at once."""
    return max(1, int(conf.get("spark.executor.cores", "1")) // int(conf.get("spark.task.cpus", "1")))


def megabytes(text: str, bare: float = 1.0) -> float | None:
    """Return a size as Spark's settings have it, in MiB; `bare` is that of a number without a unit. None for others."""
    match = _SIZE.fullmatch(text.strip())
    return int(match[1]) * _MEGABYTES.get(match[2].lower(), bare) if match else None
