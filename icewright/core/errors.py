"""The error tree. Each class says whether trying again can help, and whose fault the error is.

The last column is the owner of the fault. Only faults of the table count for the circuit breaker that pauses a table;
a catalog, a storage place or a pool that fails has a breaker of its own (`core.breakers`).

IcewrightError
├── TerminalError          trying again cannot help until something is changed
│   ├── ConfigError        one or many faults in configuration or policy                                   icewright
│   ├── BadEvent           a pushed event cannot be understood                                             icewright
│   ├── UsageError         a command was called with something that does not exist                         icewright
│   │   └── PackagesMissing the packages that read tables are not installed                                icewright
│   ├── TableNotFound      the catalog does not know the table (any more)                                  table
│   ├── TableReplaced      the table of this name has another uuid now                                     table
│   ├── MetadataUnreadable a metadata file, manifest list or manifest is missing or broken                 table
│   │   ├── FileMissing    a file that the table needs does not exist                                      table
│   │   └── MetadataTooLarge a metadata file exceeds a limit of the section `reading`                      table
│   ├── AccessDenied       the catalog or the storage denies access                                        table
│   ├── UnsupportedTable   this path cannot maintain such a table                                          table
│   ├── Refused            a safety rule forbids the action                                                table
│   └── InvariantViolated  a commit did not keep what it had to keep                                       table
├── RetryableError         the same call may succeed later
│   ├── CatalogUnavailable the catalog did not answer                                                      catalog
│   ├── StorageUnavailable the object store or file system did not answer                                  storage
│   │   ├── StorageHangs   a call has not returned in time, and nothing can end the call                   storage
│   │   ├── FolderMissing  a folder that was to be listed is not there                                     table
│   │   └── StoreUnavailable the database of the state store did not answer                                store
│   │       └── SchemaMismatch the state store has the schema of another version of this program           store
│   ├── EngineUnavailable  Spark could not be started or died                                              pool
│   ├── CommitConflict     another writer committed first; plan again from fresh metadata                  table
│   ├── MemoryBusy         other tables take the memory for metadata                                       icewright
│   ├── ChannelUnavailable a channel did not take an alert                                                 icewright
│   ├── LeaseLost          another worker owns the table now                                               icewright
│   └── Cancelled          somebody asked for the job to stop                                              icewright
└── UnknownOutcome         the action may or may not have happened: read before doing anything
    └── CommitStateUnknown the reply to a commit was lost                                                  catalog
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar


class FaultOwner(enum.StrEnum):
    """The part of the system whose fault an error is."""

    TABLE = "table"
    CATALOG = "catalog"
    STORE = "store"  # the database of the state store
    STORAGE = "storage"  # the object store or file system of the tables
    POOL = "pool"
    ICEWRIGHT = "icewright"  # configuration, use, or a bug: an exception of no class below


class IcewrightError(Exception):
    """Base of all errors that Icewright raises on purpose."""

    owner: ClassVar[FaultOwner] = FaultOwner.ICEWRIGHT


class TerminalError(IcewrightError):
    """Trying again cannot help until something is changed."""


class RetryableError(IcewrightError):
    """The same call may succeed later."""


class UnknownOutcome(IcewrightError):
    """The action may or may not have happened."""


class ConfigError(TerminalError):
    """Configuration or policy has faults; `faults` holds every one of them with its key path."""

    def __init__(self, faults: Sequence[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(self.faults))


class BadEvent(TerminalError):
    """A pushed event cannot be understood; `faults` says where and what would be right."""

    def __init__(self, faults: Sequence[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(self.faults))


class UsageError(TerminalError):
    """A command named something that does not exist or cannot be done."""


class TableNotFound(TerminalError):
    """The catalog does not know the table."""

    owner = FaultOwner.TABLE


class TableReplaced(TerminalError):
    """The table was dropped and created again, so that earlier facts of it are void."""

    owner = FaultOwner.TABLE


class MetadataUnreadable(TerminalError):
    """A metadata file, manifest list or manifest is missing, truncated or foreign."""

    owner = FaultOwner.TABLE


class FileMissing(MetadataUnreadable):
    """A file that the table needs does not exist."""


class MetadataTooLarge(MetadataUnreadable):
    """A metadata file, as stored or inflated, is larger than the configuration's section `reading` allows.

    `limit` names the setting that was exceeded.
    """

    def __init__(self, path: str, problem: str, limit: str) -> None:
        self.limit = limit
        super().__init__(
            f"{path}: {problem}: the table is set aside; if its metadata is sound, raise {limit} and the memory of "
            "this process, or shrink it by another engine (expire snapshots, rewrite manifests)"
        )


class AccessDenied(TerminalError):
    """The catalog or the storage knows who asks, and denies access."""

    owner = FaultOwner.TABLE


class UnsupportedTable(TerminalError):
    """This path cannot maintain such a table."""

    owner = FaultOwner.TABLE


class Refused(TerminalError):
    """A safety rule forbids the action; nothing was changed. `code` names the rule and ends the message."""

    owner = FaultOwner.TABLE

    def __init__(self, message: str, code: str = "") -> None:
        self.code = code
        super().__init__(f"{message} [{code}]" if code else message)


class InvariantViolated(TerminalError):
    """A commit did not keep what it had to keep."""

    owner = FaultOwner.TABLE


class CatalogUnavailable(RetryableError):
    """A catalog did not answer. `catalog` names it where it is another one than the table's own."""

    owner = FaultOwner.CATALOG

    def __init__(self, message: str, catalog: str = "") -> None:
        self.catalog = catalog
        super().__init__(message)


class StorageUnavailable(RetryableError):
    """The object store or file system did not answer, or does not take the credentials."""

    owner = FaultOwner.STORAGE


class StorageHangs(StorageUnavailable):
    """A call of the object store or file system has not returned in time, and nothing can end the call."""


class FolderMissing(StorageUnavailable):
    """A folder that was to be listed is not there: it may be a disk that is away."""

    owner = FaultOwner.TABLE


class StoreUnavailable(StorageUnavailable):
    """The database of the state store did not answer."""

    owner = FaultOwner.STORE


class SchemaMismatch(StoreUnavailable):
    """The state store has the schema of another version of this program, so this process takes no work."""


class EngineUnavailable(RetryableError):
    """Spark could not be started or died."""

    owner = FaultOwner.POOL


class CommitConflict(RetryableError):
    """Another writer committed first; plan again from fresh metadata."""

    owner = FaultOwner.TABLE


class MemoryBusy(RetryableError):
    """Other tables have taken the memory that this process has for metadata."""


class ChannelUnavailable(RetryableError):
    """A channel did not take an alert; the alert is sent again later."""


class LeaseLost(RetryableError):
    """Another worker owns the table now; this one stops before it commits."""


class Cancelled(RetryableError):
    """The job was asked to stop."""


class CommitStateUnknown(UnknownOutcome):
    """The reply to a commit was lost; only reading the table again tells whether it landed."""

    owner = FaultOwner.CATALOG


class PackagesMissing(UsageError):
    """The packages that read tables are not installed, which says nothing of any table."""


def explained(error: Exception) -> str:
    """Return the message of an error; that of a bug begins with its class."""
    return str(error) if isinstance(error, IcewrightError) else f"unexpected {type(error).__name__}: {error}"


@contextmanager
def requires_extra(extra: str, what: str, kind: type[IcewrightError] = UsageError) -> Iterator[None]:
    """Raise an error that names the extra to install when a package is missing in the block."""
    try:
        yield
    except ImportError as error:
        raise kind(f"{what} needs more packages: pip install 'icewright[{extra}]' ({error})") from error
