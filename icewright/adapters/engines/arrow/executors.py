"""Run Python on the executors of a Spark application, which need the same Python and packages as this process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

from icewright.adapters.engines.failures import is_away, is_death, root_cause
from icewright.core.errors import EngineUnavailable

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")
_Parameters = ParamSpec("_Parameters")

_PACKAGES = ("icewright", "polars", "pyarrow", "pyroaring")
_REMEDY = "give them this environment (spark.archives and spark.pyspark.python)"
_TASKS = 4
_BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch", str(8 << 20)  # 64 MB by default, in memory three times


class Piece(NamedTuple):
    """A message from one task to that of a part: rows, or a result of its own as text."""

    part: int
    rows: bytes | None
    result: str | None


def is_remote(session: SparkSession) -> bool:
    """Return whether the session is one on a Spark Connect server."""
    return type(session).__module__.startswith("pyspark.sql.connect.")


def run_tasks(
    session: SparkSession,
    work: Callable[[Iterable[_Item]], Iterator[_Answer]],
    items: Sequence[_Item],
    to_json: Callable[[_Answer], str],
    from_json: Callable[[str], _Answer],
) -> list[_Answer]:
    """Return what `work` yields for the items, each of which is a task of its own on an executor.

    Answers of a Connect server come as JSON.
    """
    work = tidied(work)
    if not is_remote(session):
        return list(session.sparkContext.parallelize(items, len(items)).mapPartitions(work).collect())

    # a nested function is pickled by value: this module may be missing on the executors
    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa  # noqa: PLC0415 - commands that start no Spark do without it

        for batch in batches:
            for number in batch.column(0).to_pylist():
                texts = [to_json(answer) for answer in work([items[number]])]
                yield pa.RecordBatch.from_arrays([pa.array(texts, pa.string())], ["answer"])

    answers = session.range(0, len(items), 1, len(items)).mapInArrow(rows, "answer string").collect()
    return [from_json(row[0]) for row in answers]


def exchange(
    session: SparkSession,
    split: Callable[[_Item], Iterator[Piece]],
    merge: Callable[[int, Iterator[Piece]], Iterator[_Answer]],
    items: Sequence[_Item],
    parts: int,
    to_json: Callable[[_Answer], str],
    from_json: Callable[[str], _Answer],
) -> list[_Answer]:
    """Split each item in a task of its own; return what `merge` yields for each part that got pieces, in one task each.

    Spark's shuffle holds the pieces in between.
    """
    split, merge = tidied(split), tidied(merge)

    # nested functions are pickled by value: this module may be missing on the executors
    def pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa  # noqa: PLC0415

        kinds = {"part": pa.int32(), "rows": pa.binary(), "result": pa.string()}
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for piece in split(items[number]):
                    columns = [pa.array([value], kind) for value, kind in zip(piece, kinds.values(), strict=True)]
                    yield pa.RecordBatch.from_arrays(columns, names=list(kinds))

    def answers(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa  # noqa: PLC0415

        received = (Piece(*row) for batch in batches for row in zip(*map(_values, batch.columns), strict=True))
        if (first := next(received, None)) is not None:
            texts = [to_json(answer) for answer in merge(first.part, chain([first], received))]
            yield pa.RecordBatch.from_arrays([pa.array(texts, pa.string())], ["answer"])

    if session.conf.isModifiable(_BATCH_BYTES[0]):
        session.conf.set(*_BATCH_BYTES)
    sent = session.range(0, len(items), 1, len(items)).mapInArrow(pieces, "part int, rows binary, result string")
    found = sent.repartitionById(parts, "part").mapInArrow(answers, "answer string").collect()
    return [from_json(row[0]) for row in found]


def tidied(work: Callable[_Parameters, Iterator[_Answer]]) -> Callable[_Parameters, Iterator[_Answer]]:
    """Return the work of tasks with a clean-up behind it, which makes the next tasks of the process begin sooner.

    The modules that are imported by then are left out of the garbage collection that Spark runs after each task. And
    Python's importers of zips and jars go, whose directories Spark makes Python read again before each task: that takes
    longer than a small task, and an importer is created again when something is imported from it.
    """

    # a nested function is pickled by value: this module may be missing on the executors
    def work_and_tidy(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> Iterator[_Answer]:
        import gc  # noqa: PLC0415
        import sys  # noqa: PLC0415
        from zipimport import zipimporter  # noqa: PLC0415

        yield from work(*args, **kwargs)
        if not hasattr(gc, "frozen_after_a_task"):  # once, for ever; a look at the count takes long
            gc.collect()
            gc.freeze()
            gc.frozen_after_a_task = True  # type: ignore[attr-defined]
        for name, finder in list(sys.path_importer_cache.items()):
            if isinstance(finder, zipimporter):
                del sys.path_importer_cache[name]

    return work_and_tidy


def _values(column: pa.Array) -> Iterator[Any]:
    """Yield the values of a column, texts and bytes one at a time."""
    return (value.as_py() for value in column)


def task_attempt() -> int:
    """Return the id of the attempt of the Spark task that runs here; 0 outside of one."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return context.taskAttemptId() if context else 0


def environment_mismatch(session: SparkSession) -> str | None:
    """Return how the executors' environment differs, with the remedy; None when it does not differ.

    Raises `EngineUnavailable` where that cannot be known, as a process died meanwhile, or Spark is gone.
    """
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - the service starts without a JVM
    from pyspark.errors import PySparkException

    (expected,) = _version_query()(())
    try:
        # the query uses only the standard library, so that a missing package cannot break it
        answers = run_tasks(session, _version_query(), range(_TASKS), json.dumps, json.loads)
    except (PySparkException, Py4JJavaError, OSError) as error:
        cause = root_cause(str(error))
        if is_death(str(error)) or is_away(str(error)):
            raise EngineUnavailable(f"the executors could not be asked for their Python: {cause}") from error
        return f"the executors run no Python ({cause}): {_REMEDY}"
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
        installed.MetadataPathFinder().invalidate_caches()  # else the directories of all jars stay in memory
        yield answers

    return installed_versions
