"""Words for messages: kinds of values, the name that was probably meant, counts and sizes; wildcards of names."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from decimal import Decimal
from difflib import get_close_matches
from fnmatch import translate
from functools import lru_cache

#: What changes the direction of text, what nobody sees, and breaks of lines: a name with one looks like another.
INVISIBLE = "\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"
_CONTROL_AND_BREAKS = re.compile(f"[\x00-\x1f\x7f-\x9f{INVISIBLE}]")


def kind(value: object) -> str:
    """Return the kind of a value in words, such as `a number`."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "a truth value"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case list():
            return "a list"
        case dict():
            return "a mapping"
    return type(value).__name__


def near(name: str, known: Sequence[str], *, listed: bool = True) -> str:
    """Return a hint at the name that was probably meant; where none is alike, all names, if they may be listed."""
    begun = {candidate[: len(name)]: candidate for candidate in reversed(known)}
    alike = (
        [candidate for candidate in known if candidate.endswith(f".{name}")]
        or get_close_matches(name, known, 1, 0.85)
        or [begun[beginning] for beginning in get_close_matches(name, begun, 1, 0.85)]
        or get_close_matches(name, known, 1, 0.65)
    )
    if alike:
        return f"; did you mean {alike[0]}?"
    return f"; known are {', '.join(known)}" if known and listed else ""


@lru_cache(maxsize=4096)
def wildcard(pattern: str) -> re.Pattern[str]:
    """Return the expression of a pattern of names, in which `*` and `?` alone stand for others."""
    return re.compile(translate(pattern.replace("[", "[[]")))  # fnmatch's sets are not part of our patterns


def one_line(text: str) -> str:
    """Return text with its control characters as escapes, newlines too: a name with one could forge a line."""
    return _CONTROL_AND_BREAKS.sub(escaped, text)


def escaped(match: re.Match[str]) -> str:
    r"""Return the characters of a match as escapes, such as `\x1b`."""
    return match[0].encode("unicode_escape").decode("ascii")


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the error's class where the message is empty."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def in_shell(name: object) -> str:
    """Return a name as a word of a command: between quotes where a shell would expand it."""
    return shlex.quote(str(name))


def count(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless the number is one."""
    plural = f"{noun}es" if noun.endswith(("ch", "ss")) else f"{noun[:-1]}ies" if noun.endswith("ry") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def some(items: Sequence[object], most: int = 3) -> str:
    """Return the first of many items, and how many more there are."""
    more = f" and {len(items) - most:,} more" if len(items) > most else ""
    return ", ".join(map(str, items[:most])) + more


def byte_size(number: float) -> str:
    """Return a number of bytes in the unit that suits it."""
    for unit in ("B", "KB", "MB", "GB"):
        if abs(number) < 1024:  # noqa: PLR2004 - bytes in a KB
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TB"


def figure(value: float) -> str:
    """Return a number with four digits where it has a fraction, never as a power of ten."""
    return f"{value:.0f}" if abs(value) >= 1000 or value.is_integer() else decimal(value, 4)  # noqa: PLR2004


def decimal(value: float, digits: int = 2) -> str:
    """Return a number with so many significant digits, such as 0.000035, never as a power of ten."""
    return format(Decimal(f"{value:.{digits}g}"), "f")


def no_job(part: str) -> str:
    """Return the message for a job id, or a part of one, that names no job or several."""
    return f"no single job has an id that begins or ends with {part!r}; `icewright history` lists the ids"
