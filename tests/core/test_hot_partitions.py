"""Partitions that somebody is writing to are left alone, and said to be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import date, timedelta
from typing import Any

import pytest

from icewright.core.describe import verdict_document
from icewright.core.effective import Knobs
from icewright.core.operations import compact
from icewright.core.partitions import partition_name
from icewright.core.steps import Due, NotDue, RewriteDataFiles, Verdict
from icewright.core.table import PartitionFacts, PartitionSpec
from icewright.testing import NOW, facts, knobs, lineage, metadata, partition, spec

MINUTE = timedelta(minutes=1)
_OVERWRITES = tuple(replace(one, operation="overwrite") for one in lineage((24, 2)))  # they conflict with rewrites
REGIONS = metadata(snapshots=_OVERWRITES, specs=(spec(region="identity"), spec(1, region="void")))


def _at(region: str | None, minutes: float | None, **more: Any) -> PartitionFacts:
    return partition(region, last_write=None if minutes is None else NOW - minutes * MINUTE, **more)


def _verdict(*partitions: PartitionFacts, settings: Mapping[str, object] | None = None) -> Verdict:
    return compact.evaluate(facts(*partitions, of=REGIONS), knobs(settings or {}), None, NOW)


@pytest.mark.parametrize(
    ("minutes", "settings", "due"),
    [
        (59, {}, False),
        (60, {}, True),
        (None, {}, True),
        (-5, {}, False),
        (9, {"compact.hot_minutes": 10}, False),
        (9, {"compact.hot_minutes": 5}, True),
        (0, {"compact.hot_minutes": 0}, True),
        (1, {"compact.hot_partitions": "include"}, True),
    ],
)
def test_when_a_partition_is_hot(minutes: float | None, settings: Mapping[str, object], due: bool) -> None:
    """A partition is hot for `hot_minutes` after its last write; one whose last write is unknown is not."""
    assert isinstance(_verdict(_at("eu", minutes), settings=settings), Due) is due


def test_hot_alone_is_not_due_until_it_cools() -> None:
    """The verdict names the hot partitions, and when the first of them is looked at again."""
    verdict = _verdict(_at("eu", 50), _at("us", 10))
    assert verdict == NotDue(
        "no files eligible for compaction; hot, left to the writer: region=eu, region=us", NOW + 10 * MINUTE
    )


def test_hot_ones_are_left_out_of_the_work() -> None:
    """Cold partitions are rewritten by a filter that leaves hot ones out, and the verdict says which."""
    verdict = _verdict(_at("eu", 500), _at("us", 10))
    assert isinstance(verdict, Due)
    (step,) = verdict.work.steps
    assert isinstance(step, RewriteDataFiles)
    assert step.where == "`region` = 'eu'"
    assert "hot, left to the writer: region=us" in verdict.work.notes
    assert verdict.why.endswith("hot, left to the writer: region=us")
    assert not [note for note in verdict_document("compact", verdict)["notes"] if note in verdict.why]


def test_hot_by_deletes() -> None:
    """A hot partition is left alone for whatever cause it would be rewritten."""
    assert isinstance(_verdict(_at("eu", 1, files=1, deletion_vectors=1, deleted_rows=900)), NotDue)


def test_a_healthy_partition_is_not_called_hot() -> None:
    """Only partitions with something to do are named."""
    assert _verdict(_at("eu", 1, files=1)) == NotDue("no files eligible for compaction")


def test_many_hot_partitions_are_counted() -> None:
    """Three are named, the others counted."""
    verdict = _verdict(*(_at(f"r{i}", 1) for i in range(5)))
    assert isinstance(verdict, NotDue)
    assert verdict.reason.endswith("region=r0, region=r1, region=r2 and 2 more")


@pytest.mark.parametrize(("made", "values"), [(spec(), ()), (spec(region="void"), (None,))])
def test_an_unpartitioned_table_is_never_hot(made: PartitionSpec, values: tuple[None, ...]) -> None:
    """A table that is one partition would never be compacted if its writer kept it hot."""
    table = facts(partition(*values, last_write=NOW), of=metadata(specs=(made,)))
    assert isinstance(compact.evaluate(table, Knobs(), None, NOW), Due)


@pytest.mark.parametrize(
    ("made", "values", "name"),
    [
        (spec(), (), "the table"),
        (spec(region="identity"), ("eu",), "region=eu"),
        (spec(region="identity"), (None,), "region=null"),
        (spec(ts="day", region="identity"), (date(2026, 1, 2), "eu"), "ts_0=2026-01-02/region=eu"),
    ],
)
def test_names_of_partitions(made: PartitionSpec, values: tuple[object, ...], name: str) -> None:
    """Partitions are called as their folders are."""
    table = facts(of=metadata(specs=(made,)))
    assert partition_name(table.metadata, partition(*values).key) == name


def _written(minutes: float, *, hours: float, writes: int) -> PartitionFacts:
    """Written `minutes` ago for the last time, `writes` times over the `hours` before."""
    last = NOW - minutes * MINUTE
    return partition("eu", last_write=last, first_write=last - timedelta(hours=hours), writes=writes)


@pytest.mark.parametrize(
    ("minutes", "hours", "writes", "due"),
    [
        (61, 2, 2, True),  # two writes are no rhythm
        (61, 2, 3, False),  # one an hour: hot for two
        (121, 2, 3, True),
        (239, 22, 3, False),
        (241, 22, 3, True),  # one in eleven hours: nobody waits that long
        (61, 2, 13, True),  # one in ten minutes: `hot_minutes` are longer
        (59, 2, 13, False),
        (5, 24, 99, False),
        (5, 24.1, 99, True),  # written for longer than a day: it would stay hot
    ],
)
def test_a_partition_is_hot_by_the_interval_of_its_writes(minutes: float, hours: float, writes: int, due: bool) -> None:
    """A partition is hot for twice the interval of its writes, unless it is written all the time."""
    assert isinstance(_verdict(_written(minutes, hours=hours, writes=writes)), Due) is due


def test_a_slow_rhythm_says_when_it_is_looked_at_again() -> None:
    """The verdict's next look is when the silence will have been long enough."""
    verdict = _verdict(_written(61, hours=2, writes=3))
    assert isinstance(verdict, NotDue)
    assert verdict.revisit == NOW + 59 * MINUTE


def test_no_hot_minutes_means_no_hot_partition() -> None:
    """With `hot_minutes` 0 the rhythm does not count either."""
    assert isinstance(_verdict(_written(61, hours=2, writes=3), settings={"compact.hot_minutes": 0}), Due)
