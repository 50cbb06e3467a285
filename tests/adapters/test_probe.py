"""A probe is one SELECT over the table alone: what could read or do anything else is refused."""

from __future__ import annotations

import pytest

from icewright.adapters.engines.spark.probe import checked, over
from icewright.core.errors import Refused
from icewright.core.table import TableRef

REF = TableRef("lake", ("a.b", "c`d"), "t")
ON_ONE = "`lake`.`a.b`.`c``d`.`t` VERSION AS OF 7"


@pytest.mark.parametrize(
    ("query", "run"),
    [
        ("SELECT * FROM {table}", "SELECT * FROM {table}"),
        ("select count(*) from {table} -- fast?\n", "SELECT COUNT(*) FROM {table}"),
        (
            "SELECT region, sum(amount * 2) FROM {table} WHERE day >= CURRENT_DATE - INTERVAL 7 DAYS GROUP BY region",
            "SELECT region, SUM(amount * 2) FROM {table} WHERE day >= CURRENT_DATE - INTERVAL '7' DAYS GROUP BY region",
        ),
        (
            "SELECT max(x.n) FROM (SELECT id, count(*) n FROM {table} GROUP BY id HAVING count(*) > 1) x",
            "SELECT MAX(x.n) FROM (SELECT id, COUNT(*) AS n FROM {table} GROUP BY id HAVING COUNT(*) > 1) AS x",
        ),
        (
            "SELECT a.id FROM {table} a JOIN {table} b ON a.id = b.parent WHERE a.s LIKE 'x%' LIMIT 5",
            "SELECT a.id FROM {table} AS a JOIN {table} AS b ON a.id = b.parent WHERE a.s LIKE 'x%' LIMIT 5",
        ),
        ("SELECT `odd name`, m['k'], s.f FROM {table}", "SELECT `odd name`, m['k'], s.f FROM {table}"),
        ("SELECT upper('x\\'y') FROM {table}", "SELECT UPPER('x\\'y') FROM {table}"),
    ],
)
def test_what_runs(query: str, run: str) -> None:
    """The query as it was parsed, over a snapshot of the table, whose name is quoted."""
    assert over(checked(query), REF, 7) == run.replace("{table}", ON_ONE)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT FROM WHERE {table} (", "cannot be parsed"),
        ("SELECT 1; DROP TABLE {table}", "is not one SELECT"),
        ("DROP TABLE {table}", "is not one SELECT"),
        ("DELETE FROM {table}", "is not one SELECT"),
        ("INSERT INTO {table} SELECT * FROM {table}", "is not one SELECT"),
        ("CALL lake.system.expire_snapshots('{table}')", "is not one SELECT"),
        ("SET x = '{table}'", "is not one SELECT"),
        ("SELECT * FROM {table} UNION ALL SELECT * FROM {table}", "is not one SELECT"),
        ("SELECT * FROM (SELECT a FROM {table} UNION SELECT a FROM {table})", "is not one SELECT"),
        ("SELECT 1 AS `{table}`", r"must name \{table\} after FROM"),
        ("SELECT '{table}' FROM {table}", r"must name \{table\} after FROM"),
        ("SELECT {table}.id FROM {table}", "give it an alias"),
        ("SELECT * FROM {table}, other", "alone, not other"),
        ("SELECT * FROM {table}.files", r"alone, not \{table\}\.files"),
        ("SELECT * FROM lake.{table}", r"alone, not lake\.\{table\}"),
        ("SELECT (SELECT max(a) FROM lake.b.secrets) FROM {table}", r"alone, not lake\.b\.secrets"),
        ("SELECT * FROM {table} WHERE a IN (SELECT a FROM parquet.`/etc/x`)", "alone, not parquet"),
        ("WITH q AS (SELECT * FROM {table}) SELECT * FROM q", "may not use with|alone, not q"),
        ("SELECT * FROM {table}, range(10)", "may not use|alone, not"),
        ("SELECT * FROM {table} VERSION AS OF 3", "may not use version"),
        ("SELECT reflect('java.lang.System', 'exit', 1) FROM {table}", "may not use anonymous"),
        ("SELECT java_method('java.lang.System', 'exit', 1) FROM {table}", "may not use anonymous"),
        ("SELECT TRANSFORM(a) USING 'cat' AS (b) FROM {table}", "may not use querytransform"),
        ("SELECT explode(m) FROM {table}", "may not use explode"),
        ("SELECT a FROM {table} LATERAL VIEW explode(m) q AS z", "may not use lateral"),
        ("SELECT ai_query('model', a) FROM {table}", "may not use anonymous"),
        ("SELECT current_user() FROM {table}", "may not use currentuser"),
        ("SELECT ${x} FROM {table}", "may not use parameter"),
        ("SELECT :x FROM {table}", "may not use placeholder"),
        ("SELECT /*+ BROADCAST(x) */ * FROM {table} x", "may not use hint"),
    ],
)
def test_what_is_refused(query: str, said: str) -> None:
    """With what is wrong, and an example of what would be right."""
    with pytest.raises(Refused, match=said):
        checked(query)
