"""What a table's own properties say of its knobs."""

from __future__ import annotations

from datetime import timedelta

import pytest

from icewright.core import policy
from icewright.core.errors import ConfigError
from icewright.core.knob import Knob
from icewright.core.layering import Policy
from icewright.core.policy import Knobs
from icewright.core.properties import from_properties
from icewright.core.retention import plan_expiry
from icewright.testing import NOW, REF, metadata

LONG_MAX = 2**63 - 1


def _knobs(properties: dict[str, str]) -> Knobs:
    return Policy().knobs_for(REF, metadata(properties=properties))


@pytest.mark.parametrize(
    ("name", "text", "knob", "value"),
    [
        ("history.expire.max-snapshot-age-ms", "86400000", policy.RETENTION.name, 24),
        ("history.expire.max-snapshot-age-ms", "1", policy.RETENTION.name, 1),
        ("history.expire.min-snapshots-to-keep", "12", policy.MIN_SNAPSHOTS.name, 12),
        ("history.expire.max-ref-age-ms", "172800000", policy.MAX_REF_AGE.name, 48),
        ("write.target-file-size-bytes", "134217728", policy.TARGET_FILE_SIZE.name, 128),
        ("commit.manifest.target-size-bytes", "4194304", policy.TARGET_MANIFEST.name, 4),
        ("icewright.compact.min_input_files", "3", policy.MIN_INPUT_FILES.name, 3),
        ("icewright.compact.enabled", "false", "compact.enabled", False),
        ("icewright.remove_orphans.equal_schemes", "oss=s3", policy.EQUAL_SCHEMES.name, {"oss": "s3"}),
    ],
)
def test_properties_set_knobs(name: str, text: str, knob: str, value: object) -> None:
    """Iceberg's own properties are read in their units, ours by the knob's name."""
    found, faults = from_properties(metadata(properties={name: text, "owner": "me"}))
    assert found == {knob: (name, value)}
    assert not faults


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("history.expire.max-snapshot-age-ms", "-1", "'-1' is not a whole number above 0"),
        ("history.expire.max-snapshot-age-ms", "0", "'0' is not a whole number above 0"),
        ("history.expire.max-snapshot-age-ms", "5d", "'5d' is not a whole number above 0"),
        ("history.expire.min-snapshots-to-keep", "", "'' is not a whole number above 0"),
        ("write.target-file-size-bytes", "1.5", "'1.5' is not a whole number above 0"),
        ("icewright.compact.min_input_files", "1", "'1' is not a whole number of at least 2"),
        ("icewright.compact.min_files", "5", "there is no such knob"),
    ],
)
def test_faulty_properties(name: str, text: str, fault: str) -> None:
    """A property that cannot be read is named with its value and what would be right."""
    found, faults = from_properties(metadata(properties={name: text}))
    assert not found
    assert faults == [f"table property {name}: {fault}"]


def test_all_faults_at_once_leave_the_table_alone() -> None:
    """A table with faulty properties has no knobs at all, and every fault is said."""
    with pytest.raises(ConfigError) as refused:
        _knobs(
            {"write.target-file-size-bytes": "big", "icewright.order": "random", "icewright.compact.enabled": "true"}
        )
    assert [fault.partition(": ")[0] for fault in refused.value.faults] == ["lake.sales.orders"] * 2


@pytest.mark.parametrize("digits", [19, 400, 5000])
@pytest.mark.parametrize(
    ("name", "knob", "most"),
    [
        ("history.expire.max-snapshot-age-ms", policy.RETENTION, policy.YEARS_HOURS),
        ("history.expire.max-ref-age-ms", policy.MAX_REF_AGE, policy.YEARS_HOURS),
        ("history.expire.min-snapshots-to-keep", policy.MIN_SNAPSHOTS, 10**9),
        ("write.target-file-size-bytes", policy.TARGET_FILE_SIZE, 1_000_000),
        ("commit.manifest.target-size-bytes", policy.TARGET_MANIFEST, 10_000),
    ],
)
@pytest.mark.cases(89)
def test_huge_properties_saturate(name: str, knob: Knob[float], most: float, digits: int) -> None:
    """However many digits a property has, it means the most that the knob takes."""
    assert _knobs({name: "9" * digits})[knob] == most


@pytest.mark.cases(89)
def test_never_is_not_now() -> None:
    """Iceberg's largest long as snapshot age keeps every snapshot of today's tables."""
    table = metadata([24 * 365 * 5, 2], properties={"history.expire.max-snapshot-age-ms": str(LONG_MAX)})
    hours = Policy().knobs_for(REF, table)[policy.RETENTION]
    assert plan_expiry(table, now=NOW, older_than=NOW - timedelta(hours=hours), retain_last=1).empty


def test_our_property_beats_iceberg_s() -> None:
    """Who names the knob itself means it more than who set the property for every engine."""
    properties = {"icewright.expire_snapshots.retention_hours": "24", "history.expire.max-snapshot-age-ms": "3600000"}
    assert _knobs(properties)[policy.RETENTION] == 24


@pytest.mark.parametrize("preset_first", [True, False])
def test_a_property_beats_the_preset_beside_it(preset_first: bool) -> None:
    """A preset named by a property fills in what the other properties leave open, whatever their order."""
    pairs = [("icewright.preset", "streaming"), ("icewright.compact.target_file_size_mb", "100")]
    found = _knobs(dict(pairs if preset_first else pairs[::-1]))
    assert found[policy.TARGET_FILE_SIZE] == 100
    assert found[policy.RETENTION] == 48
