"""Storage that takes its time: credentials that end in between are renewed, and who commits meanwhile loses nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.request import urlopen

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from icewright.app.bootstrap import application, read_config
from icewright.core.policy import Operation
from icewright.core.runs import JobState
from icewright.core.table import TableRef
from icewright.flow.detect import detect
from icewright.flow.execute import JobResult, execute
from icewright.flow.operation import Request
from icewright.ports import Clock
from icewright.testing import FixedClock
from tests.faulty_proxy import Fault, faulty_proxy
from tests.lending import GOOD, lender
from tests.s3 import s3_server, store

pytestmark = pytest.mark.external
REF = TableRef("lake", ("sales",), "orders")
ROWS = pa.table({"id": pa.array(range(5), pa.int64())})
CONFIG = """\
state: sqlite:///{home}/state.db
catalogs: {{lake: {{type: {kind}, enabled: true, allowed_locations: ["s3://lake/"], properties: {properties}}}}}
cache: {{folder: "{home}/cache"}}
policy: [{{set: {{deletion.delay_hours: 0, remove_orphans.mode: delete, remove_orphans.max_delete_ratio: 1.0}}}}]
"""


@pytest.fixture
def s3() -> Iterator[Mapping[str, str]]:
    """An S3 server with an empty bucket."""
    with s3_server() as found:
        yield found


@pytest.fixture
def table(s3: Mapping[str, str], tmp_path: Path) -> Iterator[Table]:
    """A table of some commits, written by others."""
    uri = f"sqlite:///{tmp_path}/catalog.db"
    catalog = SqlCatalog("lake", uri=uri, warehouse="s3://lake/warehouse", **s3)
    catalog.create_namespace("sales")
    made = catalog.create_table("sales.orders", ROWS.schema)
    for _ in range(3):
        made.append(ROWS)
    yield made
    catalog.close()


def _orphans(s3: Mapping[str, str], table: Table, count: int) -> set[str]:
    """Files below the table's location that nobody committed; names that come last."""
    folder = f"{table.location().removeprefix('s3://lake/')}/data"
    keys = [f"{folder}/zz-{number:05d}.parquet" for number in range(count)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: obstore.put(store(s3), key, b"x"), keys))
    return set(keys)


def _removed(home: Path, kind: str, properties: Mapping[str, str], clock: Clock | None = None) -> JobResult:
    """Orphans removed by the whole of Icewright."""
    file = home / "icewright.yaml"
    file.write_text(CONFIG.format(home=home, kind=kind, properties=json.dumps(dict(properties))))
    with application(read_config(file), kind="manual", clock=clock) as app:
        detect(app.runtime, ["lake"])
        return execute(app.runtime, Request(REF, (Operation.REMOVE_ORPHANS,), manual=True))


def _left(s3: Mapping[str, str]) -> set[str]:
    return {meta["path"] for page in obstore.list(store(s3), "warehouse/") for meta in page}


@pytest.mark.cases(79)
def test_a_commit_during_a_slow_listing(s3: Mapping[str, str], table: Table, tmp_path: Path) -> None:
    """A file that was listed before it was committed is reached all the same; what nobody committed goes."""
    lost = _orphans(s3, table, 1010)  # more than a page
    later = FixedClock(datetime.now(UTC) + timedelta(days=9))
    late = f"{table.location()}/data/00000-late.parquet"
    local = tmp_path / "late.parquet"
    pq.write_table(ROWS, local)
    obstore.put(store(s3), late.removeprefix("s3://lake/"), local.read_bytes())

    with faulty_proxy(s3["s3.endpoint"]) as slow:
        real = slow.take

        def take(line: str) -> Fault | None:
            if "continuation-token" in line:
                slow.take = real  # type: ignore[method-assign]
                table.add_files([late])
            return real(line)

        slow.take = take  # type: ignore[method-assign]
        properties = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": "s3://lake/warehouse", **s3}
        result = _removed(tmp_path, "sql", {**properties, "s3.endpoint": slow.address}, later)
    assert result.state is JobState.SUCCEEDED, result.summary
    assert result.outcomes[0].metrics["orphans_removed"] == len(lost)
    left = _left(s3)
    assert late.removeprefix("s3://lake/") in left
    assert not lost & left
    assert table.refresh().scan().to_arrow().num_rows == 20


@pytest.mark.cases(79)
def test_a_page_that_a_listing_lost(s3: Mapping[str, str], table: Table, tmp_path: Path) -> None:
    """With it the metadata of a table that no catalog names, whose files then look orphan: a live file is lost too."""
    data = f"{table.location()}/data".removeprefix("s3://lake/")
    guest, file = f"{data}/0-guest/metadata/00000-a.metadata.json", f"{data}/zz-of-guest.parquet"
    first = min(table.inspect.files()["file_path"].to_pylist()).removeprefix("s3://lake/")
    metadata = bytes(obstore.get(store(s3), table.metadata_location.removeprefix("s3://lake/")).bytes())
    obstore.put(store(s3), guest, metadata.replace(str(table.metadata.table_uuid).encode(), b"another"))
    obstore.put(store(s3), file, b"x")
    page: list[str] = []

    def shortened(line: str, _headers: Mapping[str, str]) -> Fault | None:
        if "list-type=2" not in line:
            return None
        with urlopen(s3["s3.endpoint"] + line.split()[1]) as reply:  # noqa: S310 - loopback
            content = reply.read()
        for key in page:
            content = re.sub(rb"<Contents><Key>%b</Key>.*?</Contents>" % re.escape(key.encode()), b"", content)
        return Fault("", status=200, body=content)

    with faulty_proxy(s3["s3.endpoint"]) as gate:
        gate.guard = shortened
        properties = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": "s3://lake/warehouse", **s3}
        later = FixedClock(datetime.now(UTC) + timedelta(days=9))
        for lost, code in (([], "[foreign_metadata]"), ([guest, first], "[incomplete_listing]")):
            page[:] = lost
            assert code in _removed(tmp_path, "sql", {**properties, "s3.endpoint": gate.address}, later).summary
    assert file in _left(s3)


def test_lent_credentials_end_meanwhile(s3: Mapping[str, str], table: Table, tmp_path: Path) -> None:
    """A server lends credentials for a moment: listing, reading and deleting go on with fresh ones, none is refused."""
    lost = _orphans(s3, table, 100)
    with lender(s3["s3.endpoint"]) as server:
        metadata = obstore.get(store(s3), table.metadata_location.removeprefix("s3://lake/")).bytes()
        server.table = {"metadata-location": table.metadata_location, "metadata": json.loads(bytes(metadata))}
        server.slow = 0.5
        result = _removed(tmp_path, "rest", {"uri": server.address})
        assert result.state is JobState.SUCCEEDED, result.summary
        assert result.outcomes[0].metrics["orphans_removed"] == len(lost)
        assert server.refused == []
        used = [line for line, status in server.gate.seen if status == 200]
        assert len(used) * server.slow > GOOD  # the first would not have lasted
        assert 2 < len(server.lent) < 2 * len(used)
    assert not lost & _left(s3)
