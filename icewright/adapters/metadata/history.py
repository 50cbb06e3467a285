"""The past of a table as its metadata file has it, which few need: the log of main's snapshots, and all schemas."""

from __future__ import annotations

from icewright.adapters.metadata.document import Editor, decode
from icewright.adapters.metadata.parsing import time_of
from icewright.core.errors import MetadataUnreadable
from icewright.core.restore import TableHistory


def read_history(content: bytes, location: str) -> TableHistory:
    """Return the history in a metadata file. Raises `MetadataUnreadable`."""
    document = Editor(decode(content, location))
    try:
        entries = sorted((time_of(e["timestamp-ms"]), e["snapshot-id"]) for e in document.get("snapshot-log", []))
        schemas = document.get("schemas", []) or [document.get("schema", {})]
        return TableHistory(tuple(entries), {schema.get("schema-id", 0): schema for schema in schemas})
    except (AttributeError, KeyError, TypeError, OverflowError) as error:
        raise MetadataUnreadable(f"{location}: not as the spec has it ({type(error).__name__}: {error})") from error
