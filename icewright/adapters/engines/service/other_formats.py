"""Tables that another format maintains: its log, and not Iceberg's metadata, decides which data files live.

Delta Lake (UniForm), Apache XTable and Paimon write Iceberg metadata beside their own, for readers. Their writers know
nothing of what an Iceberg client commits: their clean-up deletes the files of a compaction, and their older versions
read what an expiry deletes (https://docs.delta.io/latest/delta-uniform.html).
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from icewright.adapters.engines.service.folders import files_below
from icewright.core.errors import Refused
from icewright.core.paths import key
from icewright.core.table import TableMetadata
from icewright.core.words import in_shell
from icewright.ports import Storage

# a file that each table of the format has
_MARKERS = {
    "_delta_log/_last_checkpoint": "Delta Lake",
    "_delta_log/00000000000000000000.json": "Delta Lake",
    ".hoodie/hoodie.properties": "Apache Hudi",
    "schema/schema-0": "Apache Paimon",
    "snapshot/LATEST": "Apache Paimon",
}
# where there may be none of these: Delta's log loses its first version, and `_last_checkpoint` is only a hint
_DELTA_LOG = "_delta_log"


def markers_of_other_formats(files: Storage, metadata: TableMetadata) -> dict[str, str]:
    """Return what lies at the table's location by which another format knows its tables, each with the format."""
    location = metadata.location.rstrip("/")
    paths = {f"{location}/{file}": name for file, name in _MARKERS.items()}
    stats = files.stat(list(paths), len(paths))
    markers = {path: name for path, name in paths.items() if stats.get(path) is not None}
    log = f"{location}/{_DELTA_LOG}"
    if not markers and any(frame.height for frame in files_below(files, log)):
        markers[log] = "Delta Lake"
    return markers


def require_iceberg_alone(files: Storage, metadata: TableMetadata, adopted: Callable[[], Collection[str]]) -> None:
    """Raise `Refused` when another format maintains the table, unless a person has adopted what is left of it."""
    markers = markers_of_other_formats(files, metadata)
    confirmed = adopted() if markers else ()
    for path, name in markers.items():
        if key(path) not in confirmed:
            raise Refused(
                f"{metadata.ref}: {path} belongs to a table of {name} that shares the data files with this one: "
                f"maintain it there. If nobody uses it as {name} any more, delete that, or say so by "
                f"`icewright adopt {in_shell(metadata.ref)}`",
                "other_format",
            )
