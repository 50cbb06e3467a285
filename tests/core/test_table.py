"""Names of tables, and what facts add up to."""

from __future__ import annotations

import shlex
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icewright.core.errors import UsageError
from icewright.core.sizes import FileHistogram
from icewright.core.table import ManifestContent, ManifestFile, TableRef
from icewright.core.words import in_shell
from icewright.testing import NOW, REF, facts, histogram, lineage, manifests, metadata, partition, spec


@pytest.mark.parametrize(
    ("text", "ref"),
    [
        ("lake.sales.orders", TableRef("lake", ("sales",), "orders")),
        ("lake.a.b.c", TableRef("lake", ("a", "b"), "c")),
        ("lake.sales.`a.b`", TableRef("lake", ("sales",), "a.b")),
        ("`la ke`.`s``s`.t", TableRef("la ke", ("s`s",), "t")),
        ("lake.grün.表", TableRef("lake", ("grün",), "表")),
        ("lake.sales.it's", TableRef("lake", ("sales",), "it's")),
    ],
)
def test_a_name_is_read(text: str, ref: TableRef) -> None:
    """Dots part a name, backticks quote what holds a dot, a blank or a backtick."""
    assert TableRef.parse(text) == ref


@pytest.mark.parametrize(
    "text", ["", ".", "lake", "lake.orders", "lake..orders", "lake.sales.", ".a.b", "a.b.`c", "a.b.c`d`", "`a`b.c.d"]
)
def test_what_is_no_name_is_refused(text: str) -> None:
    """A name that is not catalog, namespace and table is a usage error that shows how to write one."""
    with pytest.raises(UsageError, match=r"write catalog\.namespace\.table"):
        TableRef.parse(text)


PART = st.text(min_size=1, max_size=8)


@given(PART, st.lists(PART, min_size=1, max_size=3), PART)
def test_a_printed_name_reads_back(catalog: str, namespace: list[str], name: str) -> None:
    """Whatever stands in a name, `str` writes it so that `parse` reads the same; in a command it is one word."""
    ref = TableRef(catalog, tuple(namespace), name)
    assert TableRef.parse(str(ref)) == ref
    assert shlex.split(f"icewright resume {in_shell(ref)}") == ["icewright", "resume", str(ref)]


def test_the_current_snapshot() -> None:
    """A plain read sees the snapshot that the metadata calls current; an empty table has none."""
    table = metadata([3, 2, 1])
    assert table.current_snapshot is table.snapshots[-1]
    assert metadata([]).current_snapshot is None
    assert metadata(snapshots=lineage([1]), current_snapshot_id=99).current_snapshot is None


def test_specs_are_found_by_id() -> None:
    """Each partition names its spec by id."""
    table = metadata(specs=(spec(0), spec(7, region="identity")))
    assert table.spec(7).fields[0].name == "region"


def test_live_files_of_a_manifest() -> None:
    """Deleted entries do not count."""
    assert ManifestFile("m", 10, 0, ManifestContent.DATA, 1, 1, 1, 3, 4, 5).live_files == 7


def test_histograms_add_up() -> None:
    """Buckets add one by one, and the last holds whatever is larger than all limits."""
    both = histogram(2, 0) + histogram(3, 2 * 1024**3) + FileHistogram.empty()
    assert both.counts == (2, 0, 0, 0, 0, 0, 0, 0, 3)


def test_facts_add_up_over_partitions() -> None:
    """A table's numbers are the sums of its partitions'; dangling delete files count as delete files."""
    one = partition(files=3, mb=2, position_delete_files=1, deleted_rows=5)
    two = partition(files=1, mb=4, equality_delete_files=2, deletion_vectors=3, dangling_position_deletes=4)
    both = facts(one, two, manifests_of=[manifests(2), manifests(3, content=ManifestContent.DELETES)])
    assert both.ref == REF
    assert (both.data_files, both.data_bytes, both.records) == (4, 10 * 1024**2, 4000)
    assert (both.delete_files, both.deleted_rows, both.manifest_count) == (10, 5, 5)
    assert two.dangling_delete_files == 4
    assert one.key == (0, ())


@pytest.mark.parametrize(("rows", "deleted", "ratio"), [(1000, 250, 0.25), (10, 50, 1.0), (0, 5, 0.0)])
def test_the_ratio_of_deleted_rows(rows: int, deleted: int, ratio: float) -> None:
    """A share never passes 1, and an empty partition has none deleted."""
    assert partition(records=rows, deleted_rows=deleted).deleted_ratio == ratio


def test_ages_make_a_lineage() -> None:
    """The builder's snapshots are a line of parents, oldest first."""
    table = metadata([5, 3])
    assert [s.parent_id for s in table.snapshots] == [None, 1]
    assert [NOW - s.timestamp for s in table.snapshots] == [timedelta(hours=5), timedelta(hours=3)]
