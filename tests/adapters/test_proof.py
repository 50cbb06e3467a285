"""The proof of a table's deletions over catalogs in memory: what may go now, and what forbids it by now."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field, fields, replace
from datetime import timedelta
from typing import Any, cast

import polars as pl
import pyarrow as pa
import pytest

from icewright.adapters.engines.service.proof import TableProof
from icewright.adapters.engines.service.reachable import ComparedManifests
from icewright.core.errors import IcewrightError, Refused, TableReplaced
from icewright.core.runs import FileAction
from icewright.core.table import ManifestContent, ManifestFile, Snapshot, SnapshotHold, TableMetadata
from icewright.ports import FileStat, Registration
from icewright.testing.builders import LOCATION, NOW, lineage, metadata
from tests.adapters.test_guard import MetadataFiles, guarded, version
from tests.adapters.test_registry import World, guest

FREE, LIVE, LATER, FAR = f"{LOCATION}/data/free", f"{LOCATION}/data/live", f"{LOCATION}/data/later", "s3://far/file"
APART = "s3://lake/apart/file"
MANIFESTS = {1: "m1", 2: "m2", 3: "m3"}  # of each snapshot
CONTENT = {"m1": [LIVE], "m2": [f"{LOCATION}/data/other"], "m3": [LATER]}


@dataclass
class TableFiles(MetadataFiles):
    """Manifests in memory too, and which were read."""

    looked_at: list[str] = field(default_factory=list)
    listed: list[int] = field(default_factory=list)  # the snapshots whose manifest lists were read
    lost: IcewrightError | None = None  # why none can be read
    unlisted: set[str] = field(default_factory=set)  # that the store has, and leaves out of its listings

    def listing(self, folder: str) -> Iterator[pa.RecordBatch]:
        """Yield the files below a folder but those."""
        for batch in super().listing(folder):
            yield from () if self.unlisted & {*batch["path"].to_pylist()} else (batch,)

    def stat(self, paths: Sequence[str], concurrency: int) -> Mapping[str, FileStat | None]:
        """Return what is there."""
        assert concurrency
        return {path: FileStat(1, NOW) if path in self.contents else None for path in paths}

    def manifest_lists(self, snapshots: Sequence[Snapshot], *, totals: bool = False) -> pa.Table:
        """Return one manifest of each snapshot."""
        assert not totals
        self.listed += [snapshot.snapshot_id for snapshot in snapshots]
        if self.lost is not None:
            raise self.lost
        paths = [MANIFESTS[snapshot.snapshot_id] for snapshot in snapshots]
        rows = [astuple(ManifestFile(path, 1, 0, ManifestContent.DATA, 1, 1, 1, 1, 0, 0)) for path in paths]
        return pl.DataFrame(rows, [f.name for f in fields(ManifestFile)], orient="row").to_arrow()

    def live_files(self, manifests: Sequence[ManifestFile], *, spare_cores: int = 0) -> Iterator[pa.RecordBatch]:
        """Yield the files of each manifest."""
        for row, manifest in enumerate(manifests):
            self.looked_at.append(manifest.path)
            paths = CONTENT[manifest.path]
            columns = {"path": paths, "bytes": 1, "content": 0, "format": "PARQUET", "manifest": row}
            yield from pl.DataFrame(columns).to_arrow().to_batches()


class Proving:
    """A table of two snapshots, whose plan names four files and one that it reaches."""

    def __init__(self, *, own: TableMetadata | None = None, **how: Any) -> None:
        self.own = own or metadata()
        self.files = TableFiles(contents={self.own.metadata_location: version(self.own.table_uuid)})
        self.world = World(files=self.files)
        self.guard = guarded(self.world, self.own)
        self.holds: list[SnapshotHold] = []
        self.planned = [FileAction(path, 1, "data") for path in (FREE, LIVE, LATER, FAR, APART)]
        lake, clock, self.since = cast("Any", self.world.lake), self.world.clock, NOW
        self.proof = TableProof(
            lake,
            self.guard,
            clock,
            self.own,
            self.planned,
            lambda _: self.holds,
            self.since,
            **{"scanned": False} | how,
        )

    def free(self, *paths: str) -> set[str]:
        """What the proof lets go of a batch of these files, or of all."""
        return set(self.proof.prove([file for file in self.planned if not paths or file.path in paths]).free)

    def changed(self, **changes: Any) -> None:
        """Somebody commits."""
        after = self.world.lake.concurrently(self.own.ref, **changes)
        self.files.contents[after.metadata_location] = version(after.table_uuid)


def test_what_nobody_needs_may_go() -> None:
    """Of the batch alone, each other file with its reason."""
    proving = Proving()
    proved = proving.proof.prove(proving.planned)
    assert proved.free == {FREE, LATER, APART}
    assert proved.stays == {
        LIVE: "the table reaches it",
        FAR: "outside the allowed_locations of catalog lake",
    }
    assert proving.free(FREE, LIVE) == {FREE}
    proving.proof.outside = False
    assert proving.free() == {FREE, LATER}
    proving.proof.outside, proving.proof.scanned = True, True
    assert proving.free() == {FREE, LATER}


def test_lists_and_manifests_are_compared_once() -> None:
    """Also those that the plan has compared; whatever the table came to reach in between stays from then on."""
    planned = metadata().snapshots[:1]
    manifests = pl.DataFrame(pl.from_arrow(TableFiles().manifest_lists(planned)))
    proving = Proving(compared=ComparedManifests.of(planned, manifests))
    assert proving.free() == {FREE, LIVE, LATER, APART}  # as the plan has looked into m1, and knows better
    proving.free()
    assert (proving.files.looked_at, proving.files.listed) == (["m2"], [2])
    first = proving.own.snapshots
    proving.changed(snapshots=(*first, replace(first[-1], snapshot_id=3)))
    assert proving.free() == {FREE, LIVE, APART}
    assert proving.files.looked_at == ["m2", "m3"]
    proving.changed(snapshots=first)
    assert proving.free() == {FREE, LIVE, APART}
    assert proving.files.looked_at == ["m2", "m3"]
    fresh = Proving()
    fresh.free()
    assert fresh.files.looked_at == ["m1", "m2"]
    fresh.world.lake.put(replace(fresh.own, snapshots=lineage([24, 2, 1])))  # under the same name of the file
    assert fresh.free() == {FREE, APART}
    assert fresh.files.looked_at == ["m1", "m2", "m3"]


def test_what_a_server_leaves_out_of_its_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each version that it names is compared with its file, also one that came after the first batch."""
    proving, asked = Proving(), list[str]()

    def load_from_file(now: TableMetadata) -> TableMetadata:
        asked.append(now.metadata_location)
        return replace(now, snapshots=proving.own.snapshots)

    monkeypatch.setattr(proving.world.lake, "load_from_file", load_from_file, raising=False)
    assert proving.free() == proving.free() == {FREE, LATER, APART}
    proving.changed(snapshots=proving.own.snapshots[1:])
    with pytest.raises(Refused, match=r"has snapshot 1 .*the reply of catalog lake") as refused:
        proving.free()
    assert refused.value.code == "reply_differs"
    assert len(asked) == len({*asked}) == 2
    proving.changed(snapshots=proving.own.snapshots)
    forbidden = replace(proving.own, properties={"gc.enabled": "False"})
    monkeypatch.setattr(proving.world.lake, "load_from_file", lambda _: forbidden)
    with pytest.raises(Refused, match=r"has gc\.enabled=false, and the reply"):
        proving.free()


def test_what_forbids_the_deletion_by_now() -> None:
    """Another table of the name, `gc.enabled`, a second entry, a place that is not allowed."""
    proving = Proving()
    proving.changed(table_uuid="another")
    with pytest.raises(TableReplaced, match="was replaced by another table: nothing is deleted"):
        proving.free()
    proving = Proving()
    proving.changed(properties={"gc.enabled": "false"})
    with pytest.raises(Refused, match=r"gc\.enabled is false now: nothing is deleted \[gc_disabled\]"):
        proving.free()
    proving = Proving()
    proving.world.pond.put(guest(proving.own.table_uuid))
    with pytest.raises(Refused, match=r"\[registered_twice\]"):
        proving.free()
    proving = Proving()
    proving.proof.guard = replace(proving.guard, allowed_locations={"lake": []})
    with pytest.raises(Refused, match=r"\[outside_allowed_locations\]"):
        proving.free()


@pytest.mark.cases(102)
@pytest.mark.parametrize(
    ("snapshot", "since", "until", "finishing", "refused"),
    [
        (1, 0, 1, False, True),
        (1, 0, 1, True, False),  # the run that planned is over, and has expired other snapshots
        (9, 0, 1, True, True),  # one that it has expired
        (9, 0, 1, False, True),
        (9, -1, 1, False, False),  # the plan knew of it
        (9, 0, 0, False, False),  # it has ended
        (9, None, 1, False, False),  # a policy's, which the plan has heeded
    ],
)
def test_a_pin_that_came_meanwhile(
    snapshot: int, since: int | None, until: int, *, finishing: bool, refused: bool
) -> None:
    """It stops the deletion as long as its snapshot may need the files; others beside it change nothing."""
    proving = Proving(finishing=finishing)
    ended = SnapshotHold(9, "nobody", NOW, NOW)
    at = None if since is None else NOW + timedelta(hours=since)
    proving.holds = [ended, SnapshotHold(snapshot, "flink", NOW + timedelta(hours=until), at)]
    if refused:
        with pytest.raises(
            Refused,
            match=rf"flink holds snapshot {snapshot} since {NOW:%Y-%m-%d %H:%M} UTC: nothing.*released \[pinned\]",
        ):
            proving.free()
    else:
        assert proving.free() == {FREE, LATER, APART}


@pytest.mark.cases(95)
@pytest.mark.parametrize("folder", [f"{LOCATION}/metadata", "s3://lake/left/metadata", "s3://lake/former"])
def test_a_newer_version_that_the_catalog_does_not_know(folder: str) -> None:
    """Beside the current one, where the metadata lay once, or the last one of an earlier name: until it is adopted."""
    proving, path = Proving(), f"{folder}/00002-b.metadata.json"
    uuid, current = proving.own.table_uuid, proving.own.metadata_location
    log = [{"metadata-file": current, "timestamp-ms": 1}]
    proving.files.contents[path] = json.dumps(json.loads(version(uuid)) | {"metadata-log": log}).encode()
    for one in (
        Registration(proving.own.ref, uuid, current, ("s3://lake/left",)),
        Registration(replace(proving.own.ref, name="former"), uuid, "s3://lake/former/00002-b.metadata.json", ()),
    ):
        proving.world.recorded.rows[one.key] = one
    with pytest.raises(Refused, match=r"00002-b\.metadata\.json is a newer version.*\[successor\]"):
        proving.free()
    proving.world.recorded.words[uuid] = frozenset({path.removeprefix("s3://lake")})
    assert proving.free() == {FREE, LATER, APART}
    proving.world.recorded.words.clear()
    proving.world.lake.put(replace(proving.own, metadata_location=path, metadata_log=(current,)))
    assert proving.free() == {FREE, LATER, APART}


@pytest.mark.parametrize("name", ["00001-a.metadata.json", "v1.gz.metadata.json", "current.json"])
def test_a_listing_without_the_current_version(name: str) -> None:
    """Tells nothing of newer ones: it breaks off. A file that is not named as versions are is never looked for."""
    proving = Proving(own=metadata(metadata_location=f"{LOCATION}/metadata/{name}"))
    assert proving.free() == {FREE, LATER, APART}
    content = proving.files.contents.pop(proving.own.metadata_location)
    proving.files.contents[f"{LOCATION}/metadata/00000-x.txt"] = content
    if name == "current.json":
        assert proving.free() == {FREE, LATER, APART}
    else:
        with pytest.raises(Refused, match=rf"{name} is the current version.*\[incomplete_listing\]"):
            proving.free()


@pytest.mark.parametrize("name", ["00000-a.metadata.json", "snap-1.avro", "m1.avro"])
def test_a_listing_that_lost_a_page(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With it perhaps a newer version: what the table has there is not listed, and there all the same."""
    folder, own = f"{LOCATION}/metadata", metadata(metadata_log=(f"{LOCATION}/metadata/00000-a.metadata.json",))
    first, last = own.snapshots
    monkeypatch.setitem(MANIFESTS, first.snapshot_id, f"{folder}/m1.avro")
    monkeypatch.setitem(CONTENT, f"{folder}/m1.avro", [])
    proving = Proving(own=replace(own, snapshots=(replace(first, manifest_list=f"{folder}/snap-1.avro"), last)))
    files, path = proving.files, f"{folder}/{name}"
    free = proving.free()  # what is not there at all, as after a rule of the bucket, is not missing in the listing
    files.contents[path] = b""
    assert proving.free() == free
    files.unlisted.add(path)
    with pytest.raises(Refused, match=rf"{name} is there, and the listing of its .* nothing is deleted \[incomplete_l"):
        proving.free()


def test_an_orphan_in_a_place_that_another_table_shares() -> None:
    """Stops the deletion of what a scan found; what a snapshot named goes all the same, where nobody reads it."""
    for scanned in (True, False):
        proving = Proving(scanned=scanned)
        proving.world.pond.put(guest(location=f"{LOCATION}/inner"))
        if scanned:
            with pytest.raises(Refused, match=r"\[shared_location\]"):
                proving.free()
        else:
            assert proving.free() == {FREE, LATER, APART}
    paths = [f"{pool}/file" for pool in ("s3://lake/pool", "s3://lake/shared")]
    names = {"write.data.path": "s3://lake/pool", "write.object-storage.path": "s3://lake/shared"}
    proving = Proving(own=metadata(properties=names), scanned=True)
    proving.proof.planned = proving.planned = [FileAction(path, 1, "data") for path in paths]
    proving.world.pond.put(guest(location="s3://lake/shared/inner"))
    assert proving.free() == {"s3://lake/pool/file"}  # of the shared one the scan knows nothing any more


def test_pins_and_records_are_read_at_one_moment() -> None:
    """One transaction reads both."""
    proving = Proving()
    depth, begun, read = [0], [0], list[int]()

    @contextmanager
    def reading_together() -> Iterator[None]:
        begun[0] += depth[0] == 0
        depth[0] += 1
        yield
        depth[0] -= 1

    def holds(_: TableMetadata) -> Sequence[SnapshotHold]:
        read.append(begun[0])
        return ()

    proving.world.registry.reading_together = reading_together
    proving.proof.holds = holds
    proving.world.registry.failing = lambda: dict(read.append(begun[0]) or ())  # type: ignore[func-returns-value]
    proving.free()
    assert read == [1, 1]
