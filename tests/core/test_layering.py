"""Which rule says what for which table, and where each value comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icewright.core import policy, rewriting
from icewright.core.effective import Knobs
from icewright.core.guardrails import Bound, Guardrail, parse_guardrail
from icewright.core.knob import Knob
from icewright.core.layering import Policy, PolicyRule, matches, matches_any, parse_pattern
from icewright.core.polaris import Served
from icewright.core.table import TableRef
from icewright.testing import metadata

ORDERS = TableRef("lake", ("sales", "eu"), "orders")
LEAST = rewriting.MIN_INPUT_FILES.name
HOURS = policy.RETENTION.name


def _rule(match: str, value: object, *, source: str = "file", knob: str = LEAST) -> PolicyRule:
    return PolicyRule(parse_pattern(match) if match else (), {knob: value}, source)


def _found(*rules: PolicyRule, ref: TableRef = ORDERS, **more: Any) -> Knobs:
    return Policy(rules, **more).knobs_for(ref, None)


def _values(found: Knobs, knob: str = LEAST) -> list[Any]:
    return [origin.value for origin in found.origins[knob]]


LEVELS: Sequence[tuple[str, str]] = [
    ("lake.sales.eu.orders", "table"),
    ("lake.sales.eu", "namespace"),
    ("lake.sales", "namespace"),
    ("lake", "catalog"),
    ("", "platform"),
]


@pytest.mark.cases(87)
def test_levels_in_their_order() -> None:
    """Command beats table, its properties, namespace, parent namespace, catalog and platform, and all are kept."""
    rules = tuple(_rule(match, 10 + i) for i, (match, _) in enumerate(LEVELS))
    table = metadata(ref=ORDERS, properties={f"icewright.{LEAST}": "9"})
    found = Policy(rules[::-1], command={LEAST: 2}).knobs_for(ORDERS, table)
    assert [(o.level, o.value) for o in found.origins[LEAST]] == [
        ("command", 2),
        ("table", 10),
        ("table properties", 9),
        ("namespace", 11),
        ("namespace", 12),
        ("catalog", 13),
        ("platform", 14),
    ]
    assert found[rewriting.MIN_INPUT_FILES] == 2


@pytest.mark.parametrize("stronger", range(len(LEVELS) - 1))
@pytest.mark.parametrize("later", [True, False])
def test_a_closer_level_wins_wherever_it_stands(stronger: int, later: bool) -> None:
    """Neither the order in the file nor the store lets a wider level win over a closer one."""
    rules = [_rule(LEVELS[stronger][0], 2), _rule(LEVELS[stronger + 1][0], 3, source="store")]
    assert _found(*(rules if later else rules[::-1]))[rewriting.MIN_INPUT_FILES] == 2


@pytest.mark.parametrize(
    ("winner", "loser"),
    [
        (_rule("lake.sales.eu.orders", 2, source="store"), _rule("lake.sales.eu.orders", 3)),
        (_rule("lake.sales.*.*", 2, source="store"), _rule("lake.sales.eu.orders", 3)),
        (_rule("lake.sales.eu.orders", 2), _rule("lake.sales.eu.ord*", 3)),
        (_rule("lake.sales.eu.ord*", 2), _rule("lake.sales.eu.o*", 3)),
        (_rule("lake.sales.eu.o*", 2), _rule("lake.sales.*.o*", 3)),
        (_rule("lake.sales.eu.o????s", 2), _rule("lake.*.*.o****s", 3)),
        (_rule("lake.sales.eu", 2), _rule("lake.*.eu", 3)),
    ],
)
@pytest.mark.parametrize("later", [True, False])
def test_within_a_level(winner: PolicyRule, loser: PolicyRule, later: bool) -> None:
    """At one level the store beats the file, then the more specific pattern wins, wherever it stands."""
    assert _values(_found(*((loser, winner) if later else (winner, loser)))) == [2, 3]


def test_of_equals_the_later_wins() -> None:
    """Two rules of one level that are equally specific: the one further down."""
    assert _values(_found(_rule("lake.sales.eu", 2), _rule("lake.sales.eu", 3))) == [3, 2]


@pytest.mark.parametrize("match", ["pond", "lake.eu", "lake.sales.us", "lake.sales.eu.orders.x", "lake.sales.eu.order"])
def test_rules_of_others_do_not_hold(match: str) -> None:
    """A rule that names another catalog, namespace or table says nothing."""
    assert not _found(_rule(match, 2)).is_set(rewriting.MIN_INPUT_FILES)


@pytest.mark.parametrize(
    ("pattern", "parts", "expected"),
    [
        ("lake.*", ("lake", "sales"), True),
        ("lake.*", ("lake", "a.b"), True),
        ("lake.*", ("lake", "a", "b"), False),
        ("lake.event?", ("lake", "events"), True),
        ("lake.event?", ("lake", "event"), False),
        ("lake.SALES", ("lake", "sales"), False),
        ("lake.a[b]", ("lake", "a[b]"), True),
        ("lake.a[b]", ("lake", "ab"), False),
        ("lake.[!a]", ("lake", "[!a]"), True),
        ("lake.[!a]", ("lake", "b"), False),
        ("lake.a]*", ("lake", "a]b"), True),
        ("lake.`a.b`", ("lake", "a.b"), True),
        ("lake.`a.*`", ("lake", "a.b"), True),
        ("lake.a+(b)", ("lake", "a+(b)"), True),
        ("lake.a\\d", ("lake", "a\\d"), True),
        ("lake.a*", ("lake", "a\nb"), True),
    ],
)
def test_patterns(pattern: str, parts: tuple[str, ...], expected: bool) -> None:
    """`*` and `?` are the only wildcards, within one part; brackets and the like stand for themselves."""
    assert matches(parse_pattern(pattern), parts) is expected


@given(st.lists(st.text(st.characters(exclude_characters="*?"), min_size=1, max_size=6), min_size=1, max_size=4))
def test_a_name_matches_itself(parts: list[str]) -> None:
    """A pattern without wildcards matches exactly the name that it spells."""
    text = ".".join("`" + part.replace("`", "``") + "`" for part in parts)
    assert parse_pattern(text) == tuple(parts)
    assert matches(parse_pattern(text), parts)


@pytest.mark.parametrize(
    ("patterns", "name", "expected"),
    [
        ("", "anything", True),
        (" , ", "anything", True),
        ("clicks, orders-*", "orders-2026", True),
        ("clicks, orders-*", "orders", False),
        ("a[b]", "a[b]", True),
    ],
)
def test_lists_of_wildcards(patterns: str, name: str, expected: bool) -> None:
    """A scope is a list of wildcards parted by commas; a blank one holds all."""
    assert matches_any(patterns, name) is expected


@pytest.mark.parametrize(
    ("preset", "knob", "value"),
    [("seaweedfs", "compact.target_file_size_mb", 256), ("streaming", "compact.cooldown_minutes", 30)],
)
def test_a_preset_stands_behind_the_settings_beside_it(preset: str, knob: str, value: int) -> None:
    """What a rule says itself beats the preset it names; the preset beats every wider level."""
    own = PolicyRule(("lake",), {"preset": preset, HOURS: 12.0})
    found = _found(_rule("", 900.0, knob=knob), own)
    assert found[policy.RETENTION] == 12
    assert _values(found, knob) == [value, 900.0]
    assert preset in found.origins[knob][0].rule
    assert found[policy.PRESET] == preset


def test_a_closer_level_beats_a_preset() -> None:
    """A preset belongs to the level that names it."""
    assert _found(_rule("", "streaming", knob="preset"), _rule("lake", 24.0, knob=HOURS))[policy.RETENTION] == 24


def test_where_a_value_comes_from() -> None:
    """Each origin names its rule and whether the file or the store holds it."""
    origins = _found(_rule("", 3), _rule("lake.sa*", 4, source="store")).origins[LEAST]
    assert [(o.level, o.rule) for o in origins] == [("namespace", "lake.sa* (store)"), ("platform", "platform (file)")]


GUARD = Bound(HOURS, at_least=True, bound=24)


@pytest.mark.parametrize(
    ("guardrails", "settings", "knob", "expected"),
    [
        ([GUARD], {HOURS: 1.0}, policy.RETENTION, 24),
        ([GUARD], {HOURS: 48.0}, policy.RETENTION, 48),
        ([GUARD], {}, policy.RETENTION, 168),
        ([Bound(HOURS, at_least=True, bound=200)], {}, policy.RETENTION, 200),
        ([Bound(HOURS, at_least=False, bound=72)], {}, policy.RETENTION, 72),
        ([Bound(HOURS, at_least=False, bound=72)], {HOURS: 100.0}, policy.RETENTION, 72),
        ([GUARD, Bound(HOURS, at_least=True, bound=48)], {HOURS: 1.0}, policy.RETENTION, 48),
        ([GUARD, Bound(HOURS, at_least=False, bound=72)], {HOURS: 100.0}, policy.RETENTION, 72),
        ([Bound(HOURS, at_least=True, bound=200), Bound(HOURS, at_least=True, bound=300)], {}, policy.RETENTION, 300),
        ([Bound(policy.MAX_REF_AGE.name, at_least=True, bound=24)], {}, policy.MAX_REF_AGE, None),
        ([Bound("compact.enabled", at_least=True, bound=24)], {}, policy.ENABLED[policy.Operation.COMPACT], True),
        ([Bound("order", at_least=True, bound=24)], {"order": "seaweedfs"}, policy.ORDER, "seaweedfs"),
    ],
)
def test_guardrails_hold(
    guardrails: Sequence[Guardrail], settings: Mapping[str, Any], knob: Knob[Any], expected: object
) -> None:
    """No level, and no default, passes a guardrail, however many there are; a bound of numbers bounds nothing else."""
    assert _found(PolicyRule(("lake",), settings), guardrails=tuple(guardrails))[knob] == expected


def test_guardrails_bind_commands_presets_and_properties() -> None:
    """Every way to set a knob is bound, and the origin says what was held and by which guardrail."""
    table = metadata(ref=ORDERS, properties={"history.expire.max-snapshot-age-ms": "3600000"})
    rules = (PolicyRule((), {"preset": "compliance"}),)
    bounded = Policy(rules, (Bound(HOURS, at_least=True, bound=36),), {HOURS: 2.0})
    origins = bounded.knobs_for(ORDERS, table).origins[HOURS]
    assert [o.value for o in origins] == [36, 36, 36]
    assert all("held by guardrail expire_snapshots.retention_hours >= 36" in o.note for o in origins)


@pytest.mark.parametrize("held", [{}, {policy.MIN_SNAPSHOTS.name: 1}])
def test_a_guardrail_keeps_whole_numbers_whole(held: Mapping[str, Any]) -> None:
    """Spark's options and Iceberg's counts are whole: a bound does not turn one into a fraction."""
    guard = Bound(policy.MIN_SNAPSHOTS.name, at_least=True, bound=10.0)
    value = _found(PolicyRule((), held), guardrails=(guard,))[policy.MIN_SNAPSHOTS]
    assert value == 10
    assert isinstance(value, int)


MODE = policy.ORPHAN_MODE.name
SAFE = parse_guardrail("guardrails[0]", "remove_orphans.mode in report, confirm")


@pytest.mark.parametrize(
    ("text", "knob", "value", "expected"),
    [
        ("remove_orphans.mode in report, confirm", policy.ORPHAN_MODE, "delete", "report"),
        ("compact.enabled = true", policy.ENABLED[policy.Operation.COMPACT], False, True),
        ("impact.probe = unset", policy.PROBE, "select 1 from {table}", None),
        ("remove_orphans.inventory = unset", policy.INVENTORY, "s3://lake/all", None),
        ("execute.check_totals = true", policy.CHECK_TOTALS, False, True),
        ("windows = sat,sun", policy.WINDOWS, "mon", "sat,sun"),
    ],
)
@pytest.mark.cases(151)
def test_guardrails_of_choices_flags_and_texts_hold_at_every_level(
    text: str, knob: Knob[Any], value: object, expected: object
) -> None:
    """Command, table, properties, catalog's policies, namespace, catalog, platform: each origin says who bounded it."""
    rules = tuple(_rule(match, value, knob=knob.name) for match, _ in LEVELS)
    properties = {f"icewright.{knob.name}": str(value).lower() if isinstance(value, bool) else str(value)}
    allowed = PolicyRule((), {policy.PROPERTIES_ALLOW.name: "*"})
    served = Served((("Polaris p", {knob.name: value}),))
    bounded = Policy((*rules, allowed), (parse_guardrail("g", text),), {knob.name: value}, lambda _: served)
    found = bounded.knobs_for(ORDERS, metadata(ref=ORDERS, properties=properties))
    assert [o.value for o in found.origins[knob.name]] == [expected] * 8
    assert {o.level for o in found.origins[knob.name]} == {
        *("command", "table", "table properties", "catalog's policies", "namespace", "catalog", "platform")
    }
    assert all(o.note.endswith(f"held by guardrail {text}") for o in found.origins[knob.name])
    assert found[knob] == expected


@pytest.mark.parametrize(("text", "expected"), [("compact.enabled = false", False), ("compact.enabled = true", True)])
def test_a_guardrail_of_values_bounds_the_default(text: str, expected: bool) -> None:
    """A default that may not be is replaced, with the level default and a note; one that may be stays as it is."""
    found = _found(guardrails=(parse_guardrail("g", text),))
    assert found[policy.ENABLED[policy.Operation.COMPACT]] is expected
    assert ["held by guardrail" in o.note for o in found.origins.get("compact.enabled", ())] == [True] * (not expected)


def test_a_guardrail_bounds_what_a_preset_sets() -> None:
    """The preset's own knobs are bounded as if they were written out."""
    assert _found(PolicyRule((), {"preset": "compliance"}), guardrails=(SAFE,))[policy.ORPHAN_MODE] == "report"


@pytest.mark.parametrize("settings", [{}, {"preset": "compliance"}, {"preset": "streaming"}])
def test_a_guardrail_of_the_preset_decides_what_the_preset_sets(settings: Mapping[str, Any]) -> None:
    """The knobs of a preset that may not be do not hold; those of the one that stands in for it do."""
    found = _found(
        PolicyRule(("lake",), settings), guardrails=(parse_guardrail("g", "preset in streaming, seaweedfs"),)
    )
    assert found[policy.PRESET] == "streaming"
    assert (found[policy.RETENTION], found[policy.ORPHAN_MODE]) == (48, "report")


def test_a_preset_that_a_guardrail_asks_for_is_bounded_like_others() -> None:
    """Where nobody names a preset: its knobs stand before the defaults, and behind every rule."""
    guards = (parse_guardrail("g", f"{HOURS} <= 24"), parse_guardrail("g", "preset = streaming"))
    found = _found(_rule("", 9, knob=policy.MIN_SNAPSHOTS.name), guardrails=guards)
    assert [o.rule for o in found.origins[HOURS]] == ["preset streaming", ""]
    assert (found[policy.RETENTION], found[policy.MIN_SNAPSHOTS], found[policy.PRESET]) == (24, 9, "streaming")


def test_a_pattern_of_as_many_parts_as_a_table_is_a_rule_of_the_table() -> None:
    """`lake.*.*.*` is stronger than the properties of the tables that it names; `lake.*.*` is a namespace's."""
    table = metadata(ref=ORDERS, properties={f"icewright.{LEAST}": "9"})
    found = Policy((_rule("lake.*.*.*", 2), _rule("lake.*.*", 3))).knobs_for(ORDERS, table)
    assert [(o.level, o.value) for o in found.origins[LEAST]] == [
        ("table", 2),
        ("table properties", 9),
        ("namespace", 3),
    ]
