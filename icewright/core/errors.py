"""The error tree. Each class says whether trying again can help.

IcewrightError
├── TerminalError          trying again cannot help until somebody changes something
│   ├── ConfigError        one or many faults in configuration or policy
│   ├── BadEvent           an event that was pushed says nothing that can be understood
│   ├── UsageError         a command was called with something that does not exist
│   ├── TableNotFound      the catalog does not know the table (any more)
│   ├── TableReplaced      the table of this name has another uuid now
│   ├── MetadataUnreadable a metadata file, manifest list or manifest is missing or broken
│   │   └── FileMissing    it is missing
│   ├── AccessDenied       the catalog or the storage does not let us
│   ├── UnsupportedTable   this path cannot maintain such a table
│   ├── Refused            a safety rule forbids the action
│   └── InvariantViolated  a commit did not keep what it had to keep
├── RetryableError         the same call may succeed later
│   ├── CatalogUnavailable the catalog did not answer
│   ├── StorageUnavailable the object store or file system did not answer
│   │   └── FolderMissing  a folder that was to be listed is not there
│   ├── EngineUnavailable  Spark could not be started or died
│   ├── CommitConflict     somebody else committed first; plan again from fresh metadata
│   ├── ChannelUnavailable a channel did not take an alert
│   ├── LeaseLost          another worker owns the table now
│   └── Cancelled          somebody asked for the job to stop
└── UnknownOutcome         the action may or may not have happened: read before doing anything
    └── CommitStateUnknown the reply to a commit was lost
"""

from __future__ import annotations

from collections.abc import Sequence


class IcewrightError(Exception):
    """Base of all errors that Icewright raises on purpose."""


class TerminalError(IcewrightError):
    """Trying again cannot help until somebody changes something."""


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
    """An event that was pushed cannot be understood; `faults` says where and what would be right."""

    def __init__(self, faults: Sequence[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(self.faults))


class UsageError(TerminalError):
    """A command named something that does not exist or cannot be done."""


class TableNotFound(TerminalError):
    """The catalog does not know the table."""


class TableReplaced(TerminalError):
    """The table was dropped and created again: what was known of it is void."""


class MetadataUnreadable(TerminalError):
    """A metadata file, manifest list or manifest is missing, truncated or foreign."""


class FileMissing(MetadataUnreadable):
    """A file that the table needs is not there."""


class AccessDenied(TerminalError):
    """The catalog or the storage knows who asks, and does not let them, or does not know them."""


class UnsupportedTable(TerminalError):
    """This path cannot maintain such a table."""


class Refused(TerminalError):
    """A safety rule forbids the action; nothing was changed. `code` names the rule, and ends the message."""

    def __init__(self, message: str, code: str = "") -> None:
        self.code = code
        super().__init__(f"{message} [{code}]" if code else message)


class InvariantViolated(TerminalError):
    """A commit did not keep what it had to keep."""


class CatalogUnavailable(RetryableError):
    """The catalog did not answer."""


class StorageUnavailable(RetryableError):
    """The storage did not answer."""


class FolderMissing(StorageUnavailable):
    """A folder that was to be listed is not there: it may be a disk that is away."""


class EngineUnavailable(RetryableError):
    """Spark could not be started or died."""


class CommitConflict(RetryableError):
    """Somebody else committed first; plan again from fresh metadata."""


class ChannelUnavailable(RetryableError):
    """A channel did not take an alert; it is told again later."""


class LeaseLost(RetryableError):
    """Another worker owns the table now; this one stops before it commits."""


class Cancelled(RetryableError):
    """Somebody asked for the job to stop."""


class CommitStateUnknown(UnknownOutcome):
    """The reply to a commit was lost; only reading the table again tells what happened."""
