"""Faults of storage, catalog and store at every call of every operation that deletes or commits.

An undisturbed run tells the calls of the ports. Then the operation runs once for each call that a kind of fault fits,
the fault striking there; a process that starts afterwards settles what it finds, does the work again and removes what
is left. A reader of our own says what can still be read.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from icewright.core.runs import OperationState
from icewright.testing import FixedClock
from tests.faults.interceptors import WRITES, Hook, opened
from tests.faults.operations import Done, FaultOperation, do
from tests.faults.reading import read
from tests.faults.storage_errors import FAULTS, cut, half, without_last_block
from tests.faults.sweeping import Sweeps, Trial
from tests.nightly import nightly

pytestmark = pytest.mark.external

_DELETIONS = {"some deleted", "some deleted then unavailable", "deleted but denied", "nothing deleted"}
_COMMITS = {"landed and reply lost", "reply lost", "conflict", "conflicts from then on"}
_LISTINGS = {"listing breaks off", "listing breaks off each time", "listing lacks files"}
#: Kinds of faults that no call of a deed fits.
_FOREIGN = {
    FaultOperation.EXPIRE: _LISTINGS,
    FaultOperation.ORPHANS: _COMMITS,
    FaultOperation.STATISTICS: _LISTINGS | _DELETIONS,
    FaultOperation.POINTS: _LISTINGS | _DELETIONS,
    FaultOperation.QUEUED: frozenset(FAULTS),  # as a restore
    FaultOperation.RESTORE: _DELETIONS | {"listing lacks files"},
    FaultOperation.REWRITE: _LISTINGS | _DELETIONS,
    FaultOperation.SETTLE: _LISTINGS | _COMMITS,
}


def _marks(action: FaultOperation, kind: str) -> tuple[pytest.MarkDecorator, ...]:
    """Statistics and tags delete nothing that was there: a push tries the faults of their commit alone."""
    quick = action not in (FaultOperation.STATISTICS, FaultOperation.POINTS) or kind in _COMMITS
    return () if quick else (pytest.mark.nightly,)


every_fault = pytest.mark.parametrize(
    ("action", "kind"),
    [
        pytest.param(action, kind, id=f"{action}-{kind}", marks=_marks(action, kind))
        for action in FaultOperation
        for kind in FAULTS
        if kind not in _FOREIGN[action]
    ],
)


def told(
    sweeps: Sweeps, unsettled: Sweeps, action: FaultOperation, kind: str, wrong: Callable[[Trial], list[str]]
) -> str:
    """What was wrong in any of the trials, a line each."""
    trials = (unsettled if action is FaultOperation.SETTLE else sweeps).sweep(action, kind)
    assert trials, "the fault never struck"
    return "\n".join(f"{t.struck}: {'; '.join(wrong(t)[:3])}\n    said: {t.said}" for t in trials if wrong(t))


@pytest.mark.cases(12, 14, 69, 76, 77, 78)
@every_fault
def test_nothing_readable_is_lost(sweeps: Sweeps, unsettled: Sweeps, action: FaultOperation, kind: str) -> None:
    """Every ref and every snapshot that stays reads the same whole files, right away and after the next start."""
    assert not told(sweeps, unsettled, action, kind, lambda trial: trial.lost)


@pytest.mark.cases(14, 69, 76, 77)
@every_fault
def test_the_result_is_true(sweeps: Sweeps, unsettled: Sweeps, action: FaultOperation, kind: str) -> None:
    """State, files and notes say what became of the table, and the ledger who deleted what."""
    assert not told(sweeps, unsettled, action, kind, lambda trial: trial.untrue)


@pytest.mark.cases(76, 77, 78)
@every_fault
def test_the_next_start_finishes(sweeps: Sweeps, unsettled: Sweeps, action: FaultOperation, kind: str) -> None:
    """No plan stays open and no table held; a second run does what an undisturbed one does, and no file is left."""
    assert not told(sweeps, unsettled, action, kind, lambda trial: trial.unfinished)


def _gone(_: bytes) -> bytes:
    return b""


HOW: dict[str, Callable[[bytes], bytes]] = {"empty": _gone, "half": half, "a block short": without_last_block}


@pytest.mark.cases(12)
@pytest.mark.parametrize("action", [FaultOperation.EXPIRE, FaultOperation.ORPHANS])
@pytest.mark.parametrize(
    ("what", "how"),
    [
        ("manifest list", "a block short"),
        ("manifest", "a block short"),
        nightly("manifest list", "half"),
        nightly("manifest", "half"),
        pytest.param("manifest list", "empty"),
        pytest.param("manifest", "empty"),
    ],
)
def test_a_damaged_file_of_a_kept_snapshot(sweeps: Sweeps, action: FaultOperation, what: str, how: str) -> None:
    """One that is not whole, any of those that stay, and nothing is deleted: the run fails and names the file."""
    want, wrong = sweeps.want(action), []
    files = [Path(path) for path in want.after.reached & want.before.reached if path.endswith(".avro")]
    for file in sorted(f for f in files if f.name.startswith("snap-") == (what == "manifest list")):
        sweeps.workspace.restore()
        before = sweeps.workspace.files()
        with cut([file], HOW[how]):
            done = _done(sweeps, action, None)
        deleted = before - sweeps.workspace.files()
        failed = done.outcome is not None and done.outcome.state is OperationState.FAILED
        if deleted or not failed or file.name not in done.said:
            live = sorted(deleted & want.after.reached)
            wrong.append(f"{file.name}: {len(deleted)} deleted, {len(live)} of them live ({live}); said: {done.said}")
    assert not wrong, "\n".join(wrong)


def _done(sweeps: Sweeps, action: FaultOperation, hook: Hook | None) -> Done:
    with opened(sweeps.workspace.home, FixedClock(sweeps.now), hook) as app:
        return do(app.runtime, action)


@pytest.mark.cases(69)
def test_a_listing_that_never_ends_well(sweeps: Sweeps) -> None:
    """A folder that can never be listed defers the scan; no file is deleted, not even one that was listed."""
    want = sweeps.want(FaultOperation.ORPHANS)
    trial, _ = sweeps.struck(
        FaultOperation.ORPHANS, FAULTS["listing breaks off each time"], want.calls.index("files.listing")
    )
    assert want.gone <= sweeps.workspace.files()
    assert "deferred: unavailable" in trial.said
    assert "broke off" in trial.said


@pytest.mark.cases(76, 78)
@pytest.mark.parametrize("action", [FaultOperation.EXPIRE, FaultOperation.REWRITE])
def test_commits_that_never_land(sweeps: Sweeps, action: FaultOperation) -> None:
    """After six lost commits with growing pauses the operation gives way; the table is as it was, no file more."""
    want = sweeps.want(action)
    kind = FAULTS["conflicts from then on"]
    trial, clock = sweeps.struck(action, kind, want.calls.index("catalog.commit"))
    assert trial.said.startswith("skipped: ")
    assert "lost the commit 6 times" in trial.said
    assert clock.slept == [0.05, 0.1, 0.2, 0.4, 0.8]
    assert read(sweeps.workspace).document == want.before.document
    assert sweeps.workspace.files() == want.before.reached | sweeps.want(FaultOperation.ORPHANS).gone | {_young(sweeps)}


def _young(sweeps: Sweeps) -> str:
    return str(sweeps.workspace.folder / "data" / "young.parquet")


@pytest.mark.cases(66)
def test_grace_counts_from_the_listing(sweeps: Sweeps) -> None:
    """However late it comes, a file that was young when the scan began is kept; a job too late deletes nothing."""
    want, wrong = sweeps.want(FaultOperation.ORPHANS), []
    first = want.calls.index("files.listing")
    delete = want.calls.index("files.delete")
    late = [n for n in range(first, delete + 1) if want.calls[n] in WRITES or want.calls[n] == "catalog.load"]
    for moment in (first, first + 1, *late):
        trial, _ = sweeps.struck(FaultOperation.ORPHANS, FAULTS["a week late"], moment)
        assert (
            want.gone <= sweeps.workspace.files()
            if "ran longer" in trial.said
            else not want.gone & sweeps.workspace.files()
        )
        wrong += [want.calls[moment]] if _young(sweeps) not in sweeps.workspace.files() else []
    assert not wrong
