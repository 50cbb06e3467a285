"""What every storage promises to whoever deletes files: local files and S3 behave alike."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import obstore
import pytest

from icewright.adapters.files import objects
from icewright.adapters.files.buckets import Buckets
from icewright.adapters.files.local import LocalStorage
from icewright.adapters.files.storage import Storages
from icewright.core.errors import AccessDenied, FileMissing, Refused, StorageUnavailable
from icewright.ports import DeleteReport, FileStat
from tests.faulty_proxy import Fault, faulty_proxy
from tests.s3 import s3_server

pytestmark = pytest.mark.external


@dataclass
class Place:
    """A storage and an empty location in it."""

    storage: Storages
    location: str

    def write(self, *names: str, content: bytes = b"content") -> list[str]:
        """The paths of new files."""
        paths = [f"{self.location}/{name}" for name in names]
        for path in paths:
            self.storage.write(path, content)
        return paths

    def listed(self) -> dict[str, FileStat]:
        """The listing as `stat` puts it."""
        rows = [row for batch in self.storage.listing(self.location) for row in batch.to_pylist()]
        return {row["path"]: FileStat(row["bytes"], row["modified"]) for row in rows}


@pytest.fixture(scope="module")
def s3() -> Iterator[Mapping[str, str]]:
    """A server with an empty bucket."""
    with s3_server() as found:
        yield found


@pytest.fixture(params=["local", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Each storage in turn."""
    if request.param == "local":
        (tmp_path / "t").mkdir()
        return Place(Storages(LocalStorage(), Buckets()), f"file://{tmp_path}/t")
    storage = Storages(LocalStorage(), Buckets({"lake": ["s3://lake/"]}, {"lake": request.getfixturevalue("s3")}))
    return Place(storage, f"s3://lake/{tmp_path.name}/t")


def test_a_part_of_a_file_is_read_and_ends_with_the_file(place: Place) -> None:
    """Offsets count from the start; what lies behind the end is left out, and a missing file is an error."""
    (path,) = place.write("a.bin", content=b"0123456789")
    assert place.storage.read_range(path, 3, 4) == b"3456"
    assert place.storage.read_range(path, 8, 100) == b"89"
    with pytest.raises(FileMissing):
        place.storage.read_range(f"{path}.gone", 0, 1)


@pytest.mark.cases(101)
@pytest.mark.parametrize("names", [["data/x", "y"], [f"data/p={n % 3}/{n}" for n in range(60)]])
def test_stat_agrees_with_the_listing(place: Place, names: list[str]) -> None:
    """Length and time are the listing's, of a few files as of many; a file that is missing has none."""
    paths = place.write(*names)
    missing = [f"{path}.gone" for path in paths] + [f"{paths[0]}/below"]
    found = place.storage.stat([*missing, *paths], 4)
    assert found == {**dict.fromkeys(missing), **place.listed()}
    assert place.listed().keys() == {*paths}
    assert place.storage.stat([], 4) == {}


@pytest.mark.cases(101)
def test_stat_tells_a_file_that_was_written_anew(place: Place) -> None:
    """Another length, or another time, under the old name."""
    names = [f"{n:02}" for n in range(20)]
    paths = place.write(*names)
    before = place.storage.stat(paths, 2)
    place.storage.write(paths[7], b"another content")
    after = place.storage.stat(paths, 2)
    assert {path for path in paths if before[path] != after[path]} == {paths[7]}
    assert after[paths[7]] == place.listed()[paths[7]]


@pytest.mark.cases(101)
def test_stat_of_empty_files(place: Place) -> None:
    """Files without content are files, however many there are."""
    paths = place.write(*(f"data/{n:02}" for n in range(20)), content=b"")
    assert place.storage.stat(paths, 4) == place.listed()
    assert {found.bytes for found in place.listed().values()} == {0}


@pytest.mark.cases(101)
def test_stat_of_what_no_storage_holds(place: Place) -> None:
    """A path of no known storage is not in the answer; the others are."""
    (path,) = place.write("x")
    assert place.storage.stat(["hdfs://lake/x", path], 2).keys() == {path}


@pytest.mark.cases(112)
def test_the_clock_of_the_storage(place: Place) -> None:
    """It is about now; nothing of what was written to read it is left, and nothing else goes."""
    (path,) = place.write("metadata/x")
    assert abs(place.storage.time(place.location) - datetime.now(UTC)) < timedelta(minutes=1)
    assert place.storage.time(f"{place.location}/").tzinfo is not None
    assert [*place.listed()] == [path]


@pytest.mark.cases(112)
def test_the_clock_outside_of_the_fence(place: Place) -> None:
    """Nothing is written where nothing may be."""
    fenced = Storages(place.storage.local, place.storage.buckets, allows=lambda _: False)
    place.write("x")
    with pytest.raises(Refused, match="environment"):
        fenced.time(place.location)
    assert len(place.listed()) == 1


@pytest.mark.cases(112)
@pytest.mark.parametrize("fault", ["stat", "delete", "unknown"])
def test_a_clock_that_cannot_be_read(place: Place, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is deleted when reading its time fails; one that cannot be deleted is an error that names it."""
    backend: Any = type(place.storage.of(place.location))

    def away(_self: object, paths: Sequence[str], _concurrency: int) -> Mapping[str, FileStat]:
        if fault == "unknown":
            return {paths[0]: FileStat(5, None)}
        raise StorageUnavailable("away")

    def kept(_self: object, paths: Sequence[str], _concurrency: int) -> DeleteReport:
        return DeleteReport((), dict.fromkeys(paths, "no right to"))

    place.write("x")
    monkeypatch.setattr(backend, "delete" if fault == "delete" else "stat", kept if fault == "delete" else away)
    message = {
        "stat": "away",
        "delete": r"\.icewright-clock-\w+ could not be deleted again: no right",
        "unknown": "when",
    }
    with pytest.raises(StorageUnavailable, match=message[fault]):
        place.storage.time(place.location)
    assert len(place.listed()) == (2 if fault == "delete" else 1)


@pytest.mark.cases(108)
@pytest.mark.parametrize("end", ["", "/x"])
def test_deleting_what_is_no_file(place: Place, end: str) -> None:
    """A path that ends with a slash is a failure with a reason: neither the file nor what lies below it goes."""
    paths = place.write(f"data{end}", "other")
    report = place.storage.delete([f"{place.location}/data/", f"{place.location}/other"], 2)
    assert report.deleted == (paths[1],)
    assert report.failures.keys() == {f"{place.location}/data/"}
    assert [*place.listed()] == paths[:1]


def counted(monkeypatch: pytest.MonkeyPatch, name: str) -> list[object]:
    """What obstore is asked for by the function from now on."""
    asked: list[object] = []
    real: Callable[..., Any] = getattr(obstore, name)

    def asking(*given: Any, **more: Any) -> Any:
        asked.append(given)
        return real(*given, **more)

    monkeypatch.setattr(obstore, name, asking)
    return asked


@pytest.mark.cases(101)
def test_files_that_lie_together_are_listed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Partitions that are asked for whole cost one listing, not a request for each file."""
    paths = place.write(*(f"data/day={n // 20}/{n:03}" for n in range(100)))
    heads, lists = counted(monkeypatch, "head"), counted(monkeypatch, "list")
    found = place.storage.stat(paths, 2)
    assert (len(heads), len(lists)) == (0, 0 if place.location.startswith("file:") else 1)
    assert None not in found.values()


@pytest.mark.cases(101)
def test_a_large_folder_is_not_listed_for_a_few_files(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing ends as soon as its pages show too few of the files; these are asked for one by one."""
    paths = place.write(*(f"data/{n:03}" for n in range(120)))
    monkeypatch.setattr(objects, "PAGE", 20)
    pages: list[int] = []

    def watched(*given: Any, **more: Any) -> Iterator[Any]:
        for page in real(*given, **more):
            pages.append(len(page))
            yield page

    real: Any = obstore.list
    monkeypatch.setattr(obstore, "list", watched)
    heads = counted(monkeypatch, "head")
    assert None not in place.storage.stat(paths[::6], 2).values()
    if place.location.startswith("s3:"):
        assert (pages, len(heads)) == ([20], 20 - 4)
        assert len(place.storage.stat(paths[:3], 2)) == 3
        assert pages == [20]  # so few are not worth a page


def test_links_and_folders(tmp_path: Path) -> None:
    """Of a link and of a folder `stat` says no time; a name that cannot be one is no file."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    names = ["link", "dangling", "folder", "folder/", "n" * 300, "nul\0", "dangling/x"]
    found = LocalStorage().stat([f"{tmp_path}/{name}" for name in names], 1)
    stats = [found[f"{tmp_path}/{name}"] for name in names]
    assert [one and one.modified for one in stats] == [None] * len(names)
    assert [one is not None for one in stats] == [True, True, True, True, False, False, False]
    assert LocalStorage().delete([f"{tmp_path}/nul\0"], 1).failures


def test_what_may_not_be_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that is closed to us is no missing file, nor is a disk that fails."""
    for error, expected in ((PermissionError(13, "denied"), AccessDenied), (OSError(5, "broken"), StorageUnavailable)):

        def failing(_path: str, error: OSError = error) -> os.stat_result:
            raise error

        monkeypatch.setattr(os, "lstat", failing)
        with pytest.raises(expected, match="not be looked at"):
            LocalStorage().stat([f"{tmp_path}/x"], 1)


def test_the_clock_of_a_location_that_is_away(tmp_path: Path) -> None:
    """The location is not made: a disk that is away must not look like an empty one."""
    with pytest.raises(StorageUnavailable, match="no folder"):
        LocalStorage().time(f"file://{tmp_path}/t")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("count", [3, 40])
def test_files_of_which_the_reply_to_their_deletion_says_nothing(s3: Mapping[str, str], count: int) -> None:
    """They are looked for and deleted one by one; those that are there to the end, or cannot be looked for, failed."""
    with faulty_proxy(s3["s3.endpoint"]) as proxy:
        buckets = Buckets({"lake": ["s3://lake/"]}, {"lake": {**s3, "s3.endpoint": proxy.address}})
        place = Place(Storages(LocalStorage(), buckets), f"s3://lake/silent/{count}")
        paths = place.write(*(f"data/{n:02}" for n in range(count)))
        others = place.write(*(f"live/{n:02}" for n in range(20)))
        reply = b"<DeleteResult><Deleted><Key>silent/x</Key></Deleted></DeleteResult>"
        proxy.faults.append(Fault("POST ", times=2, status=200, body=reply))  # to all, and to the first alone
        report = place.storage.delete(paths, 4)
        assert (report.deleted, list(report.failures)) == (tuple(paths[1:]), paths[:1])
        assert place.listed().keys() == {*others, paths[0]}
        proxy.faults.append(Fault("(HEAD|GET) ", times=100, status=403))
        assert place.storage.delete(others[:2], 4).failures.keys() == {*others[:2]}


@pytest.mark.parametrize("status", [200, 403])
@pytest.mark.parametrize("count", [3, 40])
def test_a_name_that_is_written_anew_between_two_attempts(s3: Mapping[str, str], status: int, count: int) -> None:
    """A store that fails, or says nothing, has deleted all the same: a file of today is not the one that was to go."""
    with faulty_proxy(s3["s3.endpoint"]) as proxy:
        buckets = Buckets({"lake": ["s3://lake/"]}, {"lake": {**s3, "s3.endpoint": proxy.address}})
        place = Place(Storages(LocalStorage(), buckets), f"s3://lake/anew/{status}{count}")
        paths = place.write(*(f"data/{n:02}" for n in range(count)))
        found = place.storage.stat(paths, 4)

        def write_anew() -> None:
            place.write("data/01", content=b"anew")

        reply = b"<DeleteResult><Deleted><Key>silent/x</Key></Deleted></DeleteResult>" if status == 200 else b""
        proxy.faults.append(Fault("POST ", forward=True, status=status, body=reply, act=write_anew))
        report = place.storage.delete(paths, 4, found)
    assert ([*place.listed()], [*report.failures]) == ([paths[1]], [paths[1]])
    assert "another file bears the name now" in report.failures[paths[1]]
