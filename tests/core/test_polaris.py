"""What Polaris's policies say, as knobs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from icewright.core import rewriting
from icewright.core.layering import Policy, parse_pattern
from icewright.core.layering import PolicyRule as OurRule
from icewright.core.polaris import PolarisPolicy, Served, served
from icewright.core.table import TableRef
from icewright.testing import metadata

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
COMPACT, ROWS = "system.data-compaction", "compact.enabled"
ORPHANS, EXPIRE = "system.orphan-file-removal", "system.snapshot-expiry"
BOTH = {"compact.enabled": True, "rewrite_deletes.enabled": True}


def _policy(kind: str, content: object, *, name: str = "p", inherited: bool = False) -> PolarisPolicy:
    return PolarisPolicy(kind, name, content, inherited)


@pytest.mark.parametrize(
    ("kind", "content", "settings"),
    [
        (COMPACT, {"version": "2025-02-03", "enable": True}, BOTH),
        (COMPACT, {"enable": False}, dict.fromkeys(BOTH, False)),
        (
            COMPACT,
            {
                "enable": True,
                "config": {
                    "target_file_size_bytes": 134217728,
                    "compaction_strategy": "bin-pack",
                    "max-concurrent-file-group-rewrites": 3,
                },
            },
            BOTH
            | {
                "compact.target_file_size_mb": 128.0,
                "compact.strategy": "binpack",
                "compact.max_concurrent_file_group_rewrites": 3,
            },
        ),
        (COMPACT, {"enable": True, "target_file_size_bytes": 2**20}, BOTH | {"compact.target_file_size_mb": 1.0}),
        (
            ORPHANS,
            {"enable": True, "max_orphan_file_age_in_days": 30, "config": {"prefix_mismatch_mode": "IGNORE"}},
            {
                "remove_orphans.enabled": True,
                "remove_orphans.older_than_hours": 720,
                "remove_orphans.prefix_mismatch": "ignore",
            },
        ),
        (
            ORPHANS,
            {"enable": True, "max_orphan_file_age_in_days": 0},
            {"remove_orphans.enabled": True, "remove_orphans.older_than_hours": 24},
        ),
        (COMPACT, {"enable": True, "config": {"min-input-files": "7"}}, BOTH | {"compact.min_input_files": 7}),
        (
            "system.metadata-compaction",
            {"enable": True, "config": {"spec_id": 1}},
            {"rewrite_manifests.enabled": True, "rewrite_manifests.spec_id": 1},
        ),
        (
            EXPIRE,
            {"enable": True, "config": {"min_snapshot_to_keep": 1, "max_snapshot_age_days": 2, "max_ref_age_days": 3}},
            {
                "expire_snapshots.enabled": True,
                "expire_snapshots.min_snapshots_to_keep": 1,
                "expire_snapshots.retention_hours": 48.0,
                "expire_snapshots.max_ref_age_hours": 72.0,
            },
        ),
        (
            ORPHANS,
            {"enable": True, "older_than": NOW.timestamp() - 10 * 86400 + 60, "config": {"mode": "delete"}},
            {"remove_orphans.enabled": True, "remove_orphans.older_than_hours": 240, "remove_orphans.mode": "delete"},
        ),
        (
            ORPHANS,
            {"enable": True, "older_than": NOW.timestamp() * 1000},  # milliseconds, and younger than is ever removed
            {"remove_orphans.enabled": True, "remove_orphans.older_than_hours": 24},
        ),
    ],
)
def test_what_the_contents_mean(kind: str, content: object, settings: dict[str, Any]) -> None:
    """Each field of Polaris's schemas, its examples of custom properties, and our knobs by their names."""
    ((rule, found),) = served([_policy(kind, content)], NOW).rules
    assert found == settings
    assert rule == f"Polaris {kind} p"


@pytest.mark.parametrize(
    "content", [None, "text", [], {}, {"enable": "yes"}, {"enable": True, "target_file_size_bytes": "many"},
                {"enable": True, "target_file_size_bytes": -1}, {"enable": True, "config": {"min_input_files": 0}},
                {"enable": True, "target_file_size_bytes": float("nan")}],
)  # fmt: skip
def test_what_cannot_be_understood_switches_the_operation_off(content: object) -> None:
    """Missing evidence means no action; the rule says why."""
    ((rule, found),) = served([_policy(COMPACT, content)], NOW).rules
    assert found == dict.fromkeys(BOTH, False)
    assert rule.startswith("Polaris system.data-compaction p: ")


@pytest.mark.parametrize("content", [{"colour": 1}, {"config": {"my-key": "x"}}, {"config": {"enabled": False}}])
def test_unknown_fields_are_a_note(content: dict[str, Any]) -> None:
    """Unknown fields of a policy are noted, and stop nothing."""
    ((rule, found),) = served([_policy(COMPACT, {"enable": True, **content})], NOW).rules
    assert found == BOTH
    assert "is left out" in rule


def test_other_policies_are_not_ours_and_the_tables_own_counts() -> None:
    """A policy of another type sets nothing; of two of one type the one that was not inherited wins."""
    two = [
        _policy(COMPACT, {"enable": True}, name="wide", inherited=True),
        _policy("custom.masking", {"enable": True}),
        _policy(COMPACT, {"enable": False}, name="own"),
    ]
    ((rule, found),) = served(two, NOW, "as of yesterday").rules
    assert rule == "Polaris system.data-compaction own: as of yesterday"
    assert found[ROWS] is False


@pytest.mark.cases(87)
def test_their_level() -> None:
    """Weaker than what the table's rules and properties say, stronger than those of its namespace."""
    ref = TableRef("lake", ("sales",), "orders")
    name = rewriting.MIN_INPUT_FILES.name
    rules = tuple(OurRule(parse_pattern(m), {name: n}) for n, m in ((9, "lake.sales"), (8, "lake.sales.orders")))
    asked: list[TableRef] = []

    def ask(table: TableRef) -> Served:
        asked.append(table)
        return Served((("Polaris", {name: 5}),))

    ours = Policy(rules, served=ask)
    found = ours.knobs_for(ref, metadata(ref=ref, properties={f"icewright.{name}": "7"})).origins[name]
    assert [o.value for o in found] == [8, 7, 5, 9]
    assert found[2].level == "catalog's policies"
    assert [o.value for o in ours.knobs_for(ref, None).origins[name]] == [8, 9]  # nobody is asked for a mere mark
    assert asked == [ref]
