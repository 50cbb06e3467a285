"""Whether the executors of an application can run tasks of ours: the same packages are there, and the same Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PACKAGES = ("icewright", "polars", "pyarrow", "pyroaring")
_REMEDY = "give them this environment (spark.archives and spark.pyspark.python)"
_TASKS = 4


def trouble(session: SparkSession) -> str | None:
    """Return what the executors lack, and the remedy; None when nothing."""
    from pyspark.errors import PySparkException

    (here,) = _question()(())
    try:
        # a function of the standard library alone: what is missing there must not hinder the question
        found = session.sparkContext.parallelize(range(_TASKS), _TASKS).mapPartitions(_question()).collect()
    except (PySparkException, OSError) as error:
        return f"the executors run no Python: {str(error).splitlines()[0]}"
    for there in found:
        different = [_differs(name, there[name], said) for name, said in here.items() if there[name] != said]
        if different:
            return f"the executors have {', '.join(different)}: {_REMEDY}"
    return None


def _differs(name: str, there: str | None, here: str | None) -> str:
    return f"no {name}" if there is None else f"{name} {there} and not {here}"


def _question() -> Callable[[Iterable[int]], Iterator[dict[str, str | None]]]:
    """Travels by value, as no function of a module does: the module may be what is missing."""
    packages = _PACKAGES

    def ask(_: Iterable[int]) -> Iterator[dict[str, str | None]]:
        import importlib.metadata as installed  # noqa: PLC0415 - where it runs
        import platform as runs_on  # noqa: PLC0415

        found: dict[str, str | None] = {"Python": ".".join(runs_on.python_version_tuple()[:2])}
        for name in packages:
            try:
                found[name] = installed.version(name)
            except installed.PackageNotFoundError:
                found[name] = None
        yield found

    return ask
