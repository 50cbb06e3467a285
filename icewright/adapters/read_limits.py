"""Limits on the size of the table metadata that this process reads, so that one table cannot take all of its memory."""

from __future__ import annotations

from dataclasses import dataclass

from icewright.ports import SizeLimit
from icewright.ports.memory import ROOM

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """Sizes above which a table's metadata is refused; the configuration's section `reading` sets them."""

    max_metadata_bytes: int = 2048 * MIB  # of a metadata.json, as stored and inflated
    max_manifest_bytes: int = 256 * MIB  # of a manifest list or manifest, as stored and inflated
    max_snapshots: int = 500_000  # in one metadata.json
    max_listing_bytes: int = 256 * MIB  # of a catalog's replies to one question that is about no single table
    max_total_bytes: int = 512 * MIB  # of all tables that are evaluated at the same time

    @classmethod
    def of_settings(
        cls, *, max_metadata_mb: int, max_manifest_mb: int, max_snapshots: int, max_listing_mb: int, max_total_mb: int
    ) -> ReadLimits:
        """Return the limits by the keys of the section `reading`."""
        sizes = max_metadata_mb * MIB, max_manifest_mb * MIB, max_snapshots, max_listing_mb * MIB, max_total_mb * MIB
        return cls(*sizes)

    @property
    def metadata(self) -> SizeLimit:
        """Return the limit of a metadata.json, and of any file that is no manifest or manifest list."""
        return SizeLimit("reading.max_metadata_mb", self.max_metadata_bytes)

    @property
    def manifest(self) -> SizeLimit:
        """Return the limit of a manifest or manifest list."""
        return SizeLimit("reading.max_manifest_mb", self.max_manifest_bytes)

    @property
    def listing(self) -> SizeLimit:
        """Return the limit of a catalog's listing, and of its other replies that are about no single table."""
        return SizeLimit("reading.max_listing_mb", self.max_listing_bytes)


_limits = ReadLimits()


def set_read_limits(limits: ReadLimits) -> None:
    """Set the limits of the whole process, as a resource limit of an operating system is set."""
    global _limits  # noqa: PLW0603 - memory is the process's, whichever catalog or reader takes it
    _limits = limits
    ROOM.max_bytes = limits.max_total_bytes


def read_limits() -> ReadLimits:
    """Return the limits of this process."""
    return _limits
