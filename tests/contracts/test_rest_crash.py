"""A process that is killed between the server's dropping of a ref and our putting it back: the next start does it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from icewright.app.bootstrap import application, read_config
from icewright.core.runs import JobState
from icewright.flow.detect import detect
from icewright.flow.reconcile import reconcile_interrupted
from tests.contracts.bench import file_of
from tests.contracts.rest_bench import RestBench
from tests.faulty_proxy import Fault, faulty_proxy
from tests.servers.rest_server import RestHost

pytestmark = pytest.mark.external
CONFIG = """\
state: sqlite:///{home}/icewright.db
catalogs:
  lake: {{type: rest, enabled: true, properties: {{uri: "{uri}", warehouse: "file://{home}/warehouse"}}}}
cache: {{folder: "{home}/cache"}}
policy:
  - set: {{deletion.delay_hours: 0, expire_snapshots.retention_hours: 1, expire_snapshots.min_snapshots_to_keep: 1}}
"""
RUN = "run lake.sales.orders --op expire_snapshots --json"


@pytest.mark.cases(6, 76)
@pytest.mark.parametrize("log", ["there", "lost"])
def test_a_ref_lost_in_a_crash(rest_fixture: RestHost, tmp_path: Path, log: str) -> None:
    """It is put back before any planned file is deleted; where that cannot be told, nothing is deleted, it is said."""
    (tmp_path / "warehouse").mkdir()
    address = rest_fixture.serve(tmp_path / "catalog.db", f"file://{tmp_path}/warehouse")
    bench = RestBench(f"sqlite:///{tmp_path}/catalog.db", tmp_path / "warehouse", address=address)
    base = bench.craft("sales.orders")
    first = base.snapshots[0].snapshot_id
    with faulty_proxy(address) as proxy:
        file = tmp_path / "icewright.yaml"
        file.write_text(CONFIG.format(home=tmp_path, uri=proxy.address))
        with application(read_config(file), kind="manual") as app:
            detect(app.runtime, ["lake"])
        command = [sys.executable, "-m", "icewright", "--config", str(file), *RUN.split()]
        started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        commits, real = [0], proxy.take

        def take(line: str) -> Fault | None:
            if not line.startswith("POST") or not line.endswith("/tables/orders"):
                return real(line)
            commits[0] += 1
            if commits[0] == 1:  # the tag comes with the very request of the commit
                bench.read("sales", "orders").manage_snapshots().create_tag(first, "keep").commit()
                return None
            os.kill(started.pid, signal.SIGKILL)  # as it is about to put the tag back
            return Fault(".", status=500)

        proxy.take = take  # type: ignore[method-assign]
        started.communicate(timeout=60)
        assert (started.returncode, commits[0]) == (-signal.SIGKILL, 2)
        proxy.take = real  # type: ignore[method-assign]
        assert "keep" not in {r.name for r in bench.catalog.load(base.ref).refs}
        files = {p for p in (tmp_path / "warehouse").rglob("*") if p.is_file()}
        if log == "lost":
            file_of(base.metadata_location).unlink()
        with application(read_config(file), kind="manual") as app:
            said = reconcile_interrupted(app.runtime)
            (job,) = app.runtime.store.jobs.list(base.ref)
            assert job.state is JobState.INTERRUPTED
            left = app.runtime.store.ledger.unfinished(app.runtime.clock.now())
        if log == "lost":
            assert any("cannot be read" in line and "no file is deleted" in line for line in said), said
            assert [u.intent is not None for u in left] == [True]
            assert files - set((tmp_path / "warehouse").rglob("*")) == {file_of(base.metadata_location)}
        else:
            assert any("keep was set" in line and "put back" in line for line in said), said
            assert left == []
            (kept,) = (r for r in bench.catalog.load(base.ref).refs if r.name == "keep")
            assert kept.snapshot_id == first
            theirs = bench.read("sales", "orders")
            assert theirs.scan(snapshot_id=first).to_arrow()["id"].to_pylist() == [0]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
            assert json.loads(done.stdout)["state"] in ("succeeded", "skipped")
            assert theirs.refresh().scan(snapshot_id=first).to_arrow().num_rows == 1
    bench.close()
    rest_fixture.end(address)
