"""Error messages of Spark, Iceberg and Python tasks, reduced to the one line that names the cause, and their owners."""

from __future__ import annotations

import re

from icewright.core.errors import (
    CatalogUnavailable,
    CommitConflict,
    CommitStateUnknown,
    IcewrightError,
    StorageUnavailable,
    TerminalError,
)

_CONFLICTS = ("CommitFailedException", "ValidationException", "conflicting files", "Cannot commit")
# a spec that Iceberg cannot read, as it fails at its own tables of metadata where a source column is dropped
_UNREADABLE_SPEC = re.compile(
    r"ValidationException: (?:Cannot partition by|Cannot find source column|Invalid source type)"
)
_STORE_REFUSES = re.compile(  # by the SDK's error, by the code in the store's own, or by Arrow's, whatever it is called
    r"Service: S3, Status Code: 5\d\d|\b(?:SlowDown|ExpiredToken|InvalidAccessKeyId|RequestTimeTooSkewed)\b"
    r"|\bAWS Error (?!ACCESS_DENIED)[A-Z]"
)
_CATALOG_FAILS = re.compile(  # of a REST server, a database and a metastore
    r"\biceberg\.(?:exceptions\.(?:RESTException|Service\w+Exception|NotAuthorizedException)|jdbc\.UncheckedSQL\w+"
    r"|hive\.RuntimeMetaException)"
)
_UNKNOWN_COMMIT = "CommitStateUnknownException"
_PROCESS_DIED = ("Python worker exited unexpectedly", "ExecutorLostFailure")
PROCESS_DIED = "a process of a task died, perhaps for lack of memory (spark.executor.memoryOverhead)"
_AWAY = re.compile(  # of a Connect server behind an address that others answer, or that began anew; of a stopped driver
    r"StatusCode\.UNAVAILABLE|INVALID_HANDLE\.SESSION_|SparkContext was shut down|stopped SparkContext"
)
_DETAILS = re.compile(r'^\s*details = "(.*)"$', re.MULTILINE)  # of an error of gRPC
_PYTHON_ERROR = re.compile(r"[A-Za-z_][\w.]*(?:: |$)")  # an exception's name and message
_LONGEST = 500


class ProcedureFailed(TerminalError):
    """Raised when a procedure failed; the message is the JVM's, shortened."""


def statement_failure(what: str, message: str) -> IcewrightError:
    """Return the error of the error tree for a message of Spark, by whose fault it is; `what` failed."""
    if _UNKNOWN_COMMIT in message:
        return CommitStateUnknown(f"{what}: the reply to a commit was lost: {root_cause(message)}")
    if is_conflict(message):
        return CommitConflict(f"{what}: a writer committed in between: {root_cause(message)}")
    if _STORE_REFUSES.search(message):
        return StorageUnavailable(f"{what}: {root_cause(message)}")
    if _CATALOG_FAILS.search(message):
        return CatalogUnavailable(f"{what}: {root_cause(message)}")
    return ProcedureFailed(f"{what}: {root_cause(message)}")


def is_conflict(message: str) -> bool:
    """Return whether the error says that another writer committed first."""
    return any(sign in message for sign in _CONFLICTS) and _UNREADABLE_SPEC.search(message) is None


def is_death(message: str) -> bool:
    """Return whether the error says that a process died in which a task ran: an executor, or its Python."""
    return any(sign in message for sign in _PROCESS_DIED)


def is_away(message: str) -> bool:
    """Return whether the error says that the Spark application is gone, though something may answer at its address."""
    return _AWAY.search(message) is not None


def root_cause(message: str) -> str:
    """Return the message of a JVM error's cause, or of a task's Python error, without stack traces."""
    if is_death(message):  # whose cause is an end of file
        return PROCESS_DIED
    if details := _DETAILS.search(message):
        return details[1][:_LONGEST]
    lines = [line.strip() for line in message.splitlines() if line.strip() and not line.strip().startswith("at ")]
    frames = [number for number, line in enumerate(lines) if line.startswith("File ")]
    if "PythonException" in message and frames:
        after = lines[frames[-1] + 1 :]
        return next((line for line in after if _PYTHON_ERROR.match(line)), lines[0])[:_LONGEST]
    # py4j has the error of the call in its second line, behind a colon
    causes = [line for line in lines if line.startswith((": ", "Caused by: "))]
    return (re.sub(r"^(?:Caused by)?: ", "", causes[-1]) if causes else lines[0] if lines else "no message")[:_LONGEST]
