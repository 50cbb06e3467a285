"""Logging on standard error: JSON lines, or text on a terminal; records of other libraries in the same form."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO, cast

from icewright.app.config import Config
from icewright.app.output import printable, printable_json
from icewright.app.redaction import Redaction
from icewright.flow.runtime import Listener

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor, WrappedLogger

LEVELS: Mapping[str, int] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
_FOREIGN = logging.WARNING  # of other libraries only this and worse: below it they quote addresses and payloads
_ERRORS = frozenset(
    {"job_crashed", "loop_failed", "catalog_failed", "reports_failed", "unreadable", "alert_delivery_failed"}
)
_WARNINGS = frozenset(
    {"alert_raised", "reconciled", "deregister_failed", "lineage_not_sent", "abandon_failed", "job_returned"}
)
_BAD_STATES = frozenset({"failed", "partial", "interrupted"})


class _StandardError:
    """A stream that looks up `sys.stderr` at each write, as tests and services replace it.

    What cannot be written, to a full disk or a closed pipe, is dropped: no work ends for its log.
    """

    def write(self, text: str) -> int:
        """Write to the current standard error."""
        with suppress(OSError, ValueError):  # ValueError: it is closed
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush the current standard error."""
        with suppress(OSError, ValueError):
            sys.stderr.flush()


class _Handler(logging.StreamHandler[TextIO]):
    """Formats records by structlog, which is loaded with the first one: most commands log nothing."""

    def __init__(self, level: str, *, readable: bool, secrets: Iterable[str]) -> None:
        super().__init__(cast("TextIO", _StandardError()))
        # Py4J logs the traceback of each Ctrl-C
        self.addFilter(lambda record: not (record.exc_info and isinstance(record.exc_info[1], KeyboardInterrupt)))
        self._structured = partial(_structured, self.stream, level, readable=readable, secrets=tuple(secrets))

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a line."""
        self.prepare()
        return super().format(record)

    def prepare(self) -> None:
        """Configure structlog unless an earlier record did."""
        if self.formatter is None:
            self.setFormatter(self._structured())


def configure(*, level: str = "info", style: str = "auto", secrets: Iterable[str] = ()) -> None:
    """Configure logging; `style` is auto, json or text. May be called again."""
    readable = style == "text" or (style == "auto" and sys.stderr.isatty())
    root = logging.getLogger()
    for before in [handler for handler in root.handlers if isinstance(handler, _Handler)]:
        root.removeHandler(before)
    root.addHandler(_Handler(level, readable=readable, secrets=secrets))
    root.setLevel(max(_FOREIGN, LEVELS[level]))


def _structured(stream: TextIO, level: str, *, readable: bool, secrets: Iterable[str]) -> logging.Formatter:
    """Configure structlog, and return the formatter of other libraries' records."""
    import structlog

    redaction = Redaction(secrets)

    def redacted(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        return {redaction.text(key): redaction.value(value) for key, value in event.items()}

    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.format_exc_info,
        redacted,
        structlog.processors.TimeStamper(fmt="iso", key="ts"),
    ]
    render_json = structlog.processors.JSONRenderer(ensure_ascii=False)

    def json_line(logger: WrappedLogger, method: str, event: EventDict) -> str:
        return printable_json(str(render_json(logger, method, event)))

    render: Processor = _text if readable else json_line
    structlog.configure(
        processors=[*shared, _ordered, render],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=stream),
        cache_logger_on_first_use=False,
    )
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, _ordered, render],
    )


def configure_by(config: Config) -> None:
    """Configure logging from the `log` section of the configuration."""
    configure(level=config.log.level, style=config.log.format, secrets=config.secrets)


def listener() -> Listener:
    """Return a listener that logs each event: its kind, and details such as job_id, table and operation."""

    def log(kind: str, details: Mapping[str, Any]) -> None:
        import structlog

        for handler in logging.getLogger().handlers:
            if isinstance(handler, _Handler):
                handler.prepare()
        fields = {name: value for name, value in details.items() if value is not None}
        structlog.get_logger().log(LEVELS[_level(kind, details)], kind, **fields)

    return log


def _level(kind: str, details: Mapping[str, Any]) -> str:
    if kind in _ERRORS:
        return "error"
    return "warning" if kind in _WARNINGS or str(details.get("state")) in _BAD_STATES else "info"


def _ordered(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Return the record with time, level and event first."""
    first = {key: event.pop(key) for key in ("ts", "level", "event") if key in event}
    return {**first, **event}


def _text(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    """Return a record as text: time, level, event, then key=value."""
    fields = " ".join(f"{key}={_plain(event[key])}" for key in event if key not in ("ts", "level", "event"))
    line = f"{event.get('ts', '')} {event.get('level', ''):<7} {event.get('event', '')} {fields}".rstrip()
    return printable(line)


def _plain(value: object) -> str:
    text = ",".join(str(v) for v in value) if isinstance(value, tuple | list) else str(value)
    return text if text and not any(c.isspace() or c in '"=' for c in text) else json.dumps(text, ensure_ascii=False)
