"""Vacuum's identification of live contents over 5 branches of 2,000 commits each, on a real Nessie server.

Prints one JSON line. The peer is a plain client that reads the same commit logs one after the other and keeps nothing:
what the server itself takes. The commits are made in 4 parallel lines and copied to the branches by transplanting.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import obstore
import requests

from icewright.adapters.engines.service.nessie_live import NessieLiveSet
from icewright.core.vacuum import CutoffPolicy
from tests.nessie import nessie_server
from tests.vacuuming import NessieWorkspace

BRANCHES, COMMITS, LINES, TABLES = 5, 2000, 4, 10
LIMIT_SECONDS = 5.0
_EVERYTHING = CutoffPolicy(timedelta(days=1), None, timedelta(days=1), "the benchmark")


def _line(api: str, number: int, root: dict[str, Any], commits: int) -> tuple[list[str], dict[str, str]]:
    """One line of commits on a branch of its own: their hashes, and the last metadata file of each table."""
    session, name = requests.Session(), f"line{number}"
    session.post(f"{api}/trees", params={"name": name, "type": "BRANCH"}, json=root, timeout=60).raise_for_status()
    at = root["hash"]
    ids: dict[str, str] = {}
    last: dict[str, str] = {}
    hashes: list[str] = []
    for commit in range(commits):
        table = f"t{number}_{commit % TABLES}"
        last[table] = f"s3://lake/nessie/{table}/metadata/{commit:05d}.metadata.json"
        put: dict[str, Any] = {
            "type": "ICEBERG_TABLE", "metadataLocation": last[table], "snapshotId": commit + 1,
            "schemaId": 0, "specId": 0, "sortOrderId": 0,
        }  # fmt: skip
        if table in ids:
            put["id"] = ids[table]
        operation = {"type": "PUT", "key": {"elements": [table]}, "content": put}
        body: Any = {"commitMeta": {"message": "append"}, "operations": [operation]}
        said = session.post(f"{api}/trees/{name}@{at}/history/commit", json=body, timeout=60)
        said.raise_for_status()
        answer = said.json()
        at = answer["targetBranch"]["hash"]
        hashes.append(at)
        for added in answer["addedContents"] or ():
            ids[table] = added["contentId"]
    return hashes, last


def _seed(workspace: NessieWorkspace) -> None:
    """The branches, and a metadata file for each table at their heads."""
    api = workspace.server.api
    workspace.rest_table("one", 1)
    file = workspace.bytes(workspace.content("one").metadata_location)
    workspace.reset()
    root = requests.get(f"{api}/trees/main", timeout=60).json()["reference"]
    with ThreadPoolExecutor(LINES) as pool:
        lines = list(pool.map(lambda n: _line(api, n, root, COMMITS // LINES), range(LINES)))
    for _, last in lines:
        for place in last.values():
            obstore.put(workspace.bucket, place.removeprefix("s3://lake/"), file)

    def branch(number: int) -> None:
        name = f"branch{number}"
        workspace.branch(name)
        for line, (hashes, _) in enumerate(lines):
            at = requests.get(f"{api}/trees/{name}", timeout=60).json()["reference"]["hash"]
            body = {"fromRefName": f"line{line}", "hashesToTransplant": hashes}
            requests.post(f"{api}/trees/{name}@{at}/history/transplant", json=body, timeout=120).raise_for_status()

    with ThreadPoolExecutor(BRANCHES) as pool:
        list(pool.map(branch, range(BRANCHES)))
    for line in range(LINES):
        workspace.drop_reference(f"line{line}")


def _plain(api: str) -> int:
    """Read the log of every branch, page by page; the commits that were told."""
    session, told = requests.Session(), 0
    for reference in session.get(f"{api}/trees", timeout=60).json()["references"]:
        params: dict[str, str] = {"fetch": "ALL", "max-records": "1000"}
        while True:
            page = session.get(f"{api}/trees/{reference['name']}/history", params=params, timeout=60).json()
            told += len(page["logEntries"])
            if not page["hasMore"]:
                break
            params["page-token"] = page["token"]
    return told


def _timed(run: Callable[[], int], expected: int) -> float:
    started = time.perf_counter()
    found = run()
    took = time.perf_counter() - started
    assert found == expected, (found, expected)
    return took


def main() -> None:
    """Measure, and print the line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="2 runs of ours and 1 of the peer in place of 7; the same shape"
    )
    quick = parser.parse_args().quick
    repeats = 2 if quick else 7
    with nessie_server() as server, tempfile.TemporaryDirectory() as home:
        workspace = NessieWorkspace(server, Path(home), "bench")
        started = time.perf_counter()
        _seed(workspace)
        seeding = time.perf_counter() - started

        plain: list[float] = []
        ours: list[float] = []
        for number in range(repeats + 1):  # the first warms the server up
            with workspace.opened() as app:  # anew each time: nothing is known of earlier runs
                contents = app.engines.vacuums["lake"].contents

                def identify(contents: NessieLiveSet = contents) -> int:
                    found = contents.identify(_EVERYTHING, workspace.now())
                    assert not found.errors
                    return len({c for versions in found.versions.values() for c in versions})

                took = _timed(identify, COMMITS)
            if number:
                ours.append(took)
            if number and not (quick and plain):
                plain.append(_timed(lambda: _plain(server.api), BRANCHES * COMMITS))
        ours_s, peer_s = statistics.median(ours), statistics.median(plain)
        line = {
            "benchmark": "nessie_vacuum",
            "peer": "a plain client that reads the same logs one after the other",
            "ratio": round(peer_s / ours_s, 2),
            "ours_s": round(ours_s, 3),
            "peer_s": round(peer_s, 3),
            "limit_s": LIMIT_SECONDS,
            "within_limit": ours_s < LIMIT_SECONDS,
            "shape": f"real Nessie 0.99.0 in memory, {BRANCHES} branches x {COMMITS} commits of their own, "
            f"{LINES * TABLES} tables at each head, the whole log within the cut-off",
            "ours_runs_s": [round(s, 3) for s in ours],
            "peer_runs_s": [round(s, 3) for s in plain],
            "seeding_s": round(seeding, 1),
        }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
