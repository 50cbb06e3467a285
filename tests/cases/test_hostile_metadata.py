"""Metadata made to harm its reader costs its own table alone, in a process of bounded memory."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import zlib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fastavro
import pytest

from icewright.core.policy import Operation
from icewright.core.retention import expired_by_iceberg
from icewright.core.runs import OperationState
from icewright.flow.execute import execute
from icewright.flow.operation import Request
from icewright.flow.reconcile import Reconciler
from tests.cases.workspace import BY_PART, EXPIRE, MANIFESTS, ORPHANS, Workspace, edit, ref

MAX_PEAK_MIB = 1280  # 1,000 to 1,050 are seen; the bombs inflate to 4,096
# getrusage would give the peak of the parent, which the child is forked from
_CYCLE = """
import sys
from icewright.app.cli import main
sys.argv = ["icewright", "--config", sys.argv[1], "cycle", "--dry-run"]
try:
    main()
finally:
    print(*[line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM:")])
"""
_SNAPSHOT = b'{"snapshot-id":%d,"timestamp-ms":1760000000000,"manifest-list":"m","summary":{"operation":"append"}},'


def _list_at(path: str) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        for snapshot in document["snapshots"]:
            snapshot["manifest-list"] = path

    return change


def _deflate_bomb(path: Path) -> None:
    """Write a manifest list of 4 MB that inflates to 4 GB of records."""
    schema = {"type": "record", "name": "manifest_file", "fields": [{"name": "p", "type": "string", "field-id": 500}]}
    with path.open("wb") as out:
        fastavro.writer(out, fastavro.parse_schema(schema), [], codec="deflate", sync_marker=b"s" * 16)
        packer = zlib.compressobj(9, zlib.DEFLATED, -15)
        zeros = packer.compress(bytes(1 << 24)) + packer.flush(zlib.Z_FULL_FLUSH)
        block = zeros * 256 + packer.flush()
        fastavro.schemaless_writer(out, {"type": "long"}, 1)
        fastavro.schemaless_writer(out, {"type": "long"}, len(block))
        out.write(block + b"s" * 16)


def _gzip_bomb(path: Path) -> None:
    """Write a metadata file of 4 MB that inflates to 4 GB."""
    member = gzip.compress(bytes(1 << 24))
    path.write_bytes(gzip.compress(path.read_bytes()[:-1]) + member * 256)


def _million_snapshots(path: Path) -> None:
    document = json.loads(path.read_text(encoding="utf-8"))
    document["snapshots"] = "here"
    before, _, after = json.dumps(document).encode().partition(b'"here"')
    snapshots = b"".join(_SNAPSHOT % number for number in range(1_000_000))
    path.write_bytes(before + b"[" + snapshots[:-1] + b"]" + after)


@pytest.mark.cases(150, "T4")
def test_one_process_evaluates_every_other_table_in_bounded_memory(workspace: Workspace) -> None:
    """Each hostile table is recorded as unreadable, with its reason; the healthy one is evaluated."""
    home = workspace.home
    os.mkfifo(home / "pipe")
    _deflate_bomb(home / "bomb.avro")
    lists = {"device": "/dev/zero", "pipe": f"{home}/pipe", "deflate": f"{home}/bomb.avro"}
    for name, path in lists.items():
        workspace.table(f"sales.{name}", salt=name)
        edit(workspace.metadata_file(f"sales.{name}"), _list_at(f"file://{path}"))
    for name, write in {"gzip": _gzip_bomb, "snapshots": _million_snapshots}.items():
        workspace.table(f"sales.{name}", salt=name)
        write(workspace.metadata_file(f"sales.{name}"))
    workspace.table("sales.nul", salt="nul")
    edit(workspace.metadata_file("sales.nul"), lambda document: document.update(location=document["location"] + "\0"))
    workspace.table("sales.healthy", salt="healthy")

    command = [sys.executable, "-c", _CYCLE, str(home / "icewright.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    rows = {row.ref.name: row for row in workspace.app.runtime.store.tables.list("lake")}
    expected = {
        "device": "no regular file",
        "pipe": "no regular file",
        "deflate": "raise reading.max_manifest_mb",
        "gzip": "inflate to more than 268435456",
        "snapshots": "raise reading.max_snapshots",
        "nul": "U+0000",
    }
    assert [name for name, reason in expected.items() if reason not in (rows[name].error or "")] == []
    assert (rows["healthy"].error, rows["healthy"].health is not None) == (None, True)
    assert int(done.stdout.split()[-1]) / 1024 < MAX_PEAK_MIB


_DIES_READING = """
import os, signal, sys
from icewright.adapters.files.local import LocalStorage
from icewright.app.cli import main
read = LocalStorage.read
def killed(self, path, limit=None):
    if "sales/killer" in path:
        os.kill(os.getpid(), signal.SIGKILL)
    return read(self, path, limit)
LocalStorage.read = killed
sys.argv = ["icewright", "--config", sys.argv[1], "cycle", "--dry-run"]
main()
"""


@pytest.mark.cases(150)
def test_a_table_whose_reader_is_killed_cannot_kill_it_for_ever(workspace: Workspace) -> None:
    """The second process evaluates every other table first; the third does not read the table that killed two."""
    for name in ("killer", "healthy"):
        workspace.table(f"sales.{name}", salt=name)
    config = str(workspace.home / "icewright.yaml")
    runtime, tables = workspace.app.runtime, workspace.app.runtime.store.tables
    workspace.clock.time = datetime.now(UTC)
    ends = []
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", _DIES_READING, config], capture_output=True, check=False)
        ends.append(done.returncode)
        Reconciler(runtime).due()
    killer, healthy = (tables.get(ref(f"sales.{name}")) for name in ("killer", "healthy"))
    assert killer is not None
    assert healthy is not None
    assert ends == [-signal.SIGKILL, -signal.SIGKILL, 3], done.stdout.decode()  # 3: a table is unreadable
    assert killer.error == "unreadable: its evaluation ended a process 2 times"
    assert (healthy.error, healthy.health is not None) == (None, True)


_LONG = "9" * 5000  # digits: Python reads no number of so many
_COUNTS = ("records", "data-files", "files-size", "delete-files", "position-deletes", "equality-deletes")


def test_numbers_of_thousands_of_digits(workspace: Workspace) -> None:
    """In properties they mean as much as possible, and in summaries nothing: every operation runs to its end."""

    def lengthen(document: dict[str, Any]) -> None:
        names = ("write.metadata.previous-versions-max", "history.expire.min-snapshots-to-keep")
        document["properties"] |= dict.fromkeys((*names, "commit.manifest.target-size-bytes"), _LONG)
        for snapshot in document["snapshots"]:
            snapshot["summary"] |= {"operation": "append"} | {
                f"{what}-{name}": _LONG for what in ("added", "deleted", "total") for name in _COUNTS
            }

    craft = workspace.craft(spec=BY_PART)
    workspace.commits(craft, (400, 300, 200, 100), replacing=False)
    workspace.publish(craft, lengthen)
    before = workspace.read()["main"]
    level = {"check__level": "rows", "execute__check_totals": False}
    looking = (Operation.COMPUTE_STATISTICS, Operation.CHECK)
    for operation in (*looking, MANIFESTS, *looking, EXPIRE):
        done = workspace.run(operation, **level)
        assert done.state is OperationState.COMMITTED, done
        if operation is MANIFESTS:
            edit(workspace.metadata_file(), lengthen)
    runtime = workspace.runtime({"remove_orphans.mode": "delete", "remove_orphans.enabled": True})
    (orphans,) = execute(runtime, Request(ref("sales.orders"), (ORPHANS,))).outcomes
    assert "unexpected" not in orphans.summary + orphans.reason, orphans
    assert expired_by_iceberg(workspace.metadata(), workspace.clock.now()).snapshot_ids == ()
    assert workspace.read()["main"] == before
