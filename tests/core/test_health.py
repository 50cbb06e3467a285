"""Health: 0 to 100 by parts, unknown where nothing is known."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icewright.core.effective import Knobs
from icewright.core.health import LARGE_METADATA, WEIGHTS, HealthPart, files_to_save, health_parts, overall
from icewright.core.operations.expire_snapshots import expiry
from icewright.core.table import ManifestContent, ManifestFacts, TableFacts
from icewright.testing import NOW, facts, knobs, manifests, metadata, partition


def _parts(table: TableFacts, found: Knobs | None = None, share: float | None = None) -> dict[str, HealthPart]:
    found = found or Knobs()
    return health_parts(table, found, expiry(table.metadata, table.holds, found, NOW), share, NOW)


def test_an_empty_table_is_healthy() -> None:
    """Nothing is small, deleted, scattered or old; what no scan has told is unknown and weighs nothing."""
    parts = _parts(facts(of=metadata([]), manifests_of=[]))
    assert {name: part.score for name, part in parts.items()} == {
        "small_files": 100,
        "deletes": 100,
        "manifests": 100,
        "snapshots": 100,
        "orphans": None,
    }
    assert overall(parts) == 100


def test_unknown_is_not_healthy() -> None:
    """Without a single known part there is no health; every part has a weight."""
    assert overall({"orphans": HealthPart(None, "no scan yet")}) is None
    assert set(WEIGHTS) == set(_parts(facts()))
    assert sum(WEIGHTS.values()) == 100


@given(st.dictionaries(st.sampled_from(sorted(WEIGHTS)), st.none() | st.integers(0, 100)))
def test_health_lies_between_its_parts(scores: dict[str, int | None]) -> None:
    """The mean of the known parts is neither better than the best nor worse than the worst."""
    known = [score for score in scores.values() if score is not None]
    found = overall({name: HealthPart(score, "") for name, score in scores.items()})
    assert (found is None) == (not known)
    assert found is None or min(known) <= found <= max(known)


@pytest.mark.parametrize(
    ("files", "mb", "score", "behind"),
    [
        (100, 1, 1, "99 of 100 data files could be merged away"),
        (4, 1, 100, "0 of 4 data files could be merged away"),
        (100, 512, 100, "0 of 100 data files could be merged away"),
        (10, 256, 50, "5 of 10 data files could be merged away"),
    ],
)
def test_small_files(files: int, mb: float, score: int, behind: str) -> None:
    """The share of files that a rewrite would spare; fewer candidates than make a partition due count for nothing."""
    assert _parts(facts(partition(files=files, mb=mb)))["small_files"] == HealthPart(score, behind)


@pytest.mark.cases(133)
@pytest.mark.parametrize(
    ("files", "mb", "score"),
    [(4, 1, 1), (1, 4, 3), (1, 64, 50), (1, 256, 100)],
    ids=["four", "merged", "half", "large"],
)
def test_partitions_that_no_rewrite_mends_lower_the_health(files: int, mb: float, score: int) -> None:
    """A thousand small partitions cost readers a thousand files, well compacted or not; the part says so."""
    found = _parts(facts(*(partition(number, files=files, mb=mb) for number in range(1000))))["small_files"]
    assert found.score == score
    assert ("1,000 small partitions" in found.behind) == (score < 100)


@pytest.mark.parametrize(
    ("position", "rows", "score"),
    [(0, 0, 100), (1, 0, 98), (4, 0, 90), (1, 1500, 75), (1, 3000, 50), (1, 10_000, 0), (40, 0, 0), (500, 0, 0)],
)
def test_deletes(position: int, rows: int, score: int) -> None:
    """Both the share of deleted rows and delete files to a data file lower the score, never below 0."""
    one = partition(files=10, position_delete_files=position, deleted_rows=rows)
    assert _parts(facts(one))["deletes"].score == score


def test_deletes_with_odd_numbers() -> None:
    """Delete files without data files, and a ratio threshold of 0, are no division by zero."""
    alone = partition(files=0, dangling_position_deletes=3)
    assert _parts(facts(alone))["deletes"].score == 75
    strict = knobs({"compact.delete_ratio_threshold": 0})
    assert _parts(facts(partition(deletion_vectors=1, deleted_rows=1)), strict)["deletes"].score == 0


@pytest.mark.parametrize(
    ("found", "score", "behind"),
    [
        ([manifests(1)], 100, "1 data manifest where 1 would do"),
        ([manifests(4)], 100, "4 data manifests where 1 would do"),
        ([manifests(100)], 1, "100 data manifests where 1 would do"),
        ([manifests(10, mb=8)], 100, "10 data manifests where 10 would do"),
        ([manifests(10, mb=4)], 50, "10 data manifests where 5 would do"),
        ([manifests(3), manifests(5, spec_id=1)], 25, "8 data manifests where 2 would do"),
        ([manifests(50, content=ManifestContent.DELETES)], 100, "0 data manifests where 0 would do"),
    ],
)
def test_manifests(found: Sequence[ManifestFacts], score: int, behind: str) -> None:
    """How many data manifests there are against how many of the target size would hold them, spec by spec."""
    assert _parts(facts(manifests_of=found))["manifests"] == HealthPart(score, behind)


def test_snapshots() -> None:
    """The share of snapshots that may go, and a metadata file that every reader pays for."""
    ages = [1000 - i for i in range(10)]
    assert _parts(facts(of=metadata(ages)))["snapshots"].score == 50
    large = metadata([1], metadata_length=4 * LARGE_METADATA)
    assert _parts(facts(of=large))["snapshots"].score == 25
    assert "metadata file of 256.0 MB" in _parts(facts(of=large))["snapshots"].behind


@pytest.mark.parametrize(("share", "score"), [(0.0, 100), (0.25, 75), (1.0, 0)])
def test_orphans(share: float, score: int) -> None:
    """What the last scan saw, as a share."""
    part = _parts(facts(), share=share)["orphans"]
    assert part == HealthPart(score, f"{share:.1%} of the files seen by the last scan")


@pytest.mark.parametrize(
    ("files", "size", "saved"), [(0, 0, 0), (1, 1, 0), (2, 2, 1), (10, 5120, 0), (10, 100, 9), (2, 5120, 0)]
)
def test_files_to_save(files: int, size: int, saved: int) -> None:
    """A rewrite never saves less than nothing, and one file is not merged with itself."""
    one = partition(candidate_files=files, candidate_bytes=size * 1024**2)
    assert files_to_save(one, facts(one)) == saved
