"""Check that the executors of a Spark application have the same Python and packages as the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PACKAGES = ("icewright", "polars", "pyarrow", "pyroaring")
_REMEDY = "give them this environment (spark.archives and spark.pyspark.python)"
_TASKS = 4


def environment_mismatch(session: SparkSession) -> str | None:
    """Return how the executors' environment differs, with the remedy; None when it does not differ."""
    from pyspark.errors import PySparkException

    (expected,) = _version_query()(())
    try:
        # the query uses only the standard library, so that a missing package cannot break it
        answers = session.sparkContext.parallelize(range(_TASKS), _TASKS).mapPartitions(_version_query()).collect()
    except (PySparkException, OSError) as error:
        return f"the executors run no Python: {str(error).splitlines()[0]}"
    for actual in answers:
        differences = [
            _difference(name, actual[name], version) for name, version in expected.items() if actual[name] != version
        ]
        if differences:
            return f"the executors have {', '.join(differences)}: {_REMEDY}"
    return None


def _difference(name: str, actual: str | None, expected: str | None) -> str:
    return f"no {name}" if actual is None else f"{name} {actual} and not {expected}"


def _version_query() -> Callable[[Iterable[int]], Iterator[dict[str, str | None]]]:
    """Return a nested function, which is pickled by value: this module may be missing on the executors."""
    packages = _PACKAGES

    def installed_versions(_: Iterable[int]) -> Iterator[dict[str, str | None]]:
        import importlib.metadata as installed  # noqa: PLC0415 - imported on the executor
        import platform as runs_on  # noqa: PLC0415

        answers: dict[str, str | None] = {"Python": ".".join(runs_on.python_version_tuple()[:2])}
        for name in packages:
            try:
                answers[name] = installed.version(name)
            except installed.PackageNotFoundError:
                answers[name] = None
        yield answers

    return installed_versions
