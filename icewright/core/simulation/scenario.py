"""Policy tests as tables: commits and runs tick by tick, and the verdicts expected after each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from icewright.core.effective import Knobs
from icewright.core.errors import ConfigError, UsageError
from icewright.core.layering import Policy, PolicyRule, parse_rule
from icewright.core.policy import MEGABYTE, ORDER, ORDERS, Operation
from icewright.core.runs import LastRun
from icewright.core.simulation.table import SimulatedTable
from icewright.core.simulation.trace import LATEST, MOST, moment, read_write
from icewright.core.simulation.work import SimulatedRun, begin, last_run
from icewright.core.simulation.writes import Write
from icewright.core.steps import VERDICT_NAMES, Due, why
from icewright.core.table import TableRef
from icewright.core.verdicts import evaluate, thresholds, verdict
from icewright.core.words import kind

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
_TEST, _TICK = ("name", "table", "policy", "begins", "ticks"), ("after_hours", "commits", "run", "expect")
_COMMIT = ("partition", "files", "mb", "rows", "delete_files", "deleted_rows", "operation")
_FILES = "files"


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected verdict of an operation, and words of its reason."""

    operation: Operation
    verdict: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Tick:
    """A moment of a policy test: time passes, writers commit, operations run, then verdicts are compared."""

    after: timedelta  # since the tick before
    commits: tuple[Write, ...]
    run: tuple[Operation, ...]
    expect: tuple[Expected, ...]
    files: int | None = None  # live data files


@dataclass(frozen=True, slots=True)
class PolicyTest:
    """A policy test of one table over several ticks; `rules` replace the policy's own."""

    name: str
    table: TableRef
    begins: datetime
    rules: tuple[PolicyRule, ...] | None
    ticks: tuple[Tick, ...]


def policy_failures(test: PolicyTest, policy: Policy | None = None) -> tuple[str, ...]:
    """Return every difference from the expectations, with the reason of the actual verdict."""
    policy = policy or Policy()
    if test.rules is not None:
        policy = replace(policy, rules=test.rules)
    knobs = policy.knobs_for(test.table, None)
    table, history, now = SimulatedTable(test.table), dict[Operation, LastRun](), test.begins
    failures: list[str] = []
    for number, tick in enumerate(test.ticks, 1):
        now += tick.after
        for write in tick.commits:
            table.write(replace(write, at=now))
        differences = [*_run_due(table, tick, knobs, history, now), *_compare(table, tick, knobs, history, now)]
        failures += [
            f"tick {number} ({(now - test.begins) / timedelta(hours=1):g} h): {failure}" for failure in differences
        ]
    return tuple(failures)


def _run_due(
    table: SimulatedTable, tick: Tick, knobs: Knobs, history: dict[Operation, LastRun], now: datetime
) -> Iterator[str]:
    """Run the tick's operations in the policy's order, ignoring cooldowns; yield a failure for each that is not due."""
    for operation in sorted(tick.run, key=ORDERS[knobs[ORDER]].index):
        facts = table.facts(thresholds(knobs))
        actual = verdict(operation, facts, knobs, history, now, manual=True)
        if not isinstance(actual, Due):
            yield f"{operation} was to run, but it is {VERDICT_NAMES[type(actual)]}: {why(actual)}"
            continue
        begun = [begin(table, step, now) for step in actual.work.steps]
        done = [work.end(now) for work in begun]
        ran = SimulatedRun(actual, done, sum(work.gb_hours for work in begun), now)
        history[operation] = last_run(operation, table, knobs, ran, history.get(operation))


def _compare(
    table: SimulatedTable, tick: Tick, knobs: Knobs, history: Mapping[Operation, LastRun], now: datetime
) -> Iterator[str]:
    evaluation = evaluate(table.facts(thresholds(knobs)), knobs, history, now)
    for expected in tick.expect:
        actual = evaluation.verdicts[expected.operation]
        name = VERDICT_NAMES[type(actual)]
        if name != expected.verdict:
            yield f"{expected.operation}: expected {expected.verdict}, found {name}: {why(actual)}"
        elif expected.reason not in why(actual):
            yield f"{expected.operation}: expected a reason with {expected.reason!r}, found: {why(actual)}"
    if tick.files is not None and tick.files != table.files:
        yield f"files: expected {tick.files}, found {table.files}"


def read_policy_tests(document: object) -> tuple[PolicyTest, ...]:
    """Return the tests of a document as YAML gives it. Raises `ConfigError` with every fault and its key path."""
    reader = _Reader()
    tests = reader.tests(document)
    if reader.faults:
        raise ConfigError(reader.faults)
    return tests


class _Reader:
    """Parse policy tests and collect every fault."""

    def __init__(self) -> None:
        self.faults: list[str] = []

    def tests(self, document: object) -> tuple[PolicyTest, ...]:
        raw = self._mapping("", document, ("tests",))
        items = self._list("tests", raw.get("tests"))
        if not items and not self.faults:
            self.faults.append("tests: there is none; write a list of tests, each with name, table and ticks")
        return tuple(self._test(f"tests[{i}]", item) for i, item in enumerate(items))

    def _test(self, path: str, item: object) -> PolicyTest:
        raw = self._mapping(path, item, _TEST)
        name = self._text(f"{path}.name", raw.get("name")) if raw else ""
        ref = TableRef("lake", ("ns",), "t")
        try:
            ref = TableRef.parse(self._text(f"{path}.table", raw.get("table"))) if raw else ref
        except UsageError as error:
            if raw.get("table"):
                self.faults.append(f"{path}.table: {error}")
        rules = None
        if "policy" in raw:
            rules = tuple(self._rules(f"{path}.policy", raw["policy"]))
        ticks = tuple(
            self._tick(f"{path}.ticks[{i}]", t) for i, t in enumerate(self._list(f"{path}.ticks", raw.get("ticks")))
        )
        begins = self._begins(f"{path}.begins", raw.get("begins"))
        if sum((tick.after for tick in ticks), timedelta()) > LATEST - begins:
            self.faults.append(f"{path}.ticks: they end after {LATEST:%Y-%m-%d}; begin earlier, or let less time pass")
        return PolicyTest(name, ref, begins, rules, ticks)

    def _rules(self, path: str, raw: object) -> Iterator[PolicyRule]:
        for i, item in enumerate(self._list(path, raw)):
            try:
                yield parse_rule(f"{path}[{i}]", item)
            except ConfigError as error:
                self.faults += error.faults

    def _begins(self, path: str, raw: object) -> datetime:
        """Return the begin of the test, which YAML has parsed as a time."""
        if raw is None:
            return BEGIN
        if not isinstance(raw, datetime):
            self.faults.append(f"{path}: {kind(raw)} given; write a time such as 2026-01-31T07:30:00Z")
            return BEGIN
        try:
            return moment(path, raw)
        except ValueError as error:
            self.faults.append(str(error))
            return BEGIN

    def _tick(self, path: str, item: object) -> Tick:
        raw = self._mapping(path, item, _TICK)
        hours = raw.get("after_hours", 0)
        if isinstance(hours, bool) or not isinstance(hours, int | float) or not 0 <= hours <= 24 * 366:
            self.faults.append(f"{path}.after_hours: {hours!r} is not a number of hours from 0 to 8784")
            hours = 0
        commits = self._list(f"{path}.commits", raw.get("commits", []))
        run = self._list(f"{path}.run", raw.get("run", []))
        expect = self._mapping(f"{path}.expect", raw.get("expect", {}), (*Operation, _FILES))
        files = expect.get(_FILES)
        if files is not None and (isinstance(files, bool) or not isinstance(files, int) or files < 0):
            self.faults.append(f"{path}.expect.files: {files!r} is not a whole number of at least 0")
            files = None
        return Tick(
            timedelta(hours=hours),
            tuple(w for i, c in enumerate(commits) if (w := self._commit(f"{path}.commits[{i}]", c)) is not None),
            tuple(op for i, o in enumerate(run) if (op := self._operation(f"{path}.run[{i}]", o)) is not None),
            tuple(self._expected(f"{path}.expect", expect)),
            files,
        )

    def _commit(self, path: str, item: object) -> Write | None:
        raw = dict(self._mapping(path, item, _COMMIT))
        mb, files = raw.pop("mb", 1), raw.get("files", 0)
        if isinstance(mb, bool) or not isinstance(mb, int | float) or not 0 < mb <= MOST // MEGABYTE:
            self.faults.append(
                f"{path}.mb: {mb!r} is not a number above 0 and up to {MOST // MEGABYTE} (MB of each file)"
            )
            return None
        if isinstance(files, int) and 0 < files <= MOST:
            raw["bytes"] = int(files * mb * MEGABYTE)
            if raw["bytes"] > MOST:
                self.faults.append(f"{path}.mb: {files} files of {mb!r} MB hold more than {MOST} bytes; write less")
                return None
        try:
            return read_write(raw, BEGIN, (*_COMMIT, "bytes"))
        except ValueError as error:
            self.faults.append(f"{path}.{error}")
            return None

    def _operation(self, path: str, raw: object) -> Operation | None:
        if raw in list(Operation):
            return Operation(str(raw))
        self.faults.append(f"{path}: {raw!r} is no operation; there is: {', '.join(Operation)}")
        return None

    def _expected(self, path: str, raw: Mapping[str, Any]) -> Iterator[Expected]:
        names = list(VERDICT_NAMES.values())
        for operation in (op for op in Operation if op in raw):
            given = raw[operation]
            if isinstance(given, Mapping):
                given = self._mapping(f"{path}.{operation}", given, ("verdict", "reason"))
                name, reason = given.get("verdict"), given.get("reason", "")
            else:
                name, reason = given, ""
            if name not in names:
                self.faults.append(f"{path}.{operation}: {name!r} is no verdict; there is: {', '.join(names)}")
            else:
                yield Expected(operation, name, str(reason))

    def _mapping(self, path: str, raw: object, keys: Sequence[str]) -> Mapping[str, Any]:
        """Return the mapping, without what is no key of it."""
        if not isinstance(raw, Mapping):
            where = f"{path}: " if path else ""
            self.faults.append(f"{where}{kind(raw)} given; write a mapping with the keys {', '.join(keys)}")
            return {}
        for key in raw:
            if key not in keys:
                where = f"{path}.{key}" if path else key
                self.faults.append(f"{where}: there is no such key; known are {', '.join(keys)}")
        return {key: value for key, value in raw.items() if key in keys}

    def _list(self, path: str, raw: object) -> Sequence[Any]:
        if isinstance(raw, list):
            return raw
        self.faults.append(f"{path}: {kind(raw)} given; write a list")
        return ()

    def _text(self, path: str, raw: object) -> str:
        if isinstance(raw, str) and raw.strip():
            return raw
        self.faults.append(f"{path}: {'missing' if raw is None else f'{kind(raw)} given; write text'}")
        return ""
