"""Probes: a user's read-only query, timed on snapshots of one table."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from icewright.adapters.engines.failures import root_cause
from icewright.adapters.engines.spark.pool import SparkPool, StatementFailed, StepResult, Work
from icewright.adapters.engines.spark.predicate import OF_VALUES
from icewright.core.errors import Cancelled, Refused, TerminalError
from icewright.core.knob import TABLE
from icewright.core.predicates import quoted
from icewright.core.table import TableRef
from icewright.core.words import first_line
from icewright.ports import Clock, Probe

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_REPEAT_BELOW = timedelta(seconds=5)  # a quick query runs twice: the first time Spark compiles it
_NAME = "icewright_probed_table"
_EXAMPLE = f"such as: SELECT region, count(*) FROM {TABLE} GROUP BY region"  # noqa: S608 - for people
_FORBIDDEN = (
    exp.DML, exp.DDL, exp.Command, exp.Into, exp.Lock, exp.With, exp.Hint, exp.Lateral, exp.QueryTransform, exp.UDTF,
    exp.Version, exp.Placeholder, exp.Parameter, exp.SessionParameter, exp.AnonymousAggFunc, exp.ParameterizedAgg,
)  # fmt: skip
_ALLOWED = (
    *OF_VALUES,
    exp.Abs, exp.AggFunc, exp.Case, exp.Ceil, exp.Coalesce, exp.Concat, exp.Day, exp.Extract, exp.Floor, exp.If,
    exp.Length, exp.Lower, exp.Month, exp.Nullif, exp.Round, exp.RowNumber, exp.Substring, exp.TryCast, exp.Upper,
    exp.Year,
)  # fmt: skip


class ProbeFailed(TerminalError):
    """Raised when a probe's query failed; the message is the JVM's, shortened."""


def timed(pool: SparkPool, clock: Clock, probe: Probe) -> tuple[float, ...]:
    """Return the query's seconds on each snapshot; a quick query counts with the better of two runs."""
    query = checked(probe.query)
    texts = [over(query, probe.table.ref, snapshot_id) for snapshot_id in probe.snapshot_ids]
    timing = _Timing(probe, clock)
    try:
        answer = pool.run(timing.of(texts), f"icewright-{probe.job_id}-probe", timing.check)
    except StatementFailed as error:
        raise ProbeFailed(root_cause(str(error))) from error
    return tuple(row["seconds"] for row in answer.rows)


class _Timing:
    """The clock and deadline of one probe."""

    def __init__(self, probe: Probe, clock: Clock) -> None:
        self._probe, self._clock = probe, clock
        self._since: datetime | None = None  # when the query that runs now began; waiting for room takes no time of it

    def check(self) -> None:
        """Raise what ends the job, or `Cancelled` after the probe's timeout."""
        self._probe.check()
        since, limit = self._since, self._probe.limit
        if since is not None and self._clock.now() - since > limit:
            raise Cancelled(f"the query ran longer than impact.probe_timeout_seconds ({limit.total_seconds():g})")

    def of(self, texts: list[str]) -> Work:
        """Return the work that runs each query once, and a second time if all were quick."""

        def work(session: SparkSession) -> StepResult:
            best = [self._timed(session, text) for text in texts]
            if max(best) < _REPEAT_BELOW:
                best = [min(took, self._timed(session, text)) for took, text in zip(best, texts, strict=True)]
            return StepResult(tuple({"seconds": took.total_seconds()} for took in best))

        return work

    def _timed(self, session: SparkSession, text: str) -> timedelta:
        self._since = started = self._clock.now()
        try:
            session.sql(text).write.format("noop").mode("overwrite").save()
            return self._clock.now() - started
        finally:
            self._since = None


def checked(query: str) -> str:
    """Return the query rendered from its parse, with an alias of ours for the table. Raises `Refused`.

    Raises `Refused` unless the query is one SELECT that reads only the table, with functions of values alone.
    """
    setting = f"impact.probe {query!r}"
    try:
        parsed = sqlglot.parse(query.replace(TABLE, _NAME), read="spark")
    except SqlglotError as error:
        raise Refused(f"{setting} cannot be parsed: {first_line(error)}") from error
    tree = parsed[0] if len(parsed) == 1 else None
    if not isinstance(tree, exp.Select):
        raise Refused(f"{setting} is not one SELECT, {_EXAMPLE}")
    tables = 0
    for node in tree.walk():
        if isinstance(node, exp.Table):
            tables += 1
            if not isinstance(node.this, exp.Identifier) or node.name != _NAME or node.args.get("db") is not None:
                other = node.sql(dialect="spark").replace(_NAME, TABLE)
                raise Refused(f"{setting} may read {TABLE} alone, not {other}, {_EXAMPLE}")
        elif isinstance(node, _FORBIDDEN) or (isinstance(node, exp.Func) and not isinstance(node, _ALLOWED)):
            raise Refused(f"{setting} may not use {node.key}, {_EXAMPLE}")
        elif isinstance(node, exp.SetOperation):
            raise Refused(f"{setting} is not one SELECT, {_EXAMPLE}")
    text = tree.sql(dialect="spark", comments=False)
    if not tables or text.count(_NAME) != tables:
        raise Refused(f"{setting} must name {TABLE} after FROM or JOIN and nowhere else: give it an alias, {_EXAMPLE}")
    return text


def over(query: str, ref: TableRef, snapshot_id: int) -> str:
    """Return the checked query on one snapshot of the table."""
    table = ".".join(quoted(part) for part in ref.parts)
    return query.replace(_NAME, f"{table} VERSION AS OF {snapshot_id}")
