"""Bad weather at a port: what one call may do other than what it promises."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa

from icewright.core.errors import (
    CatalogUnavailable,
    CommitConflict,
    CommitStateUnknown,
    MetadataUnreadable,
    StorageUnavailable,
)
from icewright.flow.reconcile import reconcile_interrupted
from icewright.testing import FixedClock
from tests.faults.interceptors import WRITES, Call, opened
from tests.faults.lakehouse import Lakehouse
from tests.faults.operations import FaultOperation, do
from tests.faults.reading import read


@dataclass(frozen=True)
class Place:
    """Where it happens: the lakehouse, the clock of the process, what it is doing."""

    workspace: Lakehouse
    clock: FixedClock
    action: FaultOperation
    kept: frozenset[int]  # snapshots that stay whatever happens


@dataclass(frozen=True)
class Fault:
    """`act` takes the place of a call that `fits`; a lasting one, of every such call from then on."""

    fits: Callable[[str], bool]  # by the call's name, such as files.delete
    act: Callable[[Call, Place], Any]
    lasting: bool = False
    deletes_lie: bool = False  # afterwards nobody knows what was deleted
    lists_lie: bool = False  # what was not listed cannot be told of
    overtaken: bool = False  # another process has done things too


@dataclass
class Once:
    """A hook: the fault strikes at the call of this number, counted from 0."""

    fault: Fault
    moment: int
    place: Place
    count: int = 0

    def __call__(self, call: Call) -> Any:
        """Count, and strike."""
        number, self.count = self.count, self.count + 1
        if self.fault.overtaken and number == self.moment and call.in_transaction:
            self.moment += 1  # until it ends, nobody else can write to the store
            return call.go()
        due = number == self.moment or (self.fault.lasting and number > self.moment)
        if due and self.fault.fits(str(call)):
            return self.fault.act(call, self.place)
        return call.go()


def of_port(*ports: str) -> Callable[[str], bool]:
    """Calls of these ports."""
    return lambda call: call.partition(".")[0] in ports


def named(*names: str) -> Callable[[str], bool]:
    """Calls of these names, such as `files.delete`."""
    return lambda call: call in names


def reading(call: str) -> bool:
    """Calls that read what a table is made of."""
    return call.startswith("files.") and call not in WRITES


def _unavailable(call: Call, _: Place) -> NoReturn:
    if call.port == "catalog":
        raise CatalogUnavailable("the catalog does not answer")
    raise StorageUnavailable("the storage does not answer")


def _unreadable(call: Call, _: Place) -> NoReturn:
    raise MetadataUnreadable("not what it should be")


def _done_but_unavailable(call: Call, place: Place) -> NoReturn:
    call.go()
    _unavailable(call, place)


def _late(call: Call, place: Place) -> Any:
    place.clock.advance(hours=3)
    return call.go()


def _a_week_late(call: Call, place: Place) -> Any:
    place.clock.advance(days=7)
    return call.go()


def _given_up(call: Call, place: Place) -> Any:
    """The process sleeps for so long that another one takes over what it left, and is then there again."""
    place.clock.advance(minutes=10)
    with opened(place.workspace.home, place.clock) as other:
        reconcile_interrupted(replace(other.runtime, process_has_ended=lambda _: False))
    return call.go()


def _replaced(call: Call, place: Place) -> Any:
    """The same, and the other process does the work too."""
    place.clock.advance(minutes=10)
    with opened(place.workspace.home, place.clock) as other:
        reconcile_interrupted(replace(other.runtime, process_has_ended=lambda _: False))
        do(other.runtime, place.action)
    return call.go()


# -- lies of the storage


def half(content: bytes) -> bytes:
    """The first half."""
    return content[: len(content) // 2]


def without_last_block(content: bytes) -> bytes:
    """An Avro file that ends before its last block: whole by itself, only shorter."""
    marker = content[-16:]
    end, found = 0, [0]
    while (end := content.find(marker, end)) >= 0:
        end += len(marker)
        found.append(end)
    return content[: found[-2]]


def kept_lists(place: Place) -> list[Path]:
    """The manifest lists of the snapshots that stay."""
    snapshots = read(place.workspace).document["snapshots"]
    named_lists = [s["manifest-list"] for s in snapshots if s["snapshot-id"] in place.kept]
    return [Path(location.removeprefix("file://")) for location in named_lists]


def all_manifests(place: Place) -> list[Path]:
    """Every manifest of every snapshot."""
    metadata = place.workspace.folder / "metadata"
    return [path for path in metadata.glob("*.avro") if not path.name.startswith("snap-") and "lost" not in path.name]


@contextmanager
def cut(paths: Sequence[Path], how: Callable[[bytes], bytes]) -> Iterator[None]:
    """Files are shorter for a while."""
    saved = [(path, path.read_bytes(), path.stat()) for path in paths if path.is_file()]
    for path, content, _ in saved:
        path.write_bytes(how(content))
    try:
        yield
    finally:
        for path, content, stat in saved:
            path.write_bytes(content)
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def _cut(which: Callable[[Place], list[Path]], how: Callable[[bytes], bytes]) -> Callable[[Call, Place], Any]:
    def act(call: Call, place: Place) -> Any:
        shutil.rmtree(place.workspace.home / "cache", ignore_errors=True)  # what was read before would hide it
        with cut(which(place), how):
            return call.go()

    return act


def _breaks_off(call: Call, _: Place) -> Iterator[Any]:
    for batch in call.go():
        yield batch.slice(0, batch.num_rows // 2)
        raise StorageUnavailable("the listing broke off")


def _lacks_files(call: Call, _: Place) -> Iterator[Any]:
    for batch in call.go():
        yield batch.filter(pa.array([i % 2 == 0 for i in range(batch.num_rows)]))


def _halves(call: Call) -> tuple[list[str], list[str]]:
    paths = call.paths
    return paths[: len(paths) // 2], paths[len(paths) // 2 :]


def _some_deleted(call: Call, _: Place) -> Any:
    first, second = _halves(call)
    report = call.on(first)
    return replace(report, failures={**report.failures, **dict.fromkeys(second, "access denied")})


def _some_deleted_then_gone(call: Call, place: Place) -> NoReturn:
    call.on(_halves(call)[0])
    _unavailable(call, place)


def _deleted_but_denied(call: Call, _: Place) -> Any:
    report = call.go()
    return replace(report, deleted=(), failures=dict.fromkeys(call.paths, "timed out"))


def _nothing_deleted(call: Call, _: Place) -> Any:
    return replace(call.on([]), deleted=tuple(call.paths))


# -- commits


def _landed_reply_lost(call: Call, _: Place) -> NoReturn:
    call.go()
    raise CommitStateUnknown("the reply was lost")


def _reply_lost(call: Call, _: Place) -> NoReturn:
    raise CommitStateUnknown("the reply was lost")


def _conflict(call: Call, _: Place) -> NoReturn:
    raise CommitConflict("somebody else was first")


_FILE_WRITES = ("files.write", "files.delete", "files.tidy")
_COMMIT = named("catalog.commit")
_DELETE = named("files.delete")
_LISTING = named("files.listing")
_ANY = of_port("files", "catalog", "store")

FAULTS: Mapping[str, Fault] = {
    "write unavailable": Fault(
        named("store.ledger.plan", "store.ledger.record", "catalog.commit", *_FILE_WRITES), _unavailable
    ),
    "unavailable": Fault(of_port("files", "catalog"), _unavailable),
    "unavailable from then on": Fault(of_port("files", "catalog"), _unavailable, lasting=True),
    "done but unavailable": Fault(named(*_FILE_WRITES), _done_but_unavailable),
    "store unavailable": Fault(of_port("store"), _unavailable),
    "unreadable": Fault(lambda call: reading(call) or call == "catalog.load", _unreadable),
    "kept lists cut in half": Fault(reading, _cut(kept_lists, half)),
    "kept lists cut at a block": Fault(reading, _cut(kept_lists, without_last_block)),
    "manifests cut in half": Fault(reading, _cut(all_manifests, half)),
    "manifests cut at a block": Fault(reading, _cut(all_manifests, without_last_block)),
    "listing breaks off": Fault(_LISTING, _breaks_off),
    "listing breaks off each time": Fault(_LISTING, _breaks_off, lasting=True),
    "listing lacks files": Fault(_LISTING, _lacks_files, lists_lie=True),
    "some deleted": Fault(_DELETE, _some_deleted),
    "some deleted then unavailable": Fault(_DELETE, _some_deleted_then_gone, deletes_lie=True),
    "deleted but denied": Fault(_DELETE, _deleted_but_denied, deletes_lie=True),
    "nothing deleted": Fault(_DELETE, _nothing_deleted, deletes_lie=True),
    "landed and reply lost": Fault(_COMMIT, _landed_reply_lost),
    "reply lost": Fault(_COMMIT, _reply_lost),
    "conflict": Fault(_COMMIT, _conflict),
    "conflicts from then on": Fault(_COMMIT, _conflict, lasting=True),
    "three hours late": Fault(_ANY, _late),
    "a week late": Fault(_ANY, _a_week_late),
    "given up by others": Fault(_ANY, _given_up, overtaken=True),
    "replaced by others": Fault(_ANY, _replaced, overtaken=True),
}
