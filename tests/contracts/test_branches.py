"""What every catalog with branches does: each commit is a state of all tables, and an expiry is one on one branch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from shutil import copyfile
from typing import Any, Protocol
from uuid import uuid4

import pytest
import requests

from icewright.core.errors import CatalogUnavailable, CommitConflict
from icewright.core.table import TableRef
from icewright.core.vacuum import Content, Key, Reference
from icewright.ports import Branched, RemoveSnapshots
from icewright.testing import MemoryBranches, metadata
from tests.contracts.bench import file_of
from tests.contracts.nessie_bench import NessieBench, described

KEY, RENAMED = ("sales", "orders"), ("sales", "renamed")


class Repository(Protocol):
    """A catalog, and other writers of it."""

    @property
    def catalog(self) -> Branched:
        """The catalog."""

    def write(self, on: str = "main", key: Key = KEY, renamed: Content | None = None) -> str:
        """Commit a new version of the table, which may have had another key; its metadata file."""

    def drop(self, on: str = "main") -> None:
        """Commit that the branch has the table no more."""

    def create(self, name: str, *, tag: bool = False, at: str | None = None) -> None:
        """Make a branch or tag."""

    def delete(self, name: str) -> None:
        """Delete one."""


@dataclass
class InMemory:
    """The fake."""

    catalog: MemoryBranches = field(default_factory=MemoryBranches)

    def write(self, on: str = "main", key: Key = KEY, renamed: Content | None = None) -> str:
        """Commit a version."""
        location = f"s3://lake/sales/orders/metadata/{uuid4()}.metadata.json"
        made = metadata([3, 2, 1], ref=TableRef("lake", key[:-1], key[-1]), metadata_location=location)
        return self.catalog.write(made, on, renamed=renamed).metadata_location

    def drop(self, on: str = "main") -> None:
        """Drop it."""
        self.catalog.drop(TableRef("lake", KEY[:-1], KEY[-1]), on)

    def create(self, name: str, *, tag: bool = False, at: str | None = None) -> None:
        """Make one."""
        self.catalog.create(name, tag=tag, at=at)

    def delete(self, name: str) -> None:
        """Delete one."""
        del self.catalog.heads[name]


class OverNessie:
    """A server."""

    def __init__(self, api: str, warehouse: Path) -> None:
        self.bench = NessieBench(api, warehouse)
        self.catalog = self.bench.catalog
        self.made = self.bench.craft("sales.made", 3).metadata_location

    def write(self, on: str = "main", key: Key = KEY, renamed: Content | None = None) -> str:
        """Commit a version."""
        location = self.made.replace(".metadata.json", f"{uuid4()}.metadata.json")
        copyfile(file_of(self.made), file_of(location))
        known = [renamed] if renamed else self.bench.native.contents(on, [key])[0]
        content = described(location) | ({"id": known[0].content_id} if known else {})
        deleted = [{"type": "DELETE", "key": {"elements": renamed.key}}] if renamed else []
        self._post(on, *deleted, {"type": "PUT", "key": {"elements": key}, "content": content})
        return location

    def drop(self, on: str = "main") -> None:
        """Drop it."""
        self._post(on, {"type": "DELETE", "key": {"elements": KEY}})

    def create(self, name: str, *, tag: bool = False, at: str | None = None) -> None:
        """Make one."""
        body = {"type": "BRANCH", "name": "main", "hash": at or self.bench.native.reference("main").hash}
        where = {"name": name, "type": "TAG" if tag else "BRANCH"}
        assert requests.post(f"{self.bench.uri}/trees", params=where, json=body, timeout=30).ok

    def delete(self, name: str) -> None:
        """Delete one."""
        self.bench.drop_reference(name)

    def _post(self, on: str, *operations: dict[str, Any]) -> None:
        at = self.bench.native.reference(on).hash
        body: Any = {"commitMeta": {"message": "by a test"}, "operations": operations}
        response = requests.post(f"{self.bench.uri}/trees/{on}@{at}/history/commit", json=body, timeout=30)
        assert response.ok, response.text


@pytest.fixture(params=["memory", pytest.param("nessie", marks=pytest.mark.external)])
def repository(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Repository]:
    """An empty repository."""
    if request.param == "memory":
        yield InMemory()
        return
    made = OverNessie(request.getfixturevalue("nessie").api, tmp_path)
    yield made
    for reference in made.catalog.references():
        if reference.name != "main":
            made.delete(reference.name)
    made.bench.close()


def _head(repository: Repository, name: str = "main") -> Reference:
    return next(one for one in repository.catalog.references() if one.name == name)


def _places(repository: Repository, at: Reference) -> dict[Key, str]:
    tables = repository.catalog.tables(at)
    return {key: content.metadata_location for key, content in tables.items() if key in (KEY, RENAMED)}


def test_a_commit_is_a_state_of_all_tables(repository: Repository) -> None:
    """Branches and tags have one each, which stays as it was; the log tells what each commit changed."""
    start, first = _head(repository), repository.write()
    at_first = _head(repository)
    repository.create("v1", tag=True)
    repository.create("dev")
    second, other = repository.write(), repository.write("dev")
    at_second = _head(repository)
    repository.drop()
    repository.create("old", at=at_first.hash)
    references = {one.name: one for one in repository.catalog.references()}
    assert {name: one.is_branch for name, one in references.items()} == {
        "main": True,
        "v1": False,
        "dev": True,
        "old": True,
    }
    found = [_places(repository, one) for one in (*(references[n] for n in ("main", "v1", "dev", "old")), at_second)]
    assert [one.get(KEY) for one in found] == [None, first, other, first, second]
    unnamed = Reference("", is_branch=True, hash=at_first.hash)
    assert [*repository.catalog.tables(unnamed, [KEY, RENAMED])] == [KEY]
    log = list(repository.catalog.log(references["main"]))[:3]
    assert [commit.hash for commit in log[:1]] == [references["main"].hash]
    assert [commit.parent for commit in log] == [at_second.hash, at_first.hash, start.hash]
    assert all(later.time >= earlier.time for later, earlier in pairwise(log))
    changes = [[(one.key, one.content and one.content.metadata_location) for one in commit.changes] for commit in log]
    assert changes == [[(KEY, None)], [(KEY, second)], [(KEY, first)]]
    (content,) = {repository.catalog.tables(one)[KEY].content_id for one in (at_first, references["dev"])}
    assert content
    with pytest.raises(CatalogUnavailable, match="12ab"):
        repository.catalog.tables(Reference("main", is_branch=True, hash="12ab" * 16))


def test_a_version_that_got_another_name_is_the_same_table(repository: Repository) -> None:
    """By its content id; its metadata file is read under the name of the version."""
    place = repository.write()
    content = repository.catalog.tables(_head(repository))[KEY]
    repository.create("dev")
    moved = repository.write("dev", RENAMED, content)
    assert _places(repository, _head(repository, "dev")) == {RENAMED: moved}
    other = repository.catalog.tables(_head(repository, "dev"))[RENAMED]
    assert (content.metadata_location, other.content_id) == (place, content.content_id)
    assert [repository.catalog.read(one).ref.name for one in (content, other)] == ["orders", "renamed"]
    assert {p.ref.catalog for p in repository.catalog.neighbours() if p.metadata_location == moved} == {"lake@dev"}


def test_an_expiry_is_one_commit_on_one_branch(repository: Repository) -> None:
    """The table of the branch has a new metadata file, and nothing else changes."""
    repository.write()
    repository.create("dev")
    before = _head(repository, "dev")
    content, main = repository.catalog.tables(before)[KEY], _places(repository, _head(repository))
    base = repository.catalog.read(content)
    after = repository.catalog.expire(before, content, base, _oldest(repository, content))
    assert [one.snapshot_id for one in after.snapshots] == [one.snapshot_id for one in base.snapshots[1:]]
    now = _head(repository, "dev")
    commit = next(iter(repository.catalog.log(now)))
    assert (commit.parent, [change.key for change in commit.changes]) == (before.hash, [KEY])
    expired = repository.catalog.tables(now)[KEY]
    assert (expired.content_id, expired.metadata_location) == (content.content_id, after.metadata_location)
    assert expired.snapshot_id == base.current_snapshot_id
    assert repository.catalog.read(expired).by_id.keys() == after.by_id.keys()
    assert _places(repository, _head(repository)) == main


@pytest.mark.parametrize("meanwhile", ["write", "drop", "delete"])
def test_an_expiry_of_what_the_branch_has_no_more_is_a_conflict(repository: Repository, meanwhile: str) -> None:
    """Somebody has committed to the table, dropped it, or deleted the branch."""
    repository.write()
    repository.create("dev")
    before = _head(repository, "dev")
    content = repository.catalog.tables(before)[KEY]
    base, change = repository.catalog.read(content), _oldest(repository, content)
    getattr(repository, meanwhile)("dev")
    with pytest.raises(CommitConflict, match="on dev"):
        repository.catalog.expire(before, content, base, change)


def _oldest(repository: Repository, content: Content) -> RemoveSnapshots:
    oldest = repository.catalog.read(content).snapshots[0].snapshot_id
    return RemoveSnapshots(frozenset({oldest}), frozenset())
