"""What every catalog does when others commit too, or still need what is to be removed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from icewright.app.demo.craft import Craft
from icewright.core.errors import CommitConflict, Refused
from icewright.core.table import MAIN, TableMetadata
from icewright.ports import Change
from tests.contracts.bench import SCHEMA, Bench, compares, each_change, removal, removes

THREADS = 20


def _append(bench: Bench) -> None:
    table = bench.read("sales", "orders")
    table.append(table.scan().to_arrow().slice(0, 1))


def _tag(bench: Bench) -> None:
    table = bench.read("sales", "orders")
    table.manage_snapshots().create_tag(table.snapshots()[0].snapshot_id, "keep").commit()


def _branch(bench: Bench) -> None:
    table = bench.read("sales", "orders")
    table.manage_snapshots().create_branch(table.snapshots()[0].snapshot_id, "dev").commit()


def _property(bench: Bench) -> None:
    bench.read("sales", "orders").transaction().set_properties({"gc.enabled": "false"}).commit_transaction()


def _recreate(bench: Bench) -> None:
    bench.iceberg.drop_table(("sales", "orders"))
    bench.iceberg.create_table(("sales", "orders"), SCHEMA)


def _drop(bench: Bench) -> None:
    bench.iceberg.drop_table(("sales", "orders"))


OTHERS = {f.__name__.strip("_"): f for f in (_append, _tag, _branch, _property, _recreate, _drop)}


@pytest.mark.cases(6, 75, 82)
@each_change
@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_somebody_else_was_first(
    bench: Bench, other: Callable[[Bench], None], change: Callable[[TableMetadata], Change]
) -> None:
    """Whatever another client commits before, a tag above all, is a conflict and stays; no file is left over."""
    base = bench.craft("sales.orders")
    other(bench)
    rows, files = bench.rows(), {path: path.read_bytes() for path in bench.warehouse.rglob("*") if path.is_file()}
    with pytest.raises(CommitConflict, match=r"lake\.sales\.orders"):
        bench.catalog.commit(base, change(base))
    assert bench.rows() == rows
    assert {path: path.read_bytes() for path in bench.warehouse.rglob("*") if path.is_file()} == files


@compares  # elsewhere removals of different snapshots do not contradict one another
@pytest.mark.cases(76)
@pytest.mark.parametrize("clients", ["one client", "many clients"])
def test_of_many_at_once_one_wins(bench: Bench, clients: str) -> None:
    """Of twenty commits to one base exactly one lands, the others are conflicts, and nothing is lost in between."""
    base = bench.craft("sales.orders", 2 + THREADS)
    catalogs = [bench.catalog if clients == "one client" else bench.open() for _ in range(THREADS)]
    for _ in range(bench.rounds):
        start = threading.Barrier(THREADS)

        def commit(index: int, base: TableMetadata = base, start: threading.Barrier = start) -> TableMetadata | None:
            start.wait()
            try:
                after: TableMetadata = catalogs[index].commit(base, removal(base, index % (len(base.snapshots) - 1)))
            except CommitConflict:
                return None
            return after

        with ThreadPoolExecutor(THREADS) as pool:
            won = [after for after in pool.map(commit, range(THREADS)) if after is not None]
        assert len(won) == 1
        assert bench.catalog.load(base.ref) == won[0]
        assert len(won[0].snapshots) == len(base.snapshots) - 1
        base = won[0]
    for catalog in catalogs:
        catalog.close()


def _held(craft: Craft) -> None:
    first, second = (s["snapshot-id"] for s in craft.snapshots[:2])
    craft.refs["v1"] = {"snapshot-id": first, "type": "tag"}
    craft.refs["dev"] = {"snapshot-id": second, "type": "branch"}


@removes
@pytest.mark.cases(5)
@pytest.mark.parametrize(("index", "holder"), [(0, "v1"), (1, "dev"), (-1, MAIN)])
def test_what_a_ref_holds_is_not_removed(bench: Bench, index: int, holder: str) -> None:
    """Removing a snapshot that a tag, a branch or main holds is refused by the holder's name, and changes nothing."""
    base = bench.craft("sales.orders", change=_held)
    rows, files = bench.rows(), sorted(bench.warehouse.rglob("*"))
    with pytest.raises(Refused, match=holder):
        bench.catalog.commit(base, removal(base, index, 2))
    assert (bench.rows(), sorted(bench.warehouse.rglob("*"))) == (rows, files)


@removes
@pytest.mark.cases(4)
def test_a_ref_and_its_snapshot_go_together(bench: Bench) -> None:
    """A tag that is removed in the same commit holds its snapshot no more; the others stay."""
    base = bench.craft("sales.orders", change=_held)
    after = bench.catalog.commit(base, removal(base, 0, refs=("v1",)))
    assert {ref.name for ref in after.refs} == {"dev", MAIN}
    assert set(bench.read("sales", "orders").metadata.refs) == {"dev", MAIN}
    assert base.snapshots[0].snapshot_id not in after.by_id
