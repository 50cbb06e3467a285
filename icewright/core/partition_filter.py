"""Which partitions may hold rows that a policy's `compact.where` matches, by their partition values alone."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import reduce
from typing import Any

from icewright.core.effective import Knobs
from icewright.core.partitions import EPOCH
from icewright.core.rewriting import WHERE
from icewright.core.schemas import columns
from icewright.core.table import PartitionFacts, PartitionField, TableFacts

_Truths = frozenset[bool | None]  # the values that a condition may have for a row, None for SQL's null
_ANY: _Truths = frozenset((True, False, None))
_TRUNCATE = re.compile(r"truncate\[(\d+)\]")
_TIME = re.compile(r"\d{4}-\d\d-\d\d([ T].+)?")
_UNITS = {"day": timedelta(days=1), "hour": timedelta(hours=1), "week": timedelta(weeks=1)}
_COMPARISONS: Mapping[str, frozenset[int]] = {  # how a value compares with a literal for which each holds
    "=": frozenset((0,)),
    "==": frozenset((0,)),
    "<>": frozenset((-1, 1)),
    "!=": frozenset((-1, 1)),
    "<": frozenset((-1,)),
    "<=": frozenset((-1, 0)),
    ">": frozenset((1,)),
    ">=": frozenset((0, 1)),
}
_MOST_DAYS = 10**6
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def admitted(facts: TableFacts, knobs: Knobs, now: datetime) -> Sequence[PartitionFacts]:
    """Return the partitions that `compact.where` may hold in; all without one, or where it has forms unknown here.

    A partition is left out only when its values alone prove that no row of it matches.
    """
    text = knobs[WHERE]
    if text is None:
        return facts.partitions
    try:
        condition = _Parser(text, now).predicate()
    except _NotParsedError:
        return facts.partitions
    types = {number: (".".join(path).lower(), kind) for number, path, kind in columns(facts.metadata.schema)}
    named = Counter(name for name, _ in types.values())  # Spark's names know no case

    def matches(partition: PartitionFacts) -> bool:
        ranges: dict[str, list[_Range]] = defaultdict(list)
        for field, value in zip(facts.metadata.spec(partition.spec_id).fields, partition.values, strict=True):
            name, kind = types.get(field.source_id, ("", None))
            if named[name] == 1 and field.transform != "void":
                ranges[name].append(_range(field, value, kind))
        return True in condition(ranges)

    return [partition for partition in facts.partitions if matches(partition)]


@dataclass(frozen=True, slots=True)
class _Range:
    """What the rows of a partition may have in a column of a type: null, or values from `low` to `high`."""

    kind: str
    null: bool = False
    low: Any = None  # None: any value, as after `bucket`
    high: Any = None
    below: bool = False  # `high` is not among them

    def signs(self, literal: Any) -> set[int]:  # noqa: ANN401 - any literal
        """Return how values may compare with a literal: less, equal, greater."""
        bound = _as(self.kind, literal)
        if self.low is None or self.high is None or bound is None:  # day 9999-12-31 has no end that Python knows
            return {-1, 0, 1}
        equal = self.low <= bound and (bound < self.high if self.below else bound <= self.high)
        return {sign for sign, may in ((-1, self.low < bound), (0, equal), (1, self.high > bound)) if may}


def moments(field: PartitionField, value: Any, kind: str) -> tuple[datetime, datetime] | None:  # noqa: ANN401 - see below
    """Return the first and last moment in UTC that rows of a partition may hold; None where the field does not say."""
    moments = _range(field, value, kind)
    if not isinstance(moments.low, datetime):
        return None
    last = datetime.max if moments.high is None else moments.high - timedelta(microseconds=moments.below)  # noqa: DTZ901 - UTC
    return moments.low, last


def _range(field: PartitionField, value: Any, kind: Any) -> _Range:  # noqa: ANN401 - any partition value and type
    if not isinstance(kind, str):
        return _Range("")
    if value is None:  # transforms have a null for nulls alone
        return _Range(kind, null=True)
    match field.transform:
        case "identity":
            value = _as(kind, value)
            return _Range(kind, low=value, high=value)
        case "year" | "month" | "day" | "hour" as unit:
            return _Range(kind, low=_start(unit, value), high=_start(unit, value, 1), below=True)
    if (match := _TRUNCATE.fullmatch(field.transform)) and kind in ("int", "long"):
        return _Range(kind, low=value, high=value + int(match[1]), below=True)
    if match and kind == "string" and value and len(value) == int(match[1]) and value[-1] != "\U0010ffff":
        return _Range(kind, low=value, high=value[:-1] + chr(ord(value[-1]) + 1), below=True)
    return _Range(kind)


def _start(unit: str, value: Any, more: int = 0) -> datetime | None:  # noqa: ANN401 - a number, or the date of a day
    """Return the first moment of a unit of time; None beyond the years that Python knows."""
    try:
        match unit:
            case "year":
                return datetime(1970 + value + more, 1, 1)  # noqa: DTZ001 - UTC, as all here
            case "month":
                return datetime(1970 + (value + more) // 12, (value + more) % 12 + 1, 1)  # noqa: DTZ001
            case "day":
                return datetime.combine(value, time()) + timedelta(days=more)
        return datetime.combine(EPOCH, time()) + timedelta(hours=value + more)
    except (ValueError, OverflowError, TypeError):  # a distant day is no date
        return None


def _as(kind: str, value: Any) -> Any:  # noqa: ANN401 - any literal, one line for each type
    """Return a value in the form in which values of a type compare, moments in UTC; None where Spark's differs."""
    match kind, value:
        case ("boolean", bool()) | ("string", str()) | ("int" | "long", int() | Decimal()):
            return value
        case ("date", str()):  # Spark casts it to a date, whatever time follows
            return _moment(value[:10]) if _TIME.fullmatch(value) else None
        case ("timestamp" | "timestamptz", str()):
            moment = _moment(value)
            return None if moment is None or (moment.tzinfo and kind != "timestamptz") else _as(kind, moment)
        case ("date" | "timestamp" | "timestamptz", datetime()):
            return value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
        case ("date" | "timestamp" | "timestamptz", date()):
            return datetime.combine(value, time())
        case (_, Decimal() | int()) if kind.startswith("decimal"):
            return value
    return None


def _moment(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text) if _TIME.fullmatch(text) else None
    except ValueError:
        return None


_TOKEN = re.compile(
    r"""\s*(?:(?P<text>'[^'\\]*'|"[^"\\]*")|(?P<number>\d+(?:\.\d+)?)(?!\w)|`(?P<quoted>[^`]+)`|(?P<word>[A-Za-z_]\w*)"""
    r"""|(?P<sign><=>|<=|>=|<>|!=|==|[=<>(),.+\-*]))"""
)
_Ranges = Mapping[str, Sequence[_Range]]  # by column
_Condition = Callable[[_Ranges], _Truths]


class _NotParsedError(Exception):
    """The predicate has something that this parser does not know."""


@dataclass(frozen=True, slots=True)
class _Column:
    name: str


class _Parser:
    """Reads a predicate as Spark does, as far as it goes; what it knows nothing of may be anything."""

    def __init__(self, text: str, now: datetime) -> None:
        self.now = now
        self.tokens: list[tuple[str, str]] = []  # kind and text, words in lower case
        self.at = position = 0
        text = text.rstrip()
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None or match.lastgroup is None or "--" in text:  # which begins a comment
                raise _NotParsedError
            token = match[match.lastgroup]
            self.tokens.append((match.lastgroup, token.lower() if match.lastgroup == "word" else token))
            position = match.end()
        self.tokens.append(("end", ""))

    def predicate(self) -> _Condition:
        """Return the condition that the whole text is."""
        condition = self._or()
        if self._peek != ("end", ""):
            raise _NotParsedError
        return condition

    @property
    def _peek(self) -> tuple[str, str]:
        return self.tokens[self.at]

    def _next(self, *choices: str) -> str | None:
        """Return the next token and go on, if it is one of these signs or words."""
        kind, token = self._peek
        if kind not in ("sign", "word") or token not in choices:
            return None
        self.at += 1
        return token

    def _need(self, token: str) -> None:
        if self._next(token) is None:
            raise _NotParsedError

    def _or(self) -> _Condition:
        parts = [self._and()]
        while self._next("or"):
            parts.append(self._and())
        return _combined(parts, decisive=True)

    def _and(self) -> _Condition:
        parts = [self._not()]
        while self._next("and"):
            parts.append(self._not())
        return _combined(parts, decisive=False)

    def _not(self) -> _Condition:
        return _negated(self._not()) if self._next("not") else self._simple()

    def _simple(self) -> _Condition:
        """Return a comparison, or a condition in brackets."""
        start = self.at
        if self._next("("):
            try:
                condition = self._or()
                self._need(")")
            except _NotParsedError:  # a value in brackets
                self.at = start
            else:
                return condition
        column = self._value()
        if sign := self._next(*_COMPARISONS):
            other = self._value()
            if isinstance(other, _Column):
                column, other, sign = other, column, _MIRRORED.get(sign, sign)
            return _compared(sign, column, other)
        if self._next("is"):
            negative = self._next("not")
            self._need("null")
            return _negated(_is_null(column)) if negative else _is_null(column)
        negative = self._next("not")
        if self._next("in"):
            condition = _combined([_compared("=", column, value) for value in self._list()], decisive=True)
        elif self._next("between"):
            low = _compared(">=", column, self._value())
            self._need("and")
            condition = _combined([low, _compared("<=", column, self._value())], decisive=False)
        elif self._next("like", "rlike", "<=>"):
            self._value()
            condition = _anything
        else:
            raise _NotParsedError
        return _negated(condition) if negative else condition

    def _list(self) -> list[Any]:
        self._need("(")
        values = [] if self._next(")") else [self._value()]
        while values and not self._next(")"):
            self._need(",")
            values.append(self._value())
        return values

    def _value(self) -> Any:  # noqa: ANN401 - a column, a literal, or None for a value that is not known here
        value = self._term()
        while sign := self._next("+", "-", "*"):
            value = _later(value, self._term(), {"+": 1, "-": -1}.get(sign, 0))
        return value

    def _term(self) -> Any:  # noqa: ANN401 - as above
        if self._next("-"):
            number = self._term()
            return -number if isinstance(number, Decimal) else None
        if self._next("("):
            value = self._value()
            self._need(")")
            return value
        kind, token = self._peek
        self.at += kind != "end"
        match kind:
            case "text":
                return token[1:-1]
            case "number":
                return Decimal(token)
            case "quoted":
                return self._column(token)
            case "word":
                return self._word(token)
        raise _NotParsedError

    def _column(self, name: str) -> _Column:
        while self._next("."):
            kind, part = self._peek
            if kind not in ("word", "quoted"):
                raise _NotParsedError
            name += f".{part}"
            self.at += 1
        return _Column(name.lower())

    def _word(self, word: str) -> Any:  # noqa: ANN401 - as above
        if word in ("date", "timestamp", "timestamp_ntz") and self._peek[0] == "text":
            moment = _moment(self._term())
            if moment and word == "timestamp_ntz":
                return moment.replace(tzinfo=None)  # as Spark reads it
            return moment.date() if moment and word == "date" else moment
        if word == "interval":
            number = self._term()
            unit = _UNITS.get(self._peek[1].removesuffix("s"))
            self.at += 1
            known = unit is not None and re.fullmatch(r"-?\d{1,6}", str(number))
            return int(number) * unit if known and unit is not None else None
        arguments = self._list() if self._peek == ("sign", "(") else None
        match word, arguments:
            case "true" | "false", None:
                return word == "true"
            case "current_date", None | []:
                return self.now.astimezone(UTC).date()
            case ("current_timestamp", None | []) | ("now", []):
                return self.now
            case "date_add" | "date_sub", [start, Decimal() as days]:
                return _later(start, days, 1 if word == "date_add" else -1)
            case "null" | "case" | "exists", _:
                raise _NotParsedError
        return self._column(word) if arguments is None else None


def _anything(_ranges: _Ranges) -> _Truths:
    return _ANY


def _compared(sign: str, column: Any, literal: Any) -> _Condition:  # noqa: ANN401 - values of a predicate
    """Return the condition that a column compares so with a literal."""
    if not isinstance(column, _Column) or literal is None:
        return _anything

    def truths(ranges: _Ranges) -> _Truths:
        of_column = ranges.get(column.name, ())
        if any(column_range.null for column_range in of_column):
            return frozenset((None,))
        signs = [column_range.signs(literal) for column_range in of_column]
        return frozenset(s in _COMPARISONS[sign] for s in set.intersection(*signs)) if signs else _ANY

    return truths


def _is_null(column: Any) -> _Condition:  # noqa: ANN401 - a value of a predicate
    def truths(ranges: _Ranges) -> _Truths:
        of_column = ranges.get(column.name, ()) if isinstance(column, _Column) else ()
        return frozenset((of_column[0].null,)) if of_column else _ANY

    return truths


def _negated(condition: _Condition) -> _Condition:
    return lambda ranges: frozenset(None if truth is None else not truth for truth in condition(ranges))


def _combined(parts: Sequence[_Condition], *, decisive: bool) -> _Condition:
    """Return `or` (decisive: true) or `and` (false): decisive where one part is, else null where one part is."""

    def both(one: bool | None, other: bool | None) -> bool | None:
        if decisive in (one, other):
            return decisive
        return None if None in (one, other) else not decisive

    def truths(ranges: _Ranges) -> _Truths:
        each = [part(ranges) for part in parts]
        return reduce(lambda products, part: frozenset(both(a, b) for a in products for b in part), each)

    return truths if parts else _anything


def _later(start: Any, span: Any, sign: int) -> date | None:  # noqa: ANN401 - values of a predicate
    """Return a date or moment that is moved by an interval, a date by a number of days too; None for others."""
    is_date = isinstance(start, date) and not isinstance(start, datetime)
    if isinstance(span, Decimal) and is_date and abs(span) < _MOST_DAYS:
        span = timedelta(days=int(span))
    elif not isinstance(span, timedelta) or not isinstance(start, date):
        return None
    if is_date and span % timedelta(days=1):
        start = datetime.combine(start, time())
    try:
        moved: date | None = start + sign * span if sign else None
    except OverflowError:
        return None
    return moved
