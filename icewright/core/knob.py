"""Knobs, the settings of policies: name, kind, default and bounds, and how their values are parsed."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Generic, TypeVar, cast

_QUOTED = re.compile(r"""'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|`(?:[^`]|``)*`""")
TABLE = "{table}"  # placeholder of the table in the query
T = TypeVar("T")
MAX_HOURS = 24 * 366 * 20  # the longest time that a knob may say: far beyond it arithmetic on times overflows
UNSET = "unset"  # in place of a value: the knob has none
_PATTERN = re.compile(r"[a-z_.*?]+")


def checked_probe(text: str) -> str:
    """Return the text. Raises `ValueError` when it does not name the table; the engine checks that it is a query."""
    if TABLE not in text:
        raise ValueError(f"{text!r} does not name the table as {TABLE}")
    return text


def check_predicate(text: str) -> None:
    """Raise `ValueError` for what is no single predicate: statements, comments, and quotes or brackets left open.

    The engine parses the predicate, and checks its columns against those of the table.
    """
    bare = _QUOTED.sub("", text)
    if bad := next((sign for sign in (";", "--", "/*", "'", '"', "`") if sign in bare), None):
        raise ValueError(f"{text!r} is not one predicate: it has {bad} outside of quotes, or leaves them open")
    depth = 0
    for sign in re.findall(r"[()]", bare):
        depth += 1 if sign == "(" else -1
        if depth < 0:
            break
    if depth:
        raise ValueError(f"{text!r} is not one predicate: its brackets do not match")


class ValueKind(enum.StrEnum):
    """The kinds of values that knobs have."""

    INTEGER = "whole number"
    NUMBER = "number"
    FLAG = "true or false"
    TEXT = "text"
    CHOICE = "one of"
    MAPPING = "mapping"


@dataclass(frozen=True)
class Knob(Generic[T]):
    """One setting. `default` None means: not set; `also` names a word accepted in place of a number."""

    name: str
    kind: ValueKind
    default: T
    help: str
    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    also: str | None = None
    also_range: tuple[float, float] = (0, 0)  # the least and the greatest number that the word stands for
    numbers: bool = False  # of a mapping: each value is a whole number
    check: Callable[[Any], object] | None = None  # of a text or mapping: raises ValueError with what would be right

    @property
    def expects(self) -> str:
        """Return a description of the values that the knob accepts."""
        if self.numbers:
            return f"a {self.kind} of names to whole numbers"
        text = f"one of {', '.join(self.choices)}" if self.kind is ValueKind.CHOICE else f"a {self.kind}"
        if self.kind is ValueKind.FLAG:
            text = str(self.kind)
        if self.minimum is not None and self.maximum is not None:
            text += f" from {self.minimum:.15g} to {self.maximum:.15g}"
        elif self.minimum is not None:
            text += f" of at least {self.minimum:.15g}"
        if self.also:
            text += f", or {self.also}"
        return f"{text} ({self.unit})" if self.unit else text

    def parse(self, value: object) -> T:
        """Return the value as the knob's type; text is parsed as YAML writes it. Raises `ValueError`."""
        if value is None and self.default is None:
            return cast(T, None)
        parsed: Any
        if self.also is not None and value == self.also:
            return cast(T, value)
        match self.kind:
            case ValueKind.FLAG:
                parsed = {"true": True, "false": False}.get(str(value).strip().lower())
            case ValueKind.INTEGER:
                parsed = _number(value)
                parsed = int(parsed) if parsed is not None and parsed == int(parsed) else None
            case ValueKind.NUMBER:
                parsed = _number(value)
            case ValueKind.CHOICE:
                parsed = value if value in self.choices else None
            case ValueKind.TEXT:
                parsed = value if isinstance(value, str) and value.strip() else None
            case ValueKind.MAPPING:
                parsed = _mapping(value)
                if self.numbers and parsed is not None and not all(v.isdecimal() for v in parsed.values()):
                    parsed = None
        if parsed is None or not self._within(parsed):
            raise ValueError(f"{value!r} is not {self.expects}")
        if self.check is not None:
            self.check(parsed)
        return cast(T, parsed)

    def saturate(self, number: float) -> T:
        """Return the nearest value within the bounds: Iceberg writes its largest long for "never"."""
        bounded = max(number, self.minimum if self.minimum is not None else number)
        bounded = min(bounded, self.maximum if self.maximum is not None else bounded)
        return cast(T, round(bounded) if self.kind is ValueKind.INTEGER else bounded)

    def _within(self, value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return True
        return (self.minimum is None or value >= self.minimum) and (self.maximum is None or value <= self.maximum)


class SettingRegistry:
    """Knobs by name, in the order of their declaration; each method declares one."""

    def __init__(self) -> None:
        self.knobs: dict[str, Knob[Any]] = {}
        self._longest = {"hours": MAX_HOURS, "minutes": MAX_HOURS * 60, "seconds": MAX_HOURS * 3600}

    def knob(self, name: str, kind: ValueKind, default: T, text: str, **more: Any) -> Knob[T]:
        """Declare a knob of any kind."""
        knob: Knob[T] = Knob(name, kind, default, text, **more)
        self.knobs[name] = knob
        return knob

    def integer(self, name: str, default: int, text: str, **more: Any) -> Knob[int]:
        """Declare a whole number of at least 1, or of the bounds that are given."""
        bounds = {"minimum": 1, "maximum": self._longest.get(more.get("unit", ""))}
        return self.knob(name, ValueKind.INTEGER, default, text, **{**bounds, **more})

    def number(self, name: str, default: float, text: str, **more: Any) -> Knob[float]:
        """Declare a number of at least 0, or of the bounds that are given."""
        return self.knob(name, ValueKind.NUMBER, default, text, **{"minimum": 0, **more})

    def flag(self, name: str, text: str, *, default: bool = True) -> Knob[bool]:
        """Declare a setting that is true or false."""
        return self.knob(name, ValueKind.FLAG, default, text)

    def choice(self, name: str, default: str, choices: tuple[str, ...], text: str) -> Knob[str]:
        """Declare a setting with a fixed list of values."""
        return self.knob(name, ValueKind.CHOICE, default, text, choices=choices)

    def text(self, name: str, text: str, check: Callable[[str], object] | None = None) -> Knob[str | None]:
        """Declare a text that is unset by default."""
        return self.knob(name, ValueKind.TEXT, None, text, check=check)

    def mapping(self, name: str, default: Mapping[str, str], text: str, **more: Any) -> Knob[Mapping[str, str]]:
        """Declare a mapping of names to values."""
        return self.knob(name, ValueKind.MAPPING, default, text, **more)


def check_names(knob_names: Iterable[str], text: str) -> None:
    """Check a comma-separated list of knobs and wildcards. Raises `ValueError` for an entry that names none."""
    for entry in text.split(","):
        if not (_PATTERN.fullmatch(entry.strip()) and any(is_listed(entry, name) for name in knob_names)):
            raise ValueError(
                f"{entry.strip()!r} names no knob: write names and wildcards, such as importance, compact.*"
            )


def is_listed(patterns: str, name: str) -> bool:
    """Return whether a comma-separated list of knobs and wildcards has the name; an empty list has none."""
    return any(fnmatchcase(name, entry.strip()) for entry in patterns.split(","))


def written(value: Any) -> str:  # noqa: ANN401 - any knob's value
    """Return a knob's value as one line of text, as people write it."""
    match value:
        case None:
            return UNSET
        case bool():
            return str(value).lower()
        case float():
            return repr(value).removesuffix(".0")
        case Mapping():
            return ",".join(f"{name}={item}" for name, item in value.items()) or UNSET
    return str(value)


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if abs(number) < 1e15 else None  # noqa: PLR2004 - beyond it arithmetic on times would overflow


def _mapping(value: object) -> dict[str, str] | None:
    if isinstance(value, Mapping):
        return {str(k): str(v) for k, v in value.items()}
    if isinstance(value, str):  # "s3a=s3,s3n=s3", as in a table property
        pairs = [pair.partition("=") for pair in value.split(",") if pair.strip()]
        return {k.strip(): v.strip() for k, _, v in pairs} if all(s and v for _, s, v in pairs) else None
    return None
