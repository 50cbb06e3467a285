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
    files: TableFiles, one: ContentFile, records: Mapping[str, int]
) -> Iterator[tuple[FileFaultKind, str]]:
    """Yield where a vector is another than its entry says; `records` are the rows of data files by path."""
    offset, length = one.values.get(ids.CONTENT_OFFSET), one.values.get(ids.CONTENT_SIZE)
    blobs = puffin_blobs(files, one.path, one.bytes)
    blob = next((b for b in blobs if (b["offset"], b["length"]) == (offset, length)), None)
    if offset is None or length is None or (blobs and blob is None):
        yield FileFaultKind.WRONG_VECTOR, f"its entry says {length} bytes at {offset}, where the file has no blob"
        return
    if blob and (other := blob.get("properties", {}).get("referenced-data-file", one.referenced)) != one.referenced:
        yield FileFaultKind.WRONG_VECTOR, f"its blob at {offset} is of {other}, and its entry of {one.referenced}"
    try:
        positions = vector_positions(files.read_range(one.path, offset, length))
    except (ValueError, struct.error) as error:
        yield FileFaultKind.WRONG_VECTOR, f"the vector at {offset} is broken: {error}"
        return
    if len(positions) != one.records:
        yield FileFaultKind.WRONG_VECTOR, f"the vector at {offset} has {len(positions)} positions, not {one.records}"
    rows = records.get(one.referenced)
    if rows is not None and len(positions) and positions.max() >= rows:
        detail = f"the vector at {offset} deletes position {positions.max()} of {one.referenced}, which has {rows} rows"
        yield FileFaultKind.WRONG_POSITIONS, detail
