"""Rewriting manifests: when there are many where few would do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from icewright.core.operations import rewrite_manifests
from icewright.core.policy import MEGABYTE, Operation
from icewright.core.steps import Blocked, Due, NotDue, RewriteManifests, Unsupported, Verdict
from icewright.core.table import ManifestContent, ManifestFacts, PartitionField, PartitionSpec, TableMetadata
from icewright.testing import NOW, facts, knobs, manifests, metadata

DATA, DELETES = ManifestContent.DATA, ManifestContent.DELETES


def _verdict(
    *found: ManifestFacts, of: TableMetadata | None = None, settings: Mapping[str, object] | None = None
) -> Verdict:
    named = knobs(settings or {})
    return rewrite_manifests.evaluate(facts(of=of, by=named, manifests_of=found), named, None, NOW)


def _due(verdict: Verdict) -> tuple[Due, RewriteManifests]:
    assert isinstance(verdict, Due)
    assert verdict.work.operation is Operation.REWRITE_MANIFESTS
    (step,) = verdict.work.steps
    assert isinstance(step, RewriteManifests)
    return verdict, step


def test_many_small_manifests_are_due() -> None:
    """Twelve manifests of 320 entries become one, in-service."""
    verdict, step = _due(_verdict(manifests(12, entries=320)))
    assert step == RewriteManifests(((0, DATA),), 8 * MEGABYTE, by_spark=False, use_caching=False)
    assert verdict.why == "12 manifests of 320 entries where 1 would do"
    assert verdict.work.notes == ("spec 0, in-service",)
    assert verdict.benefit > 0 < verdict.cost


@pytest.mark.parametrize(
    ("found", "settings", "reason"),
    [
        ([manifests(3)], {}, "only 3 data manifests, below threshold of 5"),
        ([], {}, "only 0 data manifests, below threshold of 5"),
        (
            [manifests(2), manifests(2, content=DELETES)],
            {},
            "only 2 data manifests and 2 delete manifests, below threshold of 5",
        ),
        ([manifests(9)], {"rewrite_manifests.min_manifests": 10}, "only 9 data manifests, below threshold of 10"),
        ([manifests(9)], {"rewrite_manifests.spec_id": 7}, "only 0 data manifests, below threshold of 5"),
        ([manifests(5, entries=0)], {}, "no entries to rewrite"),
    ],
)
@pytest.mark.cases(93)
def test_reasons_word_for_word(found: Sequence[ManifestFacts], settings: Mapping[str, object], reason: str) -> None:
    """Why nothing is rewritten, in the specification's words."""
    assert _verdict(*found, settings=settings) == NotDue(reason)


def test_entries_of_files_that_are_gone_are_due_where_rows_are_erased() -> None:
    """One manifest is rewritten for the bounds that such entries keep; not by Spark, which leaves a single one."""
    settings: dict[str, object] = {"preset": "compliance"}
    found = manifests(1, deleted_entries=2), manifests(1, content=DELETES)
    verdict, step = _due(_verdict(*found, settings=settings))
    assert step.chosen == ((0, DATA),)
    assert verdict.why == "1 manifest of 10 entries; 2 entries of files that are gone"
    for nothing in ({}, {**settings, "rewrite_manifests.engine": "spark"}):
        assert isinstance(_verdict(*found, settings=nothing), NotDue)
    assert isinstance(_verdict(manifests(1), settings=settings), NotDue)


def test_no_current_snapshot() -> None:
    """An empty table has no manifests."""
    assert _verdict(manifests(9), of=metadata([])) == NotDue("no current snapshot")


@pytest.mark.parametrize(
    ("found", "due"),
    [
        ([manifests(5)], True),
        ([manifests(10, mb=4.1)], False),
        ([manifests(10, mb=4)], True),
        ([manifests(10, mb=8, small=0)], False),
        ([manifests(10, small=1)], False),
        ([manifests(4), manifests(4, spec_id=1)], True),
        ([manifests(1, spec_id=i) for i in range(9)], False),
    ],
)
def test_only_where_it_helps(found: Sequence[ManifestFacts], due: bool) -> None:
    """A rewrite that would leave more than half of a spec's manifests is no gain."""
    verdict = _verdict(*found)
    assert isinstance(verdict, Due if due else NotDue)
    assert not isinstance(verdict, NotDue) or "would do" in verdict.reason


@pytest.mark.cases(42)
def test_specs_are_rewritten_apart() -> None:
    """Only specs with something to gain are named; a policy may name one."""
    found = (manifests(12), manifests(10, mb=8, small=0, spec_id=1), manifests(6, spec_id=2))
    verdict, step = _due(_verdict(*found))
    assert step.chosen == ((0, DATA), (2, DATA))
    assert verdict.work.notes == ("specs 0, 2, in-service",)
    assert _due(_verdict(*found, settings={"rewrite_manifests.spec_id": 2}))[1].spec_ids == (2,)


def test_delete_manifests_make_a_table_due() -> None:
    """A stream of upserts writes one with each commit: they count as data manifests do, and are merged apart."""
    verdict, step = _due(_verdict(manifests(1), manifests(12, content=DELETES)))
    assert (step.chosen, verdict.files) == (((0, DELETES),), 11)
    _, step = _due(_verdict(manifests(3), manifests(3, content=DELETES)))
    assert step.chosen == ((0, DATA), (0, DELETES))


@pytest.mark.parametrize(
    ("version", "property_mb", "due"), [(2, None, True), (3, None, True), (3, 8, True), (3, 16, False), (2, 16, True)]
)
def test_large_manifests_are_split(version: int, property_mb: int | None, due: bool) -> None:
    """One manifest far above the target is due, unless Spark would split it by the table's larger target."""
    properties = {} if property_mb is None else {"commit.manifest.target-size-bytes": str(property_mb * MEGABYTE)}
    of = metadata(format_version=version, properties=properties)
    found = _verdict(manifests(1, mb=40, small=0, large=1), of=of)
    if due:
        verdict, _ = _due(found)
        assert verdict.why == "1 manifest of 10 entries where 5 would do; 1 of them larger than twice the target"
        assert verdict.benefit > 0
    else:
        assert found == NotDue("only 1 data manifest, below threshold of 5")


def test_the_order_of_entries() -> None:
    """Fields of a spec are named; one that no spec has blocks the operation."""
    settings = {"rewrite_manifests.sort_by": "region, day"}
    of = metadata(
        specs=(
            PartitionSpec(0, (PartitionField(1, 1000, "day", "day"), PartitionField(2, 1001, "region", "identity"))),
        )
    )
    _, step = _due(_verdict(manifests(12), of=of, settings=settings))
    assert step.sort_by == step.fields_of(of.specs[0]) == ("region", "day")
    assert step.fields_of(PartitionSpec(1, of.specs[0].fields[:1])) == ()
    assert _verdict(manifests(12), settings=settings) == Blocked(
        "rewrite_manifests.sort_by names day, region, which is no partition field"
    )


@pytest.mark.parametrize(
    ("version", "engine", "by_spark"),
    [
        (1, "auto", False),
        (2, "auto", False),
        (3, "auto", True),
        (2, "spark", True),
        (3, "spark", True),
        (2, "service", False),
        (3, "service", None),
    ],
)
@pytest.mark.cases(38)
def test_who_rewrites(version: int, engine: str, by_spark: bool | None) -> None:
    """Row lineage of v3 needs Spark; by itself the service does v1 and v2 without it."""
    verdict = _verdict(
        manifests(12), of=metadata(format_version=version), settings={"rewrite_manifests.engine": engine}
    )
    if by_spark is None:
        assert verdict == Unsupported("format v3 manifests are rewritten by Spark alone")
    else:
        found, step = _due(verdict)
        assert step.by_spark is by_spark
        assert found.work.notes[0].endswith("on Spark" if by_spark else "in-service")


def test_knobs_reach_the_step() -> None:
    """Target size and caching are the policy's."""
    settings = {"rewrite_manifests.target_manifest_mb": 2, "rewrite_manifests.use_caching": True}
    _, step = _due(_verdict(manifests(12), settings=settings))
    assert (step.target_bytes, step.use_caching) == (2 * MEGABYTE, True)


def test_more_manifests_are_worth_more() -> None:
    """The benefit grows with what a rewrite spares, the cost with the entries that it reads."""
    few, many, heavy = (_due(_verdict(m))[0] for m in (manifests(12), manifests(24), manifests(12, entries=99_999)))
    assert 0 < few.benefit < many.benefit
    assert few.benefit < _due(_verdict(manifests(12), manifests(12, spec_id=1)))[0].benefit < many.benefit
    assert 0 < few.cost < heavy.cost
