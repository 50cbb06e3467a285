"""Every knob reads right values, and refuses wrong ones by saying what would be right."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from icewright.core import knob, policy, rewriting
from icewright.core.effective import Knobs, Origin
from icewright.core.guardrails import parse_guardrail
from icewright.core.knob import Knob, ValueKind
from icewright.core.layering import Policy, PolicyRule, parse_settings
from icewright.core.policy import ENABLED, KNOBS, ORDERS, Operation
from icewright.core.presets import PRESETS
from icewright.testing import NOW, metadata

LONG_MAX = 2**63 - 1
AUTO: Knob[Any] = Knob("every", ValueKind.INTEGER, 168, "how often", unit="hours", minimum=1, also="auto")
AT_MOST: Knob[Any] = Knob("most", ValueKind.NUMBER, 1, "an upper bound alone", maximum=5)
AT_LEAST: Knob[Any] = Knob("least", ValueKind.NUMBER, 1, "a lower bound alone", unit="minutes", minimum=0)
NAMES = sorted(KNOBS)
TIMED = sorted(n for n, k in KNOBS.items() if k.unit in {"hours", "minutes", "seconds"})


@pytest.mark.parametrize(
    ("knob", "value", "expected"),
    [
        (rewriting.MIN_INPUT_FILES, 7, 7),
        (rewriting.MIN_INPUT_FILES, "7", 7),
        (rewriting.MIN_INPUT_FILES, " 7 ", 7),
        (rewriting.MIN_INPUT_FILES, 7.0, 7),
        (rewriting.MIN_INPUT_FILES, "1e3", 1000),
        (rewriting.HOT_MINUTES, 0, 0),
        (rewriting.DELETE_RATIO_THRESHOLD, 0, 0),
        (rewriting.DELETE_RATIO_THRESHOLD, "0.25", 0.25),
        (rewriting.DELETE_RATIO_THRESHOLD, 1, 1),
        (rewriting.APPLY_DELETES, True, True),
        (rewriting.APPLY_DELETES, "false", False),
        (rewriting.APPLY_DELETES, " TRUE ", True),
        (rewriting.STRATEGY, "zorder", "zorder"),
        (rewriting.SORT_ORDER, "id, `a b` desc", "id, `a b` desc"),
        (rewriting.SORT_ORDER, None, None),
        (policy.MAX_REF_AGE, None, None),
        (policy.MAX_REF_AGE, 24, 24),
        (policy.EQUAL_SCHEMES, {"oss": "s3"}, {"oss": "s3"}),
        (policy.EQUAL_SCHEMES, {1: 2}, {"1": "2"}),
        (policy.EQUAL_SCHEMES, "s3a=s3, s3n = s3,", {"s3a": "s3", "s3n": "s3"}),
        (policy.EQUAL_SCHEMES, "", {}),
        (AUTO, "auto", "auto"),
        (AUTO, "24", 24),
        (AT_MOST, 5, 5),
    ],
)
def test_right_values(knob: Knob[Any], value: object, expected: object) -> None:
    """Values come as YAML types or as the text of a table property, and are read alike."""
    parsed = knob.parse(value)
    assert parsed == expected
    assert type(parsed) in {type(expected), int, float}


@pytest.mark.parametrize(
    ("knob", "value", "message"),
    [
        (rewriting.MIN_INPUT_FILES, 1, "1 is not a whole number of at least 2"),
        (rewriting.MIN_INPUT_FILES, "many", "'many' is not a whole number of at least 2"),
        (rewriting.MIN_INPUT_FILES, 2.5, "2.5 is not a whole number of at least 2"),
        (rewriting.MIN_INPUT_FILES, True, "True is not a whole number of at least 2"),
        (rewriting.MIN_INPUT_FILES, None, "None is not a whole number of at least 2"),
        (rewriting.MIN_INPUT_FILES, [5], "[5] is not a whole number of at least 2"),
        (policy.RETRIES, 11, "11 is not a whole number from 0 to 10"),
        (policy.RETRIES, -1, "-1 is not a whole number from 0 to 10"),
        (AT_LEAST, -1, "-1 is not a number of at least 0 (minutes)"),
        (policy.ORPHAN_AGE, 23, "23 is not a whole number from 24 to 175680 (hours)"),
        (rewriting.DELETE_RATIO_THRESHOLD, 1.01, "1.01 is not a number from 0 to 1"),
        (rewriting.DELETE_RATIO_THRESHOLD, -0.1, "-0.1 is not a number from 0 to 1"),
        (rewriting.DELETE_RATIO_THRESHOLD, "nan", "'nan' is not a number from 0 to 1"),
        (rewriting.DELETE_RATIO_THRESHOLD, float("inf"), "inf is not a number from 0 to 1"),
        (rewriting.APPLY_DELETES, "perhaps", "'perhaps' is not true or false"),
        (rewriting.APPLY_DELETES, 1, "1 is not true or false"),
        (rewriting.APPLY_DELETES, None, "None is not true or false"),
        (rewriting.STRATEGY, "random", "'random' is not one of binpack, sort, zorder"),
        (rewriting.STRATEGY, ["sort"], "['sort'] is not one of binpack, sort, zorder"),
        (rewriting.SORT_ORDER, "  ", "'  ' is not a text"),
        (rewriting.WHERE, 5, "5 is not a text"),
        (policy.EQUAL_SCHEMES, "s3a", "'s3a' is not a mapping"),
        (policy.EQUAL_SCHEMES, "s3a=", "'s3a=' is not a mapping"),
        (policy.EQUAL_SCHEMES, 5, "5 is not a mapping"),
        (rewriting.OPTIONS, "max-files-to-rewrite=0", "'0' is not a value of max-files-to-rewrite"),
        (rewriting.OPTIONS, "compression-factor=0.0", "'0.0' is not a value of compression-factor"),
        (rewriting.OPTIONS, "rewrite-job-order=bytes", "'bytes' is not a value of rewrite-job-order"),
        (AUTO, "weekly", "'weekly' is not a whole number of at least 1, or auto (hours)"),
        (AT_MOST, 6, "6 is not a number"),
    ],
)
def test_wrong_values(knob: Knob[Any], value: object, message: str) -> None:
    """A refusal shows the value, the kind, the bounds and the unit."""
    with pytest.raises(ValueError, match="is not") as refused:
        knob.parse(value)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    "value", [LONG_MAX, -LONG_MAX, 10**400, str(10**400), "1e999"], ids=["long", "-long", "400 digits", "text", "1e999"]
)
@pytest.mark.cases(89)
def test_huge_numbers_are_refused(value: object) -> None:
    """A number beyond all sense is a fault of the setting, not an error of ours."""
    for name in (n for n in NAMES if KNOBS[n].kind in {ValueKind.INTEGER, ValueKind.NUMBER}):
        with pytest.raises(ValueError, match="is not a"):
            KNOBS[name].parse(value)


@pytest.mark.cases(89)
def test_whatever_is_accepted_as_a_time_can_be_reckoned_with() -> None:
    """The largest time that a knob takes can be added to now and taken from it without overflow."""
    for one, value in ((KNOBS[name], 10.0**n) for name in TIMED for n in range(15)):
        try:
            accepted = one.parse(value)
        except ValueError:
            continue
        span = timedelta(**{one.unit: accepted})
        assert NOW - span < NOW + span, one.name


@pytest.mark.parametrize(
    ("knob", "number", "expected"),
    [
        (policy.RETENTION, LONG_MAX / 3_600_000, knob.MAX_HOURS),
        (policy.RETENTION, 0.25, 1),
        (policy.RETENTION, 36.5, 36.5),
        (policy.MAX_REF_AGE, LONG_MAX / 3_600_000, knob.MAX_HOURS),
        (policy.MIN_SNAPSHOTS, 2**31 - 1, 10**9),
        (policy.MIN_SNAPSHOTS, 0, 1),
        (rewriting.MIN_INPUT_FILES, 4.6, 5),
        (rewriting.MAX_GROUP_SIZE, 10**6, 10**6),
        (AT_MOST, -3, -3),
    ],
)
@pytest.mark.cases(89)
def test_saturation(knob: Knob[Any], number: float, expected: float) -> None:
    """Iceberg writes its largest long for never: it becomes the largest value that can be reckoned with."""
    assert knob.saturate(number) == expected


def test_defaults_are_right_values() -> None:
    """Every default passes its own knob's check, unchanged, and every knob says what it is for."""
    for name, one in KNOBS.items():
        assert one.name == name
        assert one.parse(one.default) == one.default, name
        assert one.help, name
        assert one.expects, name


def test_presets_set_knobs_to_right_values() -> None:
    """A preset names knobs that exist and gives them values that they accept."""
    assert PRESETS.keys() <= set(policy.PRESET.choices)
    for name, value in (setting for preset in PRESETS.values() for setting in preset.items()):
        assert KNOBS[name].parse(value) == value, name


def test_compliance_leaves_no_file_of_erased_rows() -> None:
    """Files go without a delay, and orphans, which may contain erased rows, go as soon as their age allows it."""
    found = PRESETS["compliance"]
    assert found[policy.DELETION_DELAY.name] == PRESETS["seaweedfs"][policy.DELETION_DELAY.name] == 0
    assert found[policy.ORPHAN_MODE.name] == "delete"
    assert found[policy.ORPHAN_AGE.name] == found[policy.ORPHAN_EVERY.name] == policy.ORPHAN_AGE.minimum


@pytest.mark.parametrize(
    ("procedure", "operation"),
    [
        ("rewrite_data_files", Operation.COMPACT),
        ("rewrite_position_delete_files", Operation.REWRITE_DELETES),
        ("remove_orphan_files", Operation.REMOVE_ORPHANS),
        ("rewrite_manifests", Operation.REWRITE_MANIFESTS),
        ("compute_table_stats", Operation.COMPUTE_STATISTICS),
    ],
)
def test_operations_go_by_the_names_of_procedures(procedure: str, operation: Operation) -> None:
    """Whoever knows Iceberg's procedures may name them; any other name is refused."""
    assert Operation(procedure) is operation
    with pytest.raises(ValueError, match="is not a valid"):
        Operation(f"{procedure}s")


def test_orders_hold_every_operation() -> None:
    """Whatever the order, each operation has exactly one place in it."""
    for order in ORDERS.values():
        assert sorted(order) == sorted(Operation)
    assert ORDERS["canonical"] == tuple(Operation)


def test_seaweedfs_order() -> None:
    """Manifests are rewritten last in the order of SeaweedFS."""
    ours = (
        Operation.EXPIRE_ROWS,
        Operation.REWRITE_DELETES,
        Operation.COMPUTE_STATISTICS,
        Operation.RECOVERY_POINTS,
        Operation.CHECK,
    )
    assert [op for op in ORDERS["seaweedfs"] if op not in ours] == [
        Operation.COMPACT,
        Operation.EXPIRE_SNAPSHOTS,
        Operation.REMOVE_ORPHANS,
        Operation.REWRITE_MANIFESTS,
    ]


def test_an_earlier_name_of_a_setting_is_accepted() -> None:
    """Rules, guardrails, properties and allow-lists that say it mean the one that took its place."""
    old = {"compact.kernel": "spark"}
    assert parse_settings("set", old) == {"compact.engine": "spark"}
    assert parse_guardrail("g", "compact.kernel in auto, spark").knob == "compact.engine"
    rule = PolicyRule((), {policy.PROPERTIES_ALLOW.name: "compact.kernel"})
    table = metadata(properties={"icewright.compact.kernel": "spark"})
    assert Policy((rule,)).knobs_for(table.ref, table)[rewriting.KERNEL] == "spark"


def test_specified_defaults() -> None:
    """The defaults that the specification names; orphan removal only reports until somebody says otherwise."""
    nothing = Knobs()
    expected: dict[Knob[Any], object] = {
        rewriting.TARGET_FILE_SIZE: 512,
        rewriting.MIN_FILE_SIZE_RATIO: 0.75,
        rewriting.MAX_FILE_SIZE_RATIO: 1.8,
        rewriting.MIN_INPUT_FILES: 5,
        rewriting.MAX_GROUP_SIZE: 10240,
        rewriting.DELETE_RATIO_THRESHOLD: 0.3,
        rewriting.HOT_MINUTES: 60,
        policy.RETENTION: 168,
        policy.MIN_SNAPSHOTS: 5,
        policy.ORPHAN_AGE: 72,
        policy.ORPHAN_MODE: "report",
        rewriting.MIN_MANIFESTS: 5,
        rewriting.TARGET_MANIFEST: 8,
        policy.DELETION_DELAY: 24,
        policy.OUTSIDE: "keep",
    }
    assert {knob.name: nothing[knob] for knob in expected} == {k.name: v for k, v in expected.items()}
    assert [op for op in Operation if not nothing[ENABLED[op]]] == [
        Operation.EXPIRE_ROWS,
        Operation.COMPUTE_STATISTICS,
        Operation.CHECK,
    ]


def test_the_strongest_origin_says_the_value() -> None:
    """A knob's value is that of its first origin; what nobody sets has its default."""
    found = Knobs({rewriting.STRATEGY.name: (Origin("table", "t", "sort"), Origin("platform", "p", "zorder"))})
    assert found[rewriting.STRATEGY] == "sort"
    assert found.is_set(rewriting.STRATEGY)
    assert found[rewriting.MIN_INPUT_FILES] == 5
    assert not found.is_set(rewriting.MIN_INPUT_FILES)
