"""Moto's server with what Glue does and moto leaves out: `VersionId` is compared, and lists come in pages."""

from __future__ import annotations

import threading
from typing import Any

from moto.core.responses import ActionResult
from moto.glue.exceptions import GlueClientError
from moto.glue.responses import GlueResponse
from moto.server import main

PAGE = 3  # Glue's are of a hundred
_LOCK = threading.Lock()
_update, _tables, _databases = GlueResponse.update_table, GlueResponse.get_tables, GlueResponse.get_databases


def _compared(self: Any) -> Any:
    wanted = self.parameters.get("VersionId")
    with _LOCK:
        table = self.glue_backend.get_table(self.parameters["DatabaseName"], self.parameters["TableInput"]["Name"])
        if wanted is not None and str(table.as_dict()["VersionId"]) != str(wanted):
            raise GlueClientError("ConcurrentModificationException", "Update table failed due to concurrent changes.")
        return _update(self)


def _paged(self: Any, whole: Any, name: str) -> Any:
    items = whole(self).result[name]
    start = int(self.parameters.get("NextToken") or 0)
    more = {"NextToken": str(start + PAGE)} if start + PAGE < len(items) else {}
    return ActionResult({name: items[start : start + PAGE], **more})


for name, action in (
    ("update_table", _compared),
    ("get_tables", lambda self: _paged(self, _tables, "TableList")),
    ("get_databases", lambda self: _paged(self, _databases, "DatabaseList")),
):
    setattr(GlueResponse, name, action)

if __name__ == "__main__":
    main()
