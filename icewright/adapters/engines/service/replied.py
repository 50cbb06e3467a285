"""Metadata as a server replies with it, compared with the file that the reply names."""

from __future__ import annotations

from icewright.core.errors import Refused
from icewright.core.table import TableMetadata
from icewright.core.vacuum import gc_enabled
from icewright.ports import Catalog, Replying


def require_as_written(catalog: Catalog, metadata: TableMetadata) -> None:
    """Raise `Refused` when a server's reply lacks what the metadata file has: files in use would look unreached.

    Any other difference in form or order, and whatever the reply has beyond the file, does no harm.
    """
    if not isinstance(catalog, Replying):
        return
    if lacking := sorted(_named(catalog.load_from_file(metadata)) - _named(metadata)):
        raise Refused(
            f"{metadata.ref}: {metadata.metadata_location} has {lacking[0]}, and the reply of catalog {catalog.name} "
            "that names this file does not: nothing is expired or deleted. Mend the server, or empty the cache in "
            "front of it",
            "reply_differs",
        )


def _named(metadata: TableMetadata) -> frozenset[str]:
    """Return phrases for all that the metadata has by which files are kept, owned or located."""
    snapshots = (f"snapshot {s.snapshot_id} ({s.manifest_list or ', '.join(s.manifests)})" for s in metadata.snapshots)
    refs = (f"{ref.kind} {ref.name} at snapshot {ref.snapshot_id}" for ref in metadata.refs)
    statistics = (f"statistics {s.path}" for s in (*metadata.statistics, *metadata.partition_statistics))
    former = (f"former version {path}" for path in metadata.metadata_log)
    uuid = [f"uuid {metadata.table_uuid}"] if metadata.table_uuid else []
    forbidden = [] if gc_enabled(metadata.properties) else ["gc.enabled=false"]
    location = f"location {metadata.location.rstrip('/')}"
    return frozenset((*snapshots, *refs, *statistics, *former, *uuid, *forbidden, location))
