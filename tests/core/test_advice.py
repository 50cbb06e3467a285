"""Advice on partitions and writers that no maintenance mends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from icewright.core.advice import AdviceKind, advise
from icewright.core.table import Snapshot
from icewright.testing.builders import facts, metadata, partition, snapshot, spec

FLINK = {"flink.job-id": "54b43d2b", "flink.max-committed-checkpoint-id": "7"}
TIDY = {"write.metadata.delete-after-commit.enabled": "true"}
SECOND = 1 / 3600  # in hours
MB = 1024**2


def commits(count: int, every: float, writer: Mapping[str, str] = FLINK, **summary: int | str) -> tuple[Snapshot, ...]:
    """Appends of one writer, so many hours apart."""
    said = {"operation": "append", **{name.replace("_", "-"): str(value) for name, value in summary.items()}}
    return tuple(
        snapshot(
            number, age=(count - number) * every, parent_id=number - 1 or None, summary=said, writer_properties=writer
        )
        for number in range(1, count + 1)
    )


def kinds(**table: Any) -> list[AdviceKind]:
    """The kinds of advice on a table with these fields of its metadata."""
    partitions = table.pop("partitions", (partition(),))
    return [advice.kind for advice in advise(facts(*partitions, of=metadata(**{"properties": TIDY, **table})))]


@pytest.mark.parametrize(
    ("snapshots", "expected"),
    [
        pytest.param(commits(9, 10 * SECOND, added_files_size=MB), [], id="too few to know"),
        pytest.param(commits(30, SECOND, added_files_size=MB), [], id="a burst"),
        pytest.param(commits(30, 1, added_files_size=MB), [], id="hourly"),
        pytest.param(commits(30, 10 * SECOND, added_files_size=4096 * MB), [], id="often, and much"),
        pytest.param(commits(30, 10 * SECOND, added_files_size=MB), ["frequent_commits"], id="often, and little"),
        pytest.param(
            commits(30, 1, {}, added_files_size=80 * MB, added_data_files=40, changed_partition_count=2),
            ["small_files"],
            id="many tasks, few partitions",
        ),
        pytest.param(
            commits(30, 1, {}, added_files_size=80 * MB, added_data_files=40, changed_partition_count=40),
            [],
            id="a file for each partition",
        ),
        pytest.param((), [], id="no snapshots"),
    ],
)
def test_habits_of_writers(snapshots: tuple[Snapshot, ...], expected: list[str]) -> None:
    """A writer is advised by the medians of its commits, and only once there are enough of them."""
    assert kinds(snapshots=snapshots) == expected


def test_a_writer_is_named_with_its_own_remedy() -> None:
    """A Flink job is told of checkpoints, with the figures of before and after."""
    (advice,) = advise(
        facts(partition(), of=metadata(properties=TIDY, snapshots=commits(30, 10 * SECOND, added_files_size=MB)))
    )
    assert advice.writer == "Flink job 54b43d2b"
    assert "every 10 s, 1.0 MB each" in advice.finding
    assert "execution.checkpointing.interval" in advice.remedy
    assert "144 commits a day instead of 8640" in advice.effect


def test_applications_of_spark_are_advised_apart() -> None:
    """One that commits often is named by its id; those of a nightly job, each new with its id, count together."""
    quiet = commits(30, 1, {}, engine_name="spark", added_files_size=MB)
    nightly = tuple(replace(s, summary={**s.summary, "app-id": f"app-{s.snapshot_id}"}) for s in quiet)
    said: dict[str, Any] = {"engine_name": "spark", "app_id": "app-0", "added_files_size": MB}
    busy = tuple(replace(s, snapshot_id=100 + s.snapshot_id) for s in commits(30, 10 * SECOND, {}, **said))
    (advice,) = advise(facts(partition(), of=metadata(properties=TIDY, snapshots=(*nightly, *busy))))
    assert advice.writer == "Spark application app-0"
    assert "every 10 s" in advice.finding


@pytest.mark.parametrize("transforms", [{}, {"ts": "day"}])
@pytest.mark.parametrize(
    ("every", "files", "sizes", "least"),
    [pytest.param(10 * SECOND, 1, 1, 5, id="often"), pytest.param(1, 40, 80, 1.5, id="many tasks")],
)
def test_the_effect_of_following_advice_on_a_writer_is_simulated(
    transforms: dict[str, str], every: float, files: int, sizes: int, least: float
) -> None:
    """A day of the writer is simulated as it is and as advised: so many times fewer files, at less cost; it is said."""
    snapshots = commits(30, every, added_files_size=sizes * MB, added_data_files=files, changed_partition_count=1)
    (advice,) = advise(
        facts(partition(), of=metadata(properties=TIDY, snapshots=snapshots, specs=(spec(**transforms),)))
    )
    effect = advice.simulated
    assert effect is not None
    assert effect.average_files > least * effect.advised_average_files > 0
    assert effect.gb_hours > 1.5 * effect.advised_gb_hours > 0
    assert str(effect) in advice.effect
    assert f"{effect.advised_average_files:.0f} files to open on average instead of" in advice.effect


@pytest.mark.cases(133)
@pytest.mark.parametrize(
    ("transforms", "count", "mb", "remedy"),
    [
        ({"ts": "hour"}, 60, 1, "days of ts_0 instead of hours"),
        ({"region": "identity"}, 60, 1, "region as a sort column"),
        ({"region": "bucket[512]"}, 60, 1, "fewer buckets of region_0 than 512"),
        ({"ts": "day"}, 60, 400, None),
        ({"ts": "day"}, 20, 1, None),
    ],
)
def test_partitions_that_stay_small(transforms: dict[str, str], count: int, mb: float, remedy: str | None) -> None:
    """Many partitions below a quarter of a file are too many, whatever is merged in them."""
    partitions = [partition(number, files=4, mb=mb / 4) for number in range(count)]
    found = advise(facts(*partitions, of=metadata(properties=TIDY, specs=(spec(**transforms),))))
    assert [advice.kind for advice in found] == ([] if remedy is None else [AdviceKind.OVER_PARTITIONED])
    if remedy is not None:
        effect = found[0].simulated
        assert remedy in found[0].remedy
        assert effect is not None
        assert (effect.average_files, effect.advised_average_files) == pytest.approx((4 * count, 1))
        assert effect.gb_hours > 100 * effect.advised_gb_hours
        assert str(effect) in found[0].effect


def test_metadata_files_that_nobody_deletes() -> None:
    """A busy table without the property leaves a metadata file for each commit."""
    snapshots = commits(200, 0.1, added_files_size=600 * MB)
    assert kinds(snapshots=snapshots, properties={}) == [AdviceKind.METADATA_FILES]
    assert kinds(snapshots=commits(200, SECOND / 10, added_files_size=600 * MB), properties={}) == []
    assert kinds(snapshots=snapshots) == []


def test_hostile_summaries_are_no_fault() -> None:
    """Whatever a summary holds, there is an answer."""
    broken = commits(30, 10 * SECOND)
    odd = tuple(
        snapshot(
            s.snapshot_id,
            age=0,
            summary={"added-files-size": "many", "added-data-files": "-1", "engine-name": "x" * 999},
        )
        for s in broken
    )
    assert all(len(advice.writer) <= 40 for advice in advise(facts(partition(), of=metadata(snapshots=odd))))
