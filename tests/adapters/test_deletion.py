"""The deletion of planned files over storage, ledger and proof in memory: what goes, when, and what is said."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, cast

import polars as pl
import pytest

from icewright.adapters.engines.service import deletion as module
from icewright.adapters.engines.service.deletion import Deletion, DeletionResult, JobDeletion, Proved
from icewright.core.errors import Cancelled, IcewrightError, LeaseLost, Refused, StorageUnavailable, StoreUnavailable
from icewright.core.runs import FileAction, backoff
from icewright.core.table import TableRef
from icewright.ports import DeleteReport, FileStat, LedgerState
from icewright.testing import FixedClock
from icewright.testing.builders import NOW, REF, UUID

OLD = NOW - timedelta(days=30)
DATA = [f"s3://lake/t/data/{n}.parquet" for n in range(4)]
LIVE = "the table reaches it"
AWAY = StorageUnavailable("throttled")


def planned(*paths: str, kind: str = "data", size: int | None = 7, modified: datetime | None = OLD) -> list[FileAction]:
    """Files as they were planned."""
    return [FileAction(path, size, kind, modified) for path in paths]


@dataclass
class Bucket:
    """Objects in memory, some of which cannot be deleted or asked for."""

    objects: dict[str, FileStat]
    locked: set[str] = field(default_factory=set)
    nameless: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)  # to be deleted
    tidied: list[tuple[Sequence[str], str]] = field(default_factory=list)
    folders: IcewrightError | None = None

    def stat(self, paths: Sequence[str], concurrency: int) -> Mapping[str, FileStat | None]:
        """Return what is there."""
        assert concurrency == 3
        return {path: self.objects.get(path) for path in paths if path not in self.nameless}

    def delete(self, paths: Sequence[str], concurrency: int, found: Mapping[str, FileStat | None]) -> DeleteReport:
        """Delete what is not locked."""
        assert (concurrency, {path: found[path] for path in paths}) == (3, {path: self.objects[path] for path in paths})
        self.asked += paths
        failures = {path: "locked" for path in paths if path in self.locked}
        for path in set(paths) - failures.keys():
            del self.objects[path]
        return DeleteReport(tuple(p for p in paths if p not in failures), failures)

    def tidy(self, paths: Sequence[str], stop: str) -> None:
        """Note the folders that may be empty now."""
        self.tidied.append(([*paths], stop))
        if self.folders is not None:
            raise self.folders


@dataclass
class Ledger:
    """States and reasons of one job's files."""

    states: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)  # by an undo

    def claim(self, job_id: str, paths: Sequence[str]) -> frozenset[str]:
        """Claim all but what an undo has taken."""
        assert job_id == "job"
        self.states |= dict.fromkeys(set(paths) - self.taken, LedgerState.DELETING)
        return frozenset(paths) - self.taken

    def record(self, job_id: str, states: Mapping[str, str], now: datetime, reasons: Mapping[str, str]) -> None:
        """Keep the states."""
        assert (job_id, now >= NOW) == ("job", True)
        self.states |= states
        self.reasons |= reasons

    def export(self, job_id: str) -> str:
        """Say where it is."""
        return f"ledger of {job_id}"

    def waiting_paths(self, ref: TableRef, table_uuid: str) -> Sequence[str]:
        """Return what waits for the table."""
        return DATA[:2] if (ref, table_uuid) == (REF, UUID) else []


@dataclass
class Proof:
    """Proves all files but some, or raises; then something may happen before the deletion."""

    stays: Mapping[str, str] = field(default_factory=dict)
    errors: list[IcewrightError | None] = field(default_factory=list)
    withheld: str = ""  # a file that is neither proved nor has a reason to stay
    after: Callable[[], None] = lambda: None
    batches: list[list[str]] = field(default_factory=list)

    def prove(self, planned: Sequence[FileAction]) -> Proved:
        """Return what may go."""
        self.batches.append([file.path for file in planned])
        if self.errors and (error := self.errors.pop(0)) is not None:
            raise error
        self.after()
        free = frozenset(file.path for file in planned if file.path not in (*self.stays, self.withheld))
        return Proved(free, {file.path: self.stays[file.path] for file in planned if file.path in self.stays})


Check = Callable[[], object]


class World:
    """A job that deletes."""

    def __init__(self, *paths: str) -> None:
        self.files = Bucket(dict.fromkeys(paths or DATA, FileStat(7, OLD)))
        self.ledger, self.clock = Ledger(), FixedClock()
        self.deletion = Deletion(cast("Any", self.files), cast("Any", self.ledger), self.clock)

    def carry_out(
        self, files: Sequence[FileAction], proof: Proof, *, check: Check = bool, owed: bool = True, **how: Any
    ) -> DeletionResult:
        """Delete in the ordinary run."""
        return JobDeletion(self.deletion, "job", "s3://lake/t", proof, 3, check).carry_out(files, owed=owed, **how)

    def finish(self, files: Sequence[FileAction], proof: Proof) -> DeletionResult:
        """Delete what an ended run planned."""
        return JobDeletion(self.deletion, "job", "s3://lake/t", proof, 3).finish(files)


def test_files_that_wait() -> None:
    """Nothing is asked or claimed before the end of the delay; the table's waiting files are known."""
    world, proof = World(), Proof()
    done = world.carry_out([*planned(*DATA[:2]), FileAction("s3://x", None, "data")], proof, delay=timedelta(hours=3))
    assert done.until == NOW + timedelta(hours=3)
    assert [file.path for file in done.waiting] == [*DATA[:2], "s3://x"]
    assert (proof.batches, world.ledger.states, done.files, len(world.files.objects)) == ([], {}, (), 4)
    numbers = {"files_deleted": 0, "files_failed": 0, "bytes_deleted": 0, "files_waiting": 3, "bytes_waiting": 14}
    assert done.metrics == numbers
    assert world.deletion.planned(REF, UUID)["path"].to_list() == DATA[:2]
    assert world.deletion.planned(REF, "another").schema == {"path": pl.String}


def test_content_goes_before_what_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """In batches, each of which is proved right before it; what is left after a crash still names what is left."""
    monkeypatch.setattr(module, "BATCH", 4)
    kinds = ["metadata", "manifest list", "manifest", "partition statistics", "statistics"]
    kinds += ["deletion vectors", "equality deletes", "position deletes", "data"]
    paths = {kind: f"s3://lake/t/{kind}" for kind in kinds}
    world, proof = World(*paths.values()), Proof()
    done = world.carry_out([file for kind, path in paths.items() for file in planned(path, kind=kind)], proof)
    assert world.files.asked == [*reversed(paths.values())]
    assert [len(batch) for batch in proof.batches] == [4, 4, 1]
    assert [path for batch in proof.batches for path in batch] == world.files.asked
    assert (len(done.files), done.failed, done.waiting, done.until) == (9, 0, (), None)
    assert done.metrics == {"files_deleted": 9, "files_failed": 0, "bytes_deleted": 63}
    assert world.ledger.states == dict.fromkeys(paths.values(), LedgerState.DELETED)
    assert done.notes == ("ledger of job",)
    assert world.files.tidied == [(world.files.asked, "s3://lake/t")]


@pytest.mark.cases(104)
def test_only_what_was_planned_proved_and_claimed_goes() -> None:
    """A file that is another one by now, that the proof keeps, or that an undo has taken stays; what is gone, went."""
    world, sizes, times = World(), "its size differs", "it was written anew"
    live, taken, larger, newer, gone, untimed = (f"s3://lake/t/{n}" for n in ("a", "b", "c", "d", "e", "f"))
    world.files.objects |= dict.fromkeys([live, taken, untimed], FileStat(7, OLD))
    world.ledger.taken = {taken}

    def meanwhile() -> None:
        world.files.objects |= {larger: FileStat(8, OLD), newer: FileStat(7, OLD + timedelta(seconds=1))}

    files = [*planned(DATA[0], live, taken, larger, newer, gone), *planned(untimed, size=None, modified=None)]
    done = world.carry_out([*files, *planned(DATA[1])], Proof({live: LIVE}, withheld=DATA[1], after=meanwhile))
    assert world.files.asked == [DATA[0], untimed]
    assert [file.path for file in done.files] == [DATA[0], untimed]
    assert done.metrics["bytes_deleted"] == 7
    states = dict.fromkeys([DATA[0], untimed, gone], LedgerState.DELETED)
    assert world.ledger.states == states | dict.fromkeys([live, larger, newer], LedgerState.KEPT)
    reasons = {live: LIVE}
    reasons |= {path: f"another file bears the name now ({why})" for path, why in ((larger, sizes), (newer, times))}
    assert world.ledger.reasons == reasons
    assert done.notes == (*(f"1 planned file kept: {why}: {path}" for path, why in reasons.items()), "ledger of job")


def test_what_could_not_be_deleted_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty by their paths, the others by their number; the reasons why files stay with three of their paths each."""
    monkeypatch.setattr(module, "BATCH", 24)
    locked = [f"s3://lake/t/{n:02}" for n in range(22)]
    world = World(*locked, *DATA)
    world.files.locked, world.files.folders = set(locked), StorageUnavailable("no folders")
    done = world.carry_out(planned(*DATA[:2], *locked, *DATA[2:]), Proof(dict.fromkeys(DATA, "it is live")))
    assert (done.failed, done.files, len(done.notes)) == (22, (), 24)
    assert done.notes[19] == f"{locked[19]} could not be deleted and is tried again: locked"
    assert done.notes[20:] == (
        "2 more could not be deleted; `icewright show job` has them",
        f"4 planned files kept: it is live: {', '.join(DATA[:3])}",
        "empty folders are left: no folders",
        "ledger of job",
    )
    assert {world.ledger.states[path] for path in locked} == {LedgerState.FAILED}
    assert world.ledger.reasons[locked[0]] == "locked"
    world.files.locked = set(locked[:20])
    assert not any("more could not" in note for note in world.finish(planned(*locked), Proof()).notes)


def test_a_fault_on_the_way_is_tried_again() -> None:
    """Twice, a little later each time; what an earlier attempt deleted counts as deleted."""
    world, proof = World(), Proof(errors=[AWAY, AWAY])
    done = world.carry_out(planned(*DATA), proof)
    waited = backoff(1) + backoff(2)
    assert (len(done.files), len(proof.batches), world.clock.now() - NOW) == (4, 3, waited)
    world, proof = World(), Proof(errors=[AWAY] * 3)
    done = world.carry_out(planned(*DATA), proof)
    assert (done.files, done.failed, len(proof.batches), world.files.asked) == ((), 4, 3, [])
    assert world.clock.now() - NOW == waited
    assert done.notes[0] == "4 planned deletions left to the next start: throttled"
    assert done.notes[1:] == (*(f"waits: {path}" for path in DATA), "ledger of job")
    world, broken = World(), [AWAY]
    real = world.ledger.record

    def record(*args: Any) -> None:
        if broken:
            raise broken.pop()
        real(*args)

    world.ledger.record = record  # type: ignore[method-assign,assignment]
    done = world.carry_out(planned(DATA[0]), Proof())
    assert [file.path for file in done.files] == [DATA[0]]
    assert world.files.asked == [DATA[0]]


def test_a_store_that_is_away_for_the_export_undoes_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """The files are deleted and on record: the job does not begin again, and find nothing to do."""
    world = World()

    def away(job_id: str) -> str:
        raise StoreUnavailable(f"no row of {job_id}")

    monkeypatch.setattr(world.ledger, "export", away)
    done = world.carry_out(planned(DATA[0]), Proof())
    assert ([file.path for file in done.files], done.notes) == (
        [DATA[0]],
        ("the ledger is not exported: no row of job",),
    )


@pytest.mark.cases(104)
def test_a_proof_does_not_last() -> None:
    """Where storage hangs until a proof is old, another is made; what a writer took in meanwhile stays."""
    world, proof, hangs = World(), Proof(), [timedelta(hours=1)]
    real = world.files.stat

    def stat(paths: Sequence[str], concurrency: int) -> Mapping[str, FileStat | None]:
        if hangs:
            world.clock.time += hangs.pop()
            proof.stays = {DATA[1]: LIVE}
        return real(paths, concurrency)

    world.files.stat = stat  # type: ignore[method-assign]
    assert [file.path for file in world.carry_out(planned(*DATA), proof).files] == [DATA[0], *DATA[2:]]
    assert (len(proof.batches), world.ledger.states[DATA[1]]) == (2, LedgerState.KEPT)
    hangs += [module.PROOF_LASTS]
    assert world.finish(planned(DATA[1]), proof).files == ()
    assert len(proof.batches) == 3
    hangs += [timedelta(hours=1)] * 3
    with pytest.raises(StorageUnavailable, match="1 file could not be proved and looked at within 0:15:00"):
        world.finish(planned(DATA[1]), proof)


def test_a_proof_does_not_last_while_storage_deletes_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left when it is old is proved anew, and stays where a writer took it in; quick storage is asked once."""
    monkeypatch.setattr(module, "_FIRST", 1)
    world, proof, sizes = World(), Proof(), list[int]()
    real, lasts = world.files.delete, [module.PROOF_LASTS, timedelta(seconds=1)]

    def delete(paths: Sequence[str], concurrency: int, found: Mapping[str, FileStat | None]) -> DeleteReport:
        world.clock.time += lasts.pop(0) if lasts else timedelta(0)
        proof.stays = {} if lasts else {DATA[3]: LIVE}
        sizes.append(len(paths))
        return real(paths, concurrency, found)

    world.files.delete = delete  # type: ignore[method-assign]
    done = world.carry_out(planned(*DATA), proof)
    assert ([file.path for file in done.files], proof.batches) == (DATA[:3], [DATA, DATA[2:]])
    assert world.ledger.states == dict.fromkeys(DATA[:3], LedgerState.DELETED) | {DATA[3]: LedgerState.KEPT}
    world.files.objects, sizes[:], lasts[:] = dict.fromkeys(DATA, FileStat(7, OLD)), [], [module._QUICK]
    world.finish(planned(*DATA), Proof())
    assert sizes == [1, 3]


def test_a_file_that_goes_at_a_later_attempt_has_not_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts once, as deleted: where a fault comes after a part of a batch, that part is claimed again too."""
    monkeypatch.setattr(module, "_FIRST", 1)
    world, proof = World(), Proof(errors=[None, AWAY])
    real, world.files.locked = world.files.delete, {DATA[0]}

    def delete(paths: Sequence[str], concurrency: int, found: Mapping[str, FileStat | None]) -> DeleteReport:
        report = real(paths, concurrency, found)
        world.files.locked, world.clock.time = set(), world.clock.time + 2 * module.PROOF_LASTS
        return report

    world.files.delete = delete  # type: ignore[method-assign]
    done = world.carry_out(planned(*DATA[:2]), proof)
    assert (proof.batches, [file.path for file in done.files]) == ([DATA[:2], DATA[1:2], DATA[:2], DATA[1:2]], DATA[:2])
    assert (done.failed, done.notes) == (0, ("ledger of job",))


def test_what_is_forbidden_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is any later batch begun: what is left waits, and is told, without what stays for good."""
    monkeypatch.setattr(module, "BATCH", 2)
    paths = [f"s3://lake/t/{n:02}" for n in range(26)]
    world, proof = World(*paths), Proof({paths[1]: "it is live"}, [None, Refused("gc is off", "gc_disabled")])
    done = world.carry_out(planned(*paths), proof)
    assert (world.files.asked, len(proof.batches), world.clock.now()) == ([paths[0]], 2, NOW)
    assert (done.failed, [file.path for file in done.files]) == (24, [paths[0]])
    assert done.notes[0] == "24 planned deletions left to the next start: gc is off [gc_disabled]"
    assert done.notes[1:21] == tuple(f"waits: {path}" for path in paths[2:22])
    assert done.notes[21:] == (f"1 planned file kept: it is live: {paths[1]}", "ledger of job")


@pytest.mark.parametrize(
    ("owed", "deleted", "error", "kept"),
    [
        (False, 0, Cancelled("stop"), 4),
        (True, 0, Cancelled("stop"), 0),  # a commit has let go of the files
        (False, 2, Cancelled("stop"), 0),
        (False, 0, LeaseLost("gone"), 0),  # another process has the job
    ],
)
def test_a_job_that_is_stopped(
    monkeypatch: pytest.MonkeyPatch, *, owed: bool, deleted: int, error: IcewrightError, kept: int
) -> None:
    """It drops its plan before its first deletion, unless that is owed; the plan of another stands."""
    monkeypatch.setattr(module, "BATCH", 2)
    world, proof = World(), Proof()

    def check() -> None:  # when a batch is proved, as a proof may have taken long
        if len(proof.batches) > deleted / 2:
            raise error

    with pytest.raises(type(error)):
        world.carry_out(planned(*DATA), proof, check=check, owed=owed)
    assert len(world.files.asked) == deleted
    states = [*world.ledger.states.values()]
    assert states == [LedgerState.KEPT] * kept + [LedgerState.DELETED] * deleted
    assert world.ledger.reasons == dict.fromkeys(DATA[:kept], "the job was cancelled")


def test_what_an_ended_run_planned() -> None:
    """What is gone was deleted by that run; errors are passed on, at once."""
    world = World(*DATA[:3])
    world.files.locked = {DATA[1]}
    done = world.finish(planned(*DATA), Proof({DATA[2]: "it is live"}))
    assert ([file.path for file in done.files], done.failed) == ([DATA[3], DATA[0]], 1)
    assert done.notes == (
        f"{DATA[1]} could not be deleted and is tried again: locked",
        f"1 planned file kept: it is live: {DATA[2]}",
        "ledger of job",
    )
    with pytest.raises(StorageUnavailable):
        world.finish(planned(*DATA), Proof(errors=[AWAY]))
    assert world.clock.now() == NOW


@pytest.mark.cases(104)
def test_each_planned_file_is_looked_at_first() -> None:
    """Content by the size that its manifest says; what is no file, or has no name in its storage, is told."""
    world, odd = World(), "s3://lake/t/a//b"
    world.files.nameless = {odd}
    world.files.objects |= {DATA[1]: FileStat(8, OLD), DATA[2]: FileStat(8, None), "list": FileStat(9, OLD)}
    files = [*planned(*DATA, odd, "gone", modified=None), *planned("list", kind="manifest list", modified=None)]
    present, stays = world.deletion.existing(files, 3)
    assert present == (
        replace(files[0], modified=OLD),
        replace(files[2], bytes=8),  # a link, of which size and time are its own
        replace(files[3], modified=OLD),
        replace(files[-1], bytes=9, modified=OLD),
    )
    assert stays == {
        DATA[1]: "another file bears the name now (its size differs)",
        odd: "its storage cannot be asked for such a path",
    }
    for kind in ("position deletes", "equality deletes", "deletion vectors"):
        assert world.deletion.existing(planned(DATA[1], kind=kind, modified=None), 3)[0] == ()
    assert world.deletion.existing(planned(DATA[1], kind="statistics", modified=None), 3)[0]
