"""Format numbers, times and states for templates."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from markupsafe import Markup, escape

from icewright.core.numbers import count_in
from icewright.core.words import decimal, figure, one_line

_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_KILO = 1024
_LONGEST = 1024  # characters of a name; keys of S3 have no more
_UNITS = ("B", "KB", "MB", "GB", "TB", "PB")
TONES: Mapping[str, str] = {
    **dict.fromkeys(
        ("healthy", "succeeded", "committed", "not_due", "ok", "Successful", "resolved", "deleted"), "good"
    ),
    **dict.fromkeys(("due", "partial", "warning", "deferred", "planned", "changed"), "warn"),
    **dict.fromkeys(("unreadable", "blocked", "failed", "interrupted", "critical", "refused", "Failed"), "bad"),
    **dict.fromkeys(("busy", "running", "queued", "new", "info", "found"), "live"),
}  # all others are neutral
_WORDS = {
    "not_due": "not due",
    "Not_Yet_Run": "not run yet",
    "gb_hours": "GB-hours",
    "gb_hours_predicted": "predicted GB-hours",
}


def sentence(text: str) -> str:
    """Return a text with a capital and a full stop; a name with signs in it, such as a table's, stays as it is."""
    first = text.partition(" ")[0]
    return f"{text[:1].upper() if first.strip(',').isalpha() else text[:1]}{text[1:].rstrip('.')}."


def tone(word: str) -> str:
    """Return the colour class of a state."""
    return TONES.get(word, "calm")


def word(state: str) -> str:
    """Return the display name of a state or operation."""
    return _WORDS.get(state, state.replace("_", " ").lower())


def size(count: float | None) -> str:
    """Format a number of bytes with its unit."""
    if count is None:
        return "\u2013"
    value, sign = abs(float(count)), "\u2212" if count < 0 else ""
    for unit in _UNITS:
        if value < _KILO or unit == _UNITS[-1]:
            return f"{sign}{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{sign}{value:.1f} {unit}"  # noqa: PLR2004
        value /= _KILO
    return ""


def number(count: float | None, digits: int = 0) -> str:
    """Format a number with commas between thousands, as messages and charts have them."""
    if count is None:
        return "\u2013"
    return f"{count:,.{digits}f}".replace("-", "\u2212")


def stated(text: str | None) -> str:
    """Format a number of a snapshot's summary; what else its writer wrote stays as it is."""
    found = None if text is None else count_in(text)
    return number(found) if found is not None or text is None else text


def gb_hours(count: float | None) -> str:
    """Format GB-hours with two significant digits below 0.01."""
    if count is None:
        return "\u2013"
    if count == 0:
        return "0"
    return number(count, 0 if count >= 100 else 2) if count >= 0.01 else decimal(count)  # noqa: PLR2004


def span(seconds: float | None) -> str:
    """Format a number of seconds as a duration."""
    if seconds is None:
        return "\u2013"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < _MINUTE:
        return f"{seconds:.1f} s"
    if seconds < _HOUR:
        return f"{seconds // _MINUTE:.0f} min {seconds % _MINUTE:.0f} s"
    if seconds < 2 * _DAY:
        return f"{seconds // _HOUR:.0f} h {seconds % _HOUR // _MINUTE:.0f} min"
    return f"{seconds / _DAY:.0f} days"


def rough(ago: timedelta) -> str:
    """Format a duration roughly, in one unit."""
    seconds = abs(ago.total_seconds())
    if seconds < _MINUTE:
        return f"{seconds:.0f} s"
    if seconds < _HOUR:
        return f"{seconds / _MINUTE:.0f} min"
    if seconds < 2 * _DAY:
        return f"{seconds / _HOUR:.0f} h"
    return f"{seconds / _DAY:.0f} days"


def moment(at: datetime | str | None, now: datetime) -> Markup:
    """Return a relative time as HTML, with the absolute time as its title."""
    if at is None or at == "":
        return Markup('<span class="faint">\u2013</span>')
    when = (datetime.fromisoformat(at) if isinstance(at, str) else at).astimezone(UTC)
    relative = f"in {rough(when - now)}" if when > now else f"{rough(now - when)} ago"
    if abs((when - now).total_seconds()) < _MINUTE:
        relative = "in a moment" if when > now else "just now"
    absolute = f"{when:%Y-%m-%d %H:%M:%S} UTC"
    return Markup('<time datetime="{}" title="{}">{}</time>').format(when.isoformat(), absolute, relative)


def clock(at: datetime | str) -> Markup:
    """Return the time of day as HTML, with the date as its title."""
    when = (datetime.fromisoformat(at) if isinstance(at, str) else at).astimezone(UTC)
    absolute = f"{when:%Y-%m-%d %H:%M:%S} UTC"
    return Markup('<time class="num" data-fixed datetime="{}" title="{}">{}</time>').format(
        when.isoformat(), absolute, f"{when:%H:%M:%S}"
    )


def marked(text: str) -> Markup:
    """Return a text of ours as HTML, in which what stands between backticks is code."""
    shapes = (Markup("{}"), Markup("<code>{}</code>"))
    return Markup("").join(shapes[n % 2].format(part) for n, part in enumerate(text.split("`")))


def value(raw: Any) -> str:  # noqa: ANN401 - of a knob or a detail
    """Format a knob's value or an event's detail."""
    match raw:
        case None:
            return "\u2013"
        case bool():
            return "true" if raw else "false"
        case float():
            return figure(raw)
        case list() | tuple():
            return ", ".join(value(item) for item in raw) or "\u2013"
        case dict():
            return ", ".join(f"{name}: {value(item)}" for name, item in raw.items()) or "\u2013"
    return str(raw)


def breakable(name: object) -> Markup:
    """Return a name as HTML that may wrap after dots, slashes, underscores, equals and at signs.

    What nobody sees is an escape, as on the command line: with it a name looks like another. A name of many thousand
    characters, which would fill the page, is cut.
    """
    shown = one_line(str(name))
    text = str(escape(shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}…"))
    for sign in (".", "/", "_", "=", "@"):
        text = text.replace(sign, f"{sign}<wbr>")
    return Markup(text)  # noqa: S704 - escaped above
