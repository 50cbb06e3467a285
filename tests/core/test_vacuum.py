"""Cut-off policies, word for word, and the live versions of tables against a brute-force model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icewright.core.errors import Refused
from icewright.core.vacuum import (
    EMPTY,
    NONE,
    PER_REF,
    UNSUPPORTED,
    Commit,
    Content,
    GcConfig,
    Key,
    KeyChange,
    Limit,
    Walk,
    check_cutoff,
    collected_by,
    is_forbidden_by_user,
    limit_of,
    parse_duration,
    resolve,
    walk,
)
from icewright.testing import NOW

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


@pytest.mark.parametrize(
    ("config", "policy", "cutoff", "grace"),
    [
        (None, None, NOW - 5 * DAY, DAY),
        (None, "PT48H", NOW - 2 * DAY, DAY),
        (GcConfig("PT72H"), "PT48H", NOW - 3 * DAY, DAY),
        (GcConfig("PT72H", "PT36H"), None, NOW - 3 * DAY, 36 * HOUR),
        (GcConfig("2026-11-01T18:00:00.0000Z"), None, NOW.replace(day=1, hour=18), DAY),
        (GcConfig("2026-11-01 18:00:00.0000Z"), None, NOW.replace(day=1, hour=18), DAY),
        (GcConfig("2026-11-01T20:00:00+02:00"), None, NOW.replace(day=1, hour=18), DAY),
        (GcConfig("P2DT1H30M15.5S"), None, NOW - timedelta(days=2, hours=1, minutes=30, seconds=15.5), DAY),
        (GcConfig("pt0s"), None, NOW, DAY),
    ],
)
def test_whose_policy_holds(config: GcConfig | None, policy: str | None, cutoff: object, grace: timedelta) -> None:
    """Nessie's own configuration comes before ours, and ours before five days."""
    found = resolve(config, policy, DAY, NOW)
    assert (found.at(NOW), found.grace) == (cutoff, grace)


@pytest.mark.parametrize(
    ("config", "policy", "message"),
    [
        (GcConfig(None), "PT48H", EMPTY),
        (GcConfig(" "), None, EMPTY),
        (None, " ", EMPTY),
        (GcConfig("NONE"), None, NONE),
        (GcConfig("none"), None, NONE),
        (None, "NONE", NONE),
        (GcConfig("PT48H", per_ref=True), None, PER_REF),
        (GcConfig("100"), None, UNSUPPORTED),
        (GcConfig("P1M"), None, UNSUPPORTED),
        (GcConfig("9999-12-31T23:59:59-23:59"), None, UNSUPPORTED),
        (GcConfig("P1W"), None, UNSUPPORTED),
        (GcConfig("P"), None, UNSUPPORTED),
        (GcConfig("20261101T180000Z"), None, UNSUPPORTED),
        (GcConfig("PT"), None, UNSUPPORTED),
        (GcConfig("P1DT"), None, UNSUPPORTED),
        (GcConfig("-PT1H"), None, UNSUPPORTED),
        (GcConfig("yesterday"), None, UNSUPPORTED),
        (GcConfig("2026-11-01"), None, UNSUPPORTED),
        (GcConfig("2026-13-01T00:00:00Z"), None, UNSUPPORTED),
    ],
)
def test_faulty_policies_in_the_words_that_users_know(
    config: GcConfig | None, policy: str | None, message: str
) -> None:
    """Each fault has the message of the documentation, whole."""
    with pytest.raises(Refused) as caught:
        resolve(config, policy, DAY, NOW)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("config", "policy", "source", "text"),
    [
        (None, None, "the default", "5 days, 0:00:00"),
        (None, "PT48H", "the policy's vacuum.cutoff", "2 days, 0:00:00"),
        (GcConfig("2026-11-01T20:00:00+02:00"), None, "Nessie's configuration", "2026-11-01T18:00:00+00:00"),
    ],
)
def test_a_policy_says_where_it_comes_from(config: GcConfig | None, policy: str | None, source: str, text: str) -> None:
    """Its source and its age or instant, which is in UTC, are shown to people."""
    found = resolve(config, policy, DAY, NOW)
    assert (found.source, str(found)) == (source, text)
    assert found.instant is None or found.instant.tzinfo is UTC


@pytest.mark.parametrize("text", ["PT48H", "2026-11-01T18:00:00Z", "NONE", "none"])
def test_a_cutoff_that_the_configuration_may_say(text: str) -> None:
    """A duration, an instant, or that there is none."""
    check_cutoff(text)


@pytest.mark.parametrize(("text", "fault"), [("yesterday", UNSUPPORTED), (" ", EMPTY)])
def test_a_cutoff_that_the_configuration_may_not_say(text: str, fault: str) -> None:
    """The error names the text and what is wrong with it."""
    with pytest.raises(ValueError, match="cut-off") as caught:
        check_cutoff(text)
    assert str(caught.value) == f"{text!r}: {fault}"


@pytest.mark.parametrize("grace", ["PT23H59M59S", "PT0S", "soon", ""])
def test_a_grace_period_under_a_day_is_refused(grace: str) -> None:
    """Files that are being written could go."""
    with pytest.raises(Refused, match="24"):
        resolve(GcConfig("PT48H", grace), None, DAY, NOW)


def test_a_cutoff_in_the_future_is_refused() -> None:
    """It would leave the heads alone."""
    with pytest.raises(Refused, match="lies in the future"):
        resolve(GcConfig((NOW + HOUR).isoformat()), None, DAY, NOW)
    assert resolve(GcConfig(NOW.isoformat()), None, DAY, NOW).at(NOW) == NOW


def test_an_endless_duration_ends_with_the_calendar() -> None:
    """A duration that is longer than the calendar never means now."""
    assert resolve(GcConfig("PT" + "9" * 20 + "H"), None, DAY, NOW).at(NOW).year == 1
    assert resolve(GcConfig("P99999999D"), None, DAY, NOW).at(NOW).year == 1
    assert parse_duration("P" + "9" * 400 + "D") == timedelta.max


@pytest.mark.parametrize(
    ("properties", "limit"),
    [
        ({}, Limit(NOW - 5 * DAY, 1)),
        ({"history.expire.max-snapshot-age-ms": "864000000"}, Limit(NOW - 10 * DAY, 1)),
        ({"history.expire.max-snapshot-age-ms": "3600000"}, Limit(NOW - 5 * DAY, 1)),
        ({"history.expire.min-snapshots-to-keep": "5"}, Limit(NOW - 5 * DAY, 5)),
        ({"history.expire.min-snapshots-to-keep": "0"}, Limit(NOW - 5 * DAY, 1)),
    ],
)
def test_a_table_lengthens_the_cutoff_and_never_shortens_it(properties: Mapping[str, str], limit: Limit) -> None:
    """The larger of catalog's and table's value holds."""
    assert limit_of(properties, NOW - 5 * DAY, NOW) == limit


def test_largest_ages_and_nonsense() -> None:
    """Iceberg's largest long means for ever; what is no number holds the table back."""
    endless = {"history.expire.max-snapshot-age-ms": str(2**63 - 1)}
    assert limit_of(endless, NOW - DAY, NOW).cutoff.year == 1
    for nonsense in ("many", "٣", "1.5", ""):
        with pytest.raises(Refused, match="not a whole number"):
            limit_of({"history.expire.min-snapshots-to-keep": nonsense}, NOW, NOW)


@pytest.mark.parametrize(
    ("properties", "disabled"),
    [
        ({}, False),
        ({"gc.enabled": "true"}, False),
        ({"gc.enabled": "FALSE"}, True),
        ({"gc.enabled": "false", "created-at": "2026-11-22T00:36:47Z"}, False),
        ({"gc.enabled": "false", "write.metadata.delete-after-commit.enabled": "false"}, False),
        ({"gc.enabled": "false", "write.metadata.delete-after-commit.enabled": "true"}, True),
    ],
)
def test_nessies_default_is_told_from_what_a_user_said(properties: Mapping[str, str], disabled: bool) -> None:
    """Both its sides write gc.enabled=false beside a property by which they are known."""
    assert is_forbidden_by_user(properties) is disabled


def test_who_collects_the_files_of_a_table_outside_of_branching_catalogs() -> None:
    """Nobody is named where no catalog has set whom."""
    assert collected_by({}) == collected_by({"gc.enabled": "false"}) == ""


def _content(table: str, version: int, snapshot: int | None = None) -> Content:
    return Content(f"id-{table}", (table,), f"{table}/{version}.json", version if snapshot is None else snapshot)


def _live(
    commits: Sequence[Commit], states: Sequence[Mapping[Key, Content]], limits: Mapping[str, Limit], default: Limit
) -> set[Content]:
    """What the fold finds, asked in the way that a catalog is asked."""
    walked = Walk(states[0] if states else {}, limits, default)
    at = {c.hash: s for c, s in zip(commits, states, strict=True)}

    def state(hash_: str, keys: frozenset[Key]) -> Iterable[Content]:
        return [c for k, c in at[hash_].items() if k in keys]

    walk(walked, commits, state)
    return walked.live


def _log(*puts: tuple[float, str, int | None]) -> tuple[list[Commit], list[dict[Key, Content]]]:
    """Commits given oldest first as (age in hours, table, version or None: a drop); told newest first, with states."""
    commits: list[Commit] = []
    states: list[dict[Key, Content]] = []
    now: dict[Key, Content] = {}
    for number, (age, table, version) in enumerate(puts):
        content = None if version is None else _content(table, version)
        now = {k: c for k, c in now.items() if k != (table,)}
        if content is not None:
            now[table,] = content
        parent = commits[-1].hash if commits else None
        commits.append(Commit(f"c{number}", parent, NOW - age * HOUR, (KeyChange((table,), content),)))
        states.append(now)
    return commits[::-1], states[::-1]


@pytest.mark.parametrize(
    ("puts", "cutoff", "live"),
    [
        # snapshots older than the cut-off: S1 and S2 go, C3 and C4 can be read
        ([(40, "t", 1), (30, "t", 2), (20, "t", 3), (10, "t", 4)], 25, {("t", 3), ("t", 4)}),
        # a branch older than the cut-off keeps its head
        ([(40, "t", 1), (30, "t", 2)], 25, {("t", 2)}),
        # a commit that is not older than the cut-off sees an older version of another table
        ([(40, "t", 1), (20, "u", 1), (10, "t", 2)], 25, {("t", 1), ("t", 2), ("u", 1)}),
        # a table dropped within the cut-off could be read until then
        ([(40, "t", 1), (20, "u", 1), (10, "t", None)], 25, {("t", 1), ("u", 1)}),
        # dropped before it: gone
        ([(40, "t", 1), (30, "t", None), (20, "u", 1)], 25, {("u", 1)}),
        # exactly as old as the cut-off is not older
        ([(40, "t", 1), (25, "t", 2), (10, "t", 3)], 25, {("t", 2), ("t", 3)}),
        # so is what the commit before it put at the same instant
        ([(40, "t", 1), (25, "t", 2), (25, "t", 3), (10, "t", 4)], 25, {("t", 2), ("t", 3), ("t", 4)}),
        # and what such a commit sees of another table
        ([(40, "t", 1), (25, "u", 1), (10, "t", 2)], 25, {("t", 1), ("t", 2), ("u", 1)}),
        # nothing at all
        ([], 25, set()),
    ],
)
def test_what_is_live_on_one_reference(
    puts: list[tuple[float, str, int | None]], cutoff: float, live: set[tuple[str, int]]
) -> None:
    """The scenarios of the documentation, on one log."""
    commits, states = _log(*puts)
    found = _live(commits, states, {}, Limit(NOW - cutoff * HOUR))
    assert found == {_content(*one) for one in live}


def test_newest_snapshots_stay_beyond_the_cutoff() -> None:
    """As many as the table keeps, though its commits are old."""
    commits, states = _log(*((50 - n, "t", n) for n in range(8)))
    found = _live(commits, states, {"id-t": Limit(NOW - HOUR, 3)}, Limit(NOW - HOUR))
    assert found == {_content("t", v) for v in (7, 6, 5)}


def test_what_metadata_keeps_itself_is_not_looked_for() -> None:
    """A table whose file holds its history needs no walk beyond the cut-off."""
    commits, states = _log(*((50 - n, "t", n) for n in range(8)))
    walked = Walk(states[0], {"id-t": Limit(NOW - HOUR, 3)}, Limit(NOW - HOUR))
    walked.satisfied({"id-t"})
    walk(walked, commits, lambda _hash, _keys: [])
    assert walked.live == {_content("t", 7)}


def test_the_catalog_is_asked_for_what_live_commits_see_and_nothing_else() -> None:
    """Only versions that were not met among the commits, seen by one that is as old as the cut-off or younger."""
    commits, states = _log((40, "t", 1), (40, "u", 1), (39, "u", 2), (25, "v", 1), (10, "t", 2), (9, "u", 3))
    cutoff = NOW - 25 * HOUR
    assert _asked(commits, states, {}, Limit(cutoff)) == ["u", "t"]
    assert _asked(commits[:4], states, {}, Limit(cutoff)) == ["u", "t"]
    assert _asked(commits[:2], states, {}, Limit(cutoff)) == ["u"]
    assert _asked(commits, states, {"id-u": Limit(cutoff, 9)}, Limit(cutoff)) == []


def _asked(
    commits: Sequence[Commit], states: Sequence[Mapping[Key, Content]], limits: Mapping[str, Limit], default: Limit
) -> list[str]:
    walked = Walk(states[0], limits, default)
    for commit in commits:
        if not walked.add(commit):
            break
    return sorted((key[0] for key in walked.unmet()[1]), reverse=True)


def test_no_commit_is_read_from_which_nothing_live_can_come() -> None:
    """Logs are long, and pages cost time: the walk ends at the first commit that is older than every cut-off."""
    commits, states = _log((60, "t", 1), (50, "t", 2), (40, "t", 3), (30, "t", 4), (10, "t", 5))
    left = iter(commits)
    walk(Walk(states[0], {}, Limit(NOW - 20 * HOUR)), left, lambda _hash, _keys: [])
    assert [commit.hash for commit in left] == ["c2", "c1", "c0"]


def test_what_a_catalog_says_beside_the_question_is_not_live() -> None:
    """Of its answer those count that were asked for, and that a commit saw within the cut-off of their own table."""
    commits, states = _log((40, "t", 1), (40, "u", 1), (20, "t", 2), (20, "u", 2), (15, "w", 1))
    walked = Walk(states[0], {"id-t": Limit(NOW - 30 * HOUR)}, Limit(NOW - 10 * HOUR))
    for commit in commits[:3]:
        walked.add(commit)
    assert walked.unmet() == ("c2", frozenset({("u",), ("w",)}))
    walked.state([_content("u", 1), _content("w", 7), _content("t", 7)])
    assert walked.live == set(states[0].values())


Histories = tuple[list[Commit], list[dict[Key, Content]]]


@st.composite
def _histories(draw: st.DrawFn) -> Histories:
    """Random logs: puts, drops, re-creations and renames, several changes a commit, equal times, repeated snapshots."""
    commits: list[Commit] = []
    states: list[dict[Key, Content]] = []
    now: dict[Key, Content] = {}
    age = 30
    for number in range(draw(st.integers(0, 14))):
        age -= draw(st.integers(0, 4))
        changes: list[KeyChange] = []
        for table in draw(st.lists(st.sampled_from("tuv"), max_size=2, unique=True)):
            key = (table,)
            drop = key in now and draw(st.integers(0, 3)) == 0
            used = {c.content_id for c in now.values()}  # one commit has a content under one key
            born = draw(st.sampled_from([i for i in ("id-t", "id-u", "id-v", "id-w") if i not in used]))
            content_id = now[key].content_id if key in now else born
            content = None if drop else Content(content_id, key, f"{number}-{table}", draw(st.integers(0, 4)) or number)
            now = {k: c for k, c in now.items() if k != key} | ({} if content is None else {key: content})
            changes.append(KeyChange(key, content))
        commits.append(Commit(f"c{number}", commits[-1].hash if commits else None, NOW - age * HOUR, tuple(changes)))
        states.append(now)
    return commits[::-1], states[::-1]


def _model(histories: Histories, limits: Mapping[str, Limit], default: Limit) -> set[Content]:
    """Every state that a live commit sees, read as plainly as it can be written; and the newest snapshots."""
    commits, states = histories
    live: set[Content] = set(states[0].values()) if states else set()
    for commit, state in zip(commits, states, strict=True):
        live |= {c for c in state.values() if commit.time >= limits.get(c.content_id, default).cutoff}
    for content_id in {c.content_id for c in states[0].values()} if states else set():
        keep = limits.get(content_id, default).keep
        heads = [c for c in states[0].values() if c.content_id == content_id]
        puts = [ch.content for c in commits for ch in c.changes if ch.content and ch.content.content_id == content_id]
        newest = list(dict.fromkeys([heads[-1].snapshot_id, *(p.snapshot_id for p in puts)]))[:keep]
        first = {s: next((p for p in puts if p.snapshot_id == s), None) for s in newest}
        live |= {p for p in first.values() if p is not None}
    return live


@given(
    _histories(),
    st.dictionaries(
        st.sampled_from(["id-t", "id-u", "id-v", "id-w"]), st.tuples(st.integers(0, 30), st.integers(1, 4))
    ),
    st.integers(0, 20),
)
def test_live_versions_are_those_of_the_model(
    histories: Histories, said: Mapping[str, tuple[int, int]], cutoff: int
) -> None:
    """Nothing that a live commit sees is missing; nothing that is dead and old is kept but for its table's count."""
    default = Limit(NOW - cutoff * HOUR)
    at_head = {c.content_id for c in histories[1][0].values()} if histories[1] else set()
    limits = {i: Limit(NOW - max(cutoff, age) * HOUR, keep) for i, (age, keep) in said.items() if i in at_head}
    assert _live(*histories, limits, default) == _model(histories, limits, default)
