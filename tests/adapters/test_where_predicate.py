"""What `compact.where` may say, before it reaches Spark."""

from __future__ import annotations

import re

import pytest

from icewright.adapters.engines.spark.predicate import checked
from icewright.core.errors import Refused
from icewright.testing import metadata

_TABLE = metadata(
    schema={"type": "struct", "fields": [{"id": 1, "name": "ts", "required": False, "type": "timestamp"}]}
)


@pytest.mark.parametrize(
    ("where", "refusal"),
    [
        ("ts >= now() - interval 1 day", None),
        ("ts >= current_timestamp() - interval 1 day", None),
        ("ts >= reflect('java.lang.System', 'exit', '1')", "not use reflect"),
        ("ts >= now() and rand() > 0.5", "not use rand"),
        ("ts in (select 1)", "not use subquery"),
        ("other = 1", "has no column other"),
        ("1 = 1", "names no column"),
        ("ts >= now(); drop table x", "is not one predicate"),
    ],
)
def test_a_predicate_compares_columns_with_values(where: str, refusal: str | None) -> None:
    """The present may be said in all ways that the plan knows; whatever runs code or reads is refused by its name."""
    if refusal is None:
        assert checked(_TABLE, where).lower().startswith("ts >= ")
    else:
        with pytest.raises(Refused, match=re.escape(refusal)):
            checked(_TABLE, where)
