"""Error messages of Spark, Iceberg and Python tasks, reduced to the one line that names the cause."""

from __future__ import annotations

import re

_CONFLICTS = ("CommitFailedException", "ValidationException", "conflicting files", "Cannot commit")
_STORE_REFUSES = re.compile(  # by the SDK's error, or by the code in the store's own
    r"Service: S3, Status Code: 5\d\d|\b(?:SlowDown|ExpiredToken|InvalidAccessKeyId|RequestTimeTooSkewed)\b"
)
_PYTHON_ERROR = re.compile(r"[A-Za-z_][\w.]*(?:: |$)")  # an exception's name and message
_LONGEST = 500


def is_conflict(message: str) -> bool:
    """Return whether the error says that another writer committed first."""
    return any(sign in message for sign in _CONFLICTS)


def is_storage_fault(message: str) -> bool:
    """Return whether the error says that the object store serves nobody, or does not take the credentials."""
    return _STORE_REFUSES.search(message) is not None


def telling(message: str) -> str:
    """Return the message of a JVM error's cause, or of a task's Python error, without stack traces."""
    lines = [line.strip() for line in message.splitlines() if line.strip() and not line.strip().startswith("at ")]
    frames = [number for number, line in enumerate(lines) if line.startswith("File ")]
    if "PythonException" in message and frames:
        after = lines[frames[-1] + 1 :]
        return next((line for line in after if _PYTHON_ERROR.match(line)), lines[0])[:_LONGEST]
    causes = [line for line in lines if line.startswith("Caused by:")]
    return (causes[-1].removeprefix("Caused by: ") if causes else lines[0] if lines else "no message")[:_LONGEST]
