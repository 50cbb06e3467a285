"""What became of a commit that was refused, or whose reply was lost, by the table as it is then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from icewright.adapters.catalogs.staging import (
    NamedFiles,
    NeverSent,
    Superseded,
    conflict,
    gone,
    landed_before,
    require_landed,
)
from icewright.core.errors import (
    AccessDenied,
    CommitConflict,
    CommitStateUnknown,
    IcewrightError,
    MetadataUnreadable,
    StorageUnavailable,
    TableNotFound,
)
from icewright.core.table import TableMetadata, TableRef
from icewright.testing import FixedClock
from icewright.testing.builders import metadata

BASE, NEW, OTHER = (
    metadata(),
    "s3://lake/sales/orders/metadata/00002-new",
    "s3://lake/sales/orders/metadata/00002-other",
)
LANDED = metadata(metadata_location=NEW, metadata_log=(BASE.metadata_location,))
BUILT_ON = metadata(metadata_location=OTHER, metadata_log=(BASE.metadata_location, NEW))
FORGETFUL = metadata(metadata_location=OTHER, metadata_log=(NEW,))  # whose log is no longer
OVERTAKEN = metadata(metadata_location=OTHER, metadata_log=(BASE.metadata_location,))
ANOTHER = metadata(metadata_location=OTHER, metadata_log=("s3://lake/else",))
AWAY = StorageUnavailable("throttled")
Seen = TableMetadata | IcewrightError


def loading(*seen: Seen) -> Callable[[TableRef], TableMetadata]:
    """What the catalog answers, look by look."""
    looks = iter(seen)

    def load(ref: TableRef) -> TableMetadata:
        assert ref == BASE.ref
        one = next(looks)
        if isinstance(one, IcewrightError):
            raise one
        return one

    return load


@pytest.mark.cases(77)
@pytest.mark.parametrize(
    ("error", "seen", "landed"),
    [
        (AccessDenied("403"), LANDED, True),  # a gateway sent it again
        (AccessDenied("403"), BUILT_ON, True),
        (AccessDenied("403"), FORGETFUL, True),
        (AccessDenied("403"), BASE, False),
        (CommitConflict("409"), OVERTAKEN, False),
        (CommitConflict("409"), ANOTHER, None),
        (CommitConflict("409"), TableNotFound("gone"), None),
        (AccessDenied("403"), AWAY, None),
        (NeverSent("no route"), AWAY, False),
        (conflict(BASE), AWAY, False),  # seen before anything was sent
        (gone(BASE), AWAY, False),
    ],
)
def test_a_refused_commit(error: Exception, seen: Seen, landed: bool | None) -> None:
    """It landed where the table came to it, and did not where the table is at its base or went on from that."""
    if landed is None:
        why = str(seen) if isinstance(seen, Exception) else "does not tell"
        with pytest.raises(CommitStateUnknown, match=rf"{error}; whether {NEW} was committed cannot be seen: .*{why}"):
            landed_before(error, BASE, NEW, loading(seen))
    else:
        assert landed_before(error, BASE, NEW, loading(seen)) == landed
    assert str(error).startswith("lake.sales.orders: ") or not isinstance(error, Superseded)


@pytest.mark.cases(77)
@pytest.mark.parametrize(
    ("seen", "compares", "outcome", "slept"),
    [
        ([LANDED], True, "", 0),
        ([BUILT_ON], False, "", 0),
        ([AWAY, BASE, LANDED], True, "", 2),
        ([BASE, OVERTAKEN], True, "another writer committed first", 1),
        ([OVERTAKEN], False, "00002-other, does not tell", 0),
        ([ANOTHER], True, "00002-other, does not tell", 0),
        ([BASE, BASE, BASE], True, "the table shows nothing yet", 2),
        ([BASE, BASE, AWAY], True, "nothing can be seen: throttled", 2),
    ],
)
def test_a_commit_whose_reply_was_lost(seen: list[Seen], outcome: str, slept: int, *, compares: bool) -> None:
    """The table is looked at three times; only a catalog that compares pointers can refuse a request for good."""
    clock = FixedClock()

    def looked() -> None:
        require_landed(BASE, NEW, loading(*seen), clock, "no reply", compares=compares)

    if not outcome:
        looked()
    else:
        raised = CommitConflict if "another writer" in outcome else CommitStateUnknown
        with pytest.raises(raised, match=f"lake.sales.orders: no reply.*{outcome}"):
            looked()
    assert clock.slept == [0.4, 0.8][:slept]


@dataclass
class Files:
    """Notes what it is asked for."""

    asked: list[object] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.asked.append((name, *arguments))


@pytest.mark.parametrize(("path", "remote"), [("s3://b/x", True), ("file:/x", False), ("file:/x", True), ("/x", True)])
def test_a_catalog_of_object_stores_names_no_local_file(path: str, *, remote: bool) -> None:
    """A path of its server's, or of nobody's, is neither read nor written nor deleted here."""
    files = Files()
    named = NamedFiles(cast("Any", files), "lake", remote)
    calls: list[tuple[str, Callable[[], object], tuple[object, ...]]] = [
        ("read", lambda: named.read(path), (path,)),
        ("stat", lambda: named.stat([path], 2), ([path], 2)),
        ("write", lambda: named.write(path, b"x"), (path, b"x")),
        ("delete", lambda: named.delete([path], 2), ([path], 2)),
    ]
    for name, call, arguments in calls:
        if remote and not path.startswith("s3"):
            with pytest.raises(MetadataUnreadable, match=rf"{path} is a local file, .*catalogs\.lake\.allowed"):
                call()
            assert files.asked == []
        else:
            call()
            assert files.asked.pop() == (name, *arguments)
