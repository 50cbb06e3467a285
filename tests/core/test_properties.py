"""What a table's own properties say of its knobs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from icewright.core import knob, policy, rewriting
from icewright.core.effective import Knobs
from icewright.core.errors import ConfigError
from icewright.core.guardrails import parse_guardrail
from icewright.core.knob import Knob, written
from icewright.core.layering import Policy, PolicyRule
from icewright.core.polaris import Served
from icewright.core.policy import KNOBS, Operation
from icewright.core.presets import PRESETS
from icewright.core.properties import Allowance, Properties, by_property, from_properties
from icewright.core.retention import plan_expiry
from icewright.testing import NOW, REF, metadata

LONG_MAX = 2**63 - 1


def _knobs(properties: dict[str, str], *rules: PolicyRule, **more: Any) -> Knobs:
    return Policy(rules, **more).knobs_for(REF, metadata(properties=properties))


def _allowing(text: str | None, *match: str) -> PolicyRule:
    return PolicyRule(match, {policy.PROPERTIES_ALLOW.name: text})


def _ignored(found: Knobs) -> list[tuple[str, str]]:
    return [(one.property, one.knob) for one in found.ignored]


@pytest.mark.parametrize(
    ("name", "text", "knob", "value"),
    [
        ("history.expire.max-snapshot-age-ms", "86400000", policy.RETENTION.name, 24),
        ("history.expire.max-snapshot-age-ms", "1", policy.RETENTION.name, 1),
        ("history.expire.min-snapshots-to-keep", "12", policy.MIN_SNAPSHOTS.name, 12),
        ("history.expire.max-ref-age-ms", "172800000", policy.MAX_REF_AGE.name, 48),
        ("write.target-file-size-bytes", "134217728", rewriting.TARGET_FILE_SIZE.name, 128),
        ("commit.manifest.target-size-bytes", "4194304", rewriting.TARGET_MANIFEST.name, 4),
        ("icewright.compact.min_input_files", "3", rewriting.MIN_INPUT_FILES.name, 3),
        ("icewright.compact.enabled", "false", "compact.enabled", False),
        ("icewright.expire_snapshots.reader_pins", "a=1", policy.READER_PINS.name, {"a": "1"}),
    ],
)
def test_properties_set_knobs(name: str, text: str, knob: str, value: object) -> None:
    """Iceberg's own properties are read in their units, ours by the knob's name."""
    found = from_properties(metadata(properties={name: text, "owner": "me"}), Allowance(Knobs()))
    assert found == Properties({knob: (name, value)}, (), ())


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
        ("icewright.compact.enabled", "flase", "'flase' is not true or false"),
    ],
)
def test_faulty_properties(name: str, text: str, fault: str) -> None:
    """A property that cannot be read is named with its value and what would be right."""
    found = from_properties(metadata(properties={name: text}), Allowance(Knobs()))
    assert found == Properties({}, (), (f"table property {name}: {fault}",))


def test_all_faults_at_once_leave_the_table_alone() -> None:
    """A table with faulty properties has no knobs at all, and every fault is said."""
    with pytest.raises(ConfigError) as refused:
        _knobs(
            {"write.target-file-size-bytes": "big", "icewright.order": "random", "icewright.compact.enabled": "true"}
        )
    assert [fault.partition(": ")[0] for fault in refused.value.faults] == ["lake.sales.orders"] * 2


@pytest.mark.cases(150)
def test_of_very_many_faulty_properties_some_are_said() -> None:
    """A writer may set a million of them."""
    with pytest.raises(ConfigError) as refused:
        _knobs({f"icewright.x{number}": "1" for number in range(1000)})
    assert len(refused.value.faults) == 21
    assert refused.value.faults[-1] == "lake.sales.orders: and 980 more"


@pytest.mark.parametrize("digits", [19, 400, 5000])
@pytest.mark.parametrize(
    ("name", "knob", "most"),
    [
        ("history.expire.max-snapshot-age-ms", policy.RETENTION, knob.MAX_HOURS),
        ("history.expire.max-ref-age-ms", policy.MAX_REF_AGE, knob.MAX_HOURS),
        ("history.expire.min-snapshots-to-keep", policy.MIN_SNAPSHOTS, 10**9),
        ("write.target-file-size-bytes", rewriting.TARGET_FILE_SIZE, 1_000_000),
        ("commit.manifest.target-size-bytes", rewriting.TARGET_MANIFEST, 10_000),
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
    assert plan_expiry(table, now=NOW, older_than=NOW - timedelta(hours=hours), retain_last=1).is_empty


def test_our_property_beats_iceberg_s() -> None:
    """Who names the knob itself means it more than who set the property for every engine."""
    properties = {"icewright.expire_snapshots.retention_hours": "24", "history.expire.max-snapshot-age-ms": "3600000"}
    assert _knobs(properties)[policy.RETENTION] == 24


@pytest.mark.parametrize("preset_first", [True, False])
def test_a_property_beats_the_preset_beside_it(preset_first: bool) -> None:
    """A preset named by a property fills in what the other properties leave open, whatever their order."""
    pairs = [("icewright.preset", "streaming"), ("icewright.compact.target_file_size_mb", "100")]
    found = _knobs(dict(pairs if preset_first else pairs[::-1]))
    assert found[rewriting.TARGET_FILE_SIZE] == 100
    assert found[policy.RETENTION] == 48


# Every knob that a writer's property could turn against others' files, others' share of the pool, or the platform.
HARMFUL = {
    "remove_orphans.mode": "delete",
    "remove_orphans.older_than_hours": "24",
    "remove_orphans.confirm_hours": "1",
    "remove_orphans.max_delete_ratio": "1",
    "remove_orphans.max_files": "100000000",
    "remove_orphans.inventory": "/etc/passwd",
    "remove_orphans.equal_schemes": "oss=s3",
    "remove_orphans.equal_authorities": "mine=theirs",
    "remove_orphans.every_hours": "1",
    "remove_orphans.max_concurrent_deletes": "256",
    "expire_rows.enabled": "true",
    "expire_rows.column": "day",
    "expire_rows.days": "1",
    "expire_snapshots.outside_location": "delete",
    "expire_snapshots.engine": "spark",
    "expire_snapshots.clean_expired_metadata": "true",
    "expire_snapshots.max_pin_age_hours": "1",
    "deletion.delay_hours": "0",
    "compact.engine": "spark",
    "compact.task_memory_mb": "1000000",
    "compact.max_concurrent_file_group_rewrites": "1000",
    "compact.max_file_group_size_mb": "1000000000",
    "compact.max_call_size_mb": "1000000000",
    "compact.where": "id > 1",
    "compact.cooldown_minutes": "0",
    "rewrite_manifests.engine": "spark",
    "impact.probe": "select 1 from {table}",
    "impact.probe_timeout_seconds": "100000",
    "execute.check_totals": "false",
    "execute.timeout_seconds": "1000000",
    "execute.retry_limit": "10",
    "evaluate.cooldown_minutes": "0",
    "importance": "critical",
    "vacuum.cutoff": "NONE",
    "vacuum.grace_hours": "24",
    "properties.allow": "*",
}


@pytest.mark.parametrize("name", HARMFUL)
@pytest.mark.cases(151)
def test_a_property_that_could_harm_others_is_ignored(name: str) -> None:
    """It changes nothing and stops nothing: the other properties hold, and it is named with the remedy."""
    found = _knobs({f"icewright.{name}": HARMFUL[name], "icewright.compact.min_input_files": "7"})
    assert found.origins.keys() == {rewriting.MIN_INPUT_FILES.name}
    assert _ignored(found) == [(f"icewright.{name}", name)]
    assert found.ignored[0].value == HARMFUL[name]
    assert ("rules alone" if name == "properties.allow" else f"properties.allow: {name}") in found.ignored[0].reason


@pytest.mark.parametrize(
    ("name", "value"), [("importance", "very"), ("execute.retry_limit", "many"), ("remove_orphans.max_files", "-1")]
)
@pytest.mark.cases(151)
def test_a_property_that_never_counts_is_no_fault_whatever_its_value(name: str, value: str) -> None:
    """Else whoever writes to the table could stop its expiry by a property that nobody listens to."""
    assert _ignored(_knobs({f"icewright.{name}": value})) == [(f"icewright.{name}", name)]


def test_what_a_property_may_set_is_listed() -> None:
    """A new knob is closed to properties until somebody finds it harmless."""
    allowed = [name for name, knob in KNOBS.items() if by_property(knob) == "yes"]
    assert allowed == [
        *("preset", "order", "execute.publish_hours", "compact.target_file_size_mb", "compact.min_file_size_ratio"),
        *(
            "compact.max_file_size_ratio",
            "compact.min_input_files",
            "compact.growth",
            "compact.strategy",
            "compact.sort_order",
        ),
        *("compact.apply_deletes", "compact.delete_file_threshold", "compact.delete_ratio_threshold"),
        *("compact.remove_dangling_deletes", "compact.partial_progress", "compact.hot_partitions"),
        *("compact.hot_minutes", "compact.hot_max_hours", "compact.max_overlap", "rewrite_deletes.min_delete_files"),
        *("rewrite_deletes.dangling", "rewrite_manifests.min_manifests", "rewrite_manifests.target_manifest_mb"),
        *("rewrite_manifests.deleted_entries", "expire_snapshots.retention_hours"),
        "expire_snapshots.min_snapshots_to_keep",
        *("expire_snapshots.max_ref_age_hours", "expire_snapshots.reader_pins"),
    ]
    conditions = {name: by_property(knob) for name, knob in KNOBS.items() if by_property(knob) not in {"yes", "no"}}
    assert conditions == {
        "windows": "where no rule does",
        **{f"{operation}.enabled": "false" for operation in Operation},
        "expire_snapshots.delete_files": "false",
        "vacuum.enabled": "false",
        "remove_orphans.mode": "at most what the rules say",
        "remove_orphans.max_delete_ratio": "at most what the rules say",
        "remove_orphans.older_than_hours": "at least what the rules say",
        "remove_orphans.confirm_hours": "at least what the rules say",
        "expire_snapshots.max_pin_age_hours": "at least what the rules say",
        "expire_snapshots.writer_state_days": "at least what the rules say",
    }


@pytest.mark.parametrize(
    ("name", "rules", "gentler", "harsher"),
    [
        *((f"{operation}.enabled", True, False, None) for operation in Operation),
        *((f"{operation}.enabled", False, False, True) for operation in Operation),
        ("vacuum.enabled", False, False, True),
        ("expire_snapshots.delete_files", True, False, None),
        ("expire_snapshots.delete_files", False, False, True),
        ("remove_orphans.mode", "delete", "report", None),
        ("remove_orphans.mode", "delete", "confirm", None),
        ("remove_orphans.mode", "confirm", "report", "delete"),
        ("remove_orphans.mode", "report", "report", "confirm"),
        ("remove_orphans.max_delete_ratio", 0.5, 0.1, 0.51),
        ("remove_orphans.older_than_hours", 168, 720, 167),
        ("remove_orphans.confirm_hours", 24, 48, 23),
        ("expire_snapshots.max_pin_age_hours", 720, 721, 719),
    ],
)
@pytest.mark.cases(151)
def test_a_property_asks_for_more_caution_and_never_for_less(
    name: str, rules: object, gentler: object, harsher: object
) -> None:
    """A table that protected its files before goes on to; what a rule allows may go further all the same."""
    knob, rule, mine = KNOBS[name], PolicyRule(("lake",), {name: rules}), f"icewright.{name}"
    assert _knobs({mine: written(gentler)}, rule)[knob] == gentler
    if harsher is not None:
        found = _knobs({mine: written(harsher)}, rule)
        assert (found[knob], _ignored(found)) == (rules, [(mine, name)])
        assert f"{written(rules)}, which the rules say" in found.ignored[0].reason
        assert _knobs({mine: written(harsher)}, rule, _allowing(name))[knob] == harsher


@pytest.mark.cases(151)
def test_caution_is_measured_by_all_that_the_platform_says() -> None:
    """Rules of every level, presets, the catalog's own policies and guardrails: a property undercuts none of them."""
    days = {"icewright.remove_orphans.older_than_hours": "100"}
    served = Served((("Polaris p", {policy.ORPHAN_AGE.name: 240}),))
    assert _knobs(days, served=lambda _: served)[policy.ORPHAN_AGE] == 240
    guard = parse_guardrail("g", "remove_orphans.older_than_hours >= 120")
    assert _knobs(days, guardrails=(guard,))[policy.ORPHAN_AGE] == 120
    assert _knobs(days, PolicyRule((), {"preset": "compliance"}))[policy.ORPHAN_AGE] == 100


@pytest.mark.parametrize(
    "rules", [(PolicyRule((), {"windows": "sat,sun"}),), (PolicyRule(("lake",), {"windows": None}),)]
)
def test_windows_of_a_table_hold_where_no_rule_sets_them(rules: tuple[PolicyRule, ...]) -> None:
    """The platform's quiet hours are not a table's to widen; where there are none, it may spare its own writers."""
    mine = {"icewright.windows": "mon-fri"}
    assert _knobs(mine)[policy.WINDOWS] == "mon-fri"
    assert _knobs(mine, *rules)[policy.WINDOWS] == rules[0].settings["windows"]
    assert _ignored(_knobs(mine, *rules)) == [("icewright.windows", "windows")]
    assert _knobs(mine, *rules, _allowing("windows"))[policy.WINDOWS] == "mon-fri"
    with pytest.raises(ConfigError, match="'always' is no day"):
        _knobs({"icewright.windows": "always"})


def test_a_preset_that_a_property_names_sets_what_a_property_may() -> None:
    """The rest of it is ignored by name, whatever the preset holds."""
    found = _knobs({"icewright.preset": "compliance"})
    assert (found[policy.RETENTION], found[rewriting.HOT_PARTITIONS]) == (20, "include")
    assert (found[policy.ORPHAN_MODE], found[policy.DELETION_DELAY]) == ("report", 24)
    names = (
        "deletion.delay_hours",
        "remove_orphans.mode",
        "remove_orphans.older_than_hours",
        "remove_orphans.every_hours",
    )
    assert _ignored(found) == [("icewright.preset", name) for name in names]
    opened = _knobs({"icewright.preset": "compliance"}, _allowing("deletion.*, remove_orphans.mode"))
    assert (opened[policy.ORPHAN_MODE], opened[policy.DELETION_DELAY]) == ("delete", 0)
    assert opened.origins["remove_orphans.mode"][0].rule == "icewright.preset, preset compliance"
    assert _ignored(opened) == [("icewright.preset", name) for name in names[2:]]


@pytest.mark.parametrize(
    ("rules", "opened"),
    [
        ([_allowing("remove_orphans.*")], True),
        ([_allowing("importance , remove_orphans.mod?", "lake")], True),
        ([_allowing("*", "lake", "sales")], True),
        ([_allowing("remove_orphans.mode", *REF.parts)], True),
        ([_allowing("remove_orphans.mode", "pond")], False),
        ([_allowing("remove_orphans.max_files")], False),
        ([_allowing("remove_orphans.*"), _allowing("importance", "lake")], False),
        ([_allowing("remove_orphans.*"), _allowing(None, "lake")], False),
    ],
)
@pytest.mark.cases(151)
def test_rules_open_more_to_properties(rules: list[PolicyRule], opened: bool) -> None:
    """The strongest rule for the table that sets `properties.allow` says it all; a narrower one may close it again."""
    found = _knobs({"icewright.remove_orphans.mode": "delete"}, *rules)
    assert (found[policy.ORPHAN_MODE] == "delete") is opened
    assert (found.ignored == ()) is opened


@pytest.mark.cases(151)
def test_a_property_opens_nothing() -> None:
    """Neither by itself nor where a rule opens everything; a guardrail keeps every rule from opening anything."""
    mine = {"icewright.properties.allow": "*", "icewright.remove_orphans.mode": "delete"}
    assert _knobs(mine)[policy.ORPHAN_MODE] == "report"
    assert _knobs(mine, _allowing("importance"))[policy.ORPHAN_MODE] == "report"
    assert _knobs(mine, _allowing("*"))[policy.PROPERTIES_ALLOW] == "*"
    assert _ignored(_knobs(mine, _allowing("*"))) == [("icewright.properties.allow", "properties.allow")]
    closed = (parse_guardrail("guardrails[0]", "properties.allow = unset"),)
    assert _knobs(mine, _allowing("*"), guardrails=closed)[policy.ORPHAN_MODE] == "report"


def test_a_property_that_is_opened_and_faulty_is_a_fault() -> None:
    """Where it counts, a value that cannot be read stops the table, like those of all other properties."""
    with pytest.raises(ConfigError, match=r"icewright\.importance: 'very' is not one of"):
        _knobs({"icewright.importance": "very"}, _allowing("importance"))


@pytest.mark.parametrize("text", ["no_such", "compact.*, no_such", "properties.allow", "[a-z]*", ",", "compact.*,"])
def test_what_opens_no_knob_is_refused(text: str) -> None:
    """A list of knobs that a slip of the pen has emptied would close what somebody meant to open."""
    with pytest.raises(ValueError, match="names no knob"):
        policy.PROPERTIES_ALLOW.parse(text)


def test_presets_open_nothing() -> None:
    """What properties may set and when work may start is no preset's."""
    assert not any({policy.PROPERTIES_ALLOW.name, policy.WINDOWS.name} & found.keys() for found in PRESETS.values())


def test_a_long_value_is_cut_where_it_is_shown() -> None:
    """A property may be megabytes long; the store and the pages need not be."""
    (ignored,) = _knobs({"icewright.remove_orphans.inventory": "x" * 10_000}).ignored
    assert ignored.value == "x" * 100 + "..."
