"""Sums that are kept for ever, added to in the transaction of what they count."""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa

from icewright.adapters.store.database import inserting
from icewright.adapters.store.schema import TOTALS
from icewright.core.tally import Total


def add(connection: sa.Connection, added: Mapping[Total, float]) -> None:
    """Add to the sums, in one order whoever does it, so that no two processes wait for each other in a ring."""
    if not added:
        return
    insert = inserting(connection, TOTALS)
    more = insert.on_conflict_do_update(
        index_elements=list(Total._fields), set_={"value": TOTALS.c.value + insert.excluded.value}
    )
    connection.execute(more, [{**total._asdict(), "value": value} for total, value in sorted(added.items())])
