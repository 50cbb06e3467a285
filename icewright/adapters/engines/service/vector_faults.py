"""Where deletion vectors differ from their entries."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

from icewright.adapters.engines.arrow.deletes import vector_positions
from icewright.adapters.engines.service.content_file import ContentFile
from icewright.adapters.engines.service.footers import puffin_blobs
from icewright.core import field_ids as ids
from icewright.core.integrity import FileFaultKind
from icewright.ports import TableFiles


def vector_faults(
    files: TableFiles, entry: ContentFile, records: Mapping[str, int]
) -> Iterator[tuple[FileFaultKind, str]]:
    """Yield where a vector is another than its entry says; `records` are the rows of data files by path."""
    offset, length = entry.values.get(ids.CONTENT_OFFSET), entry.values.get(ids.CONTENT_SIZE)
    blobs = puffin_blobs(files, entry.path, entry.bytes)
    blob = next((b for b in blobs if (b["offset"], b["length"]) == (offset, length)), None)
    if offset is None or length is None or (blobs and blob is None):
        yield FileFaultKind.WRONG_VECTOR, f"its entry says {length} bytes at {offset}, where the file has no blob"
        return
    if blob and (other := blob.get("properties", {}).get("referenced-data-file", entry.referenced)) != entry.referenced:
        yield FileFaultKind.WRONG_VECTOR, f"its blob at {offset} is of {other}, and its entry of {entry.referenced}"
    try:
        positions = vector_positions(files.read_range(entry.path, offset, length))
    except (ValueError, struct.error) as error:
        yield FileFaultKind.WRONG_VECTOR, f"the vector at {offset} is broken: {error}"
        return
    if len(positions) != entry.records:
        yield FileFaultKind.WRONG_VECTOR, f"the vector at {offset} has {len(positions)} positions, not {entry.records}"
    rows = records.get(entry.referenced)
    if rows is not None and len(positions) and positions.max() >= rows:
        deleted = f"position {positions.max()} of {entry.referenced}, which has {rows} rows"
        yield FileFaultKind.WRONG_POSITIONS, f"the vector at {offset} deletes {deleted}"
