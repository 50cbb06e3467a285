"""The table of permissions, cell by cell, and which places a scope covers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icewright.core.errors import UsageError
from icewright.core.layering import matches
from icewright.core.permissions import (
    DELETING,
    PERMISSIONS,
    Action,
    Grant,
    Principal,
    Role,
    Via,
    covers,
    grant,
    overlaps,
    required_actions,
    sees,
    touches,
    within,
)
from icewright.core.policy import Operation

A = Action
WORK = {A.JOBS_DRY_RUN, A.JOBS_RUN, A.JOBS_CANCEL, A.TABLES_PAUSE, A.TABLES_PIN}
WORK |= {A.ALERTS_TEST, A.ALERTS_ACKNOWLEDGE}
OWN = {A.JOBS_DELETE, A.JOBS_UNDO, A.TABLES_RESTORE, A.TABLES_ERASE}
OWN |= {A.POLICIES_CHANGE, A.CATALOGS_VACUUM, A.AUDIT_READ}
RULE = {A.TOKENS_MANAGE, A.CATALOGS_CHANGE, A.LIMITS_CHANGE, A.TABLES_COPY}
MAY = {  # written out again, from the specification
    Role.VIEWER: set(Action) - WORK - OWN - RULE,
    Role.OPERATOR: set(Action) - OWN - RULE,
    Role.OWNER: set(Action) - RULE,
    Role.ADMIN: set(Action),
}


def principal(role: Role, *scopes: str) -> Principal:
    """Return a principal with a role in some scopes."""
    return Principal("me", Via.TOKEN, (Grant(role, tuple(tuple(s.split(".")) for s in scopes)),))


@pytest.mark.parametrize("role", Role)
def test_each_role_may_what_the_specification_says(role: Role) -> None:
    """A role applies in its scopes and nowhere else; without scopes it applies everywhere."""
    assert PERMISSIONS.keys() == set(Action)
    bound = principal(role, "lake.sales")
    for action in Action:
        may = action in MAY[role]
        assert bound.may(action, ("lake", "sales")) is may, action
        assert bound.may(action, ("lake", "sales", "eu")) is may, action
        assert bound.may_somewhere(action) is may, action
        for elsewhere in ((), ("lake",), ("lake", "hr"), ("other", "sales")):
            assert not bound.may(action, elsewhere), action
        assert principal(role).may(action) is may, action
        assert bound.visibility(action) == ((("lake", "sales"),) if may else ()), action


@pytest.mark.parametrize(
    ("role", "scopes", "message"),
    [
        ("owner", [], "name them by --scope"),
        ("admin", ["lake"], "an admin is one everywhere"),
        ("king", [], "there is no role king"),
        ("viewer", ["lake..sales"], "names no catalog"),
    ],
)
def test_impossible_grants_are_refused(role: str, scopes: list[str], message: str) -> None:
    """The message says what would be right."""
    with pytest.raises(UsageError, match=message):
        grant(role, scopes)


@pytest.mark.parametrize(
    ("pattern", "scope", "inside"),
    [
        ("lake", "lake", True),
        ("lake.sales.orders", "lake", True),
        ("lake.sales", "lake.sales", True),
        ("lake.sales.*", "lake.sales", True),
        ("lake.sales.eu", "lake.sales.eu", False),  # it may be the table eu of lake.sales
        ("lake.sales.eu.*", "lake.sales.eu", True),
        ("lake", "lake.sales", False),
        ("lake.*", "lake.sales", False),
        ("lake.events-a*", "lake.events-*", True),
        ("lake.events-*", "lake.events-?", False),
        ("lake.*", "lake.*", True),
        ("*.sales", "lake", False),
    ],
)
def test_an_owner_sets_rules_only_within_the_scope(pattern: str, scope: str, inside: bool) -> None:
    """A rule is allowed where its pattern can match no table outside of the scope."""
    parts, place = tuple(pattern.split(".")), tuple(scope.split("."))
    assert within(parts, place) is inside
    assert principal(Role.OWNER, scope).may_rule(A.POLICIES_CHANGE, parts) is inside
    assert not principal(Role.OPERATOR, scope).may_rule(A.POLICIES_CHANGE, parts)
    assert not principal(Role.OWNER, scope).may_rule(A.POLICIES_CHANGE, ())
    assert principal(Role.ADMIN).may_rule(A.POLICIES_CHANGE, ())


PART = st.text("ab*?", min_size=1, max_size=3)
NAME = st.text("ab", min_size=1, max_size=3)


@given(st.lists(PART, min_size=1, max_size=4), st.lists(PART, min_size=1, max_size=3), st.lists(NAME, min_size=3))
def test_what_a_rule_within_reaches_is_owned(pattern: list[str], scope: list[str], name: list[str]) -> None:
    """Whatever table a rule within a scope matches is one of the scope's."""
    if within(tuple(pattern), tuple(scope)) and matches(pattern, name[: len(pattern)]):
        assert covers(tuple(scope), tuple(name[:-1]))
        assert overlaps(tuple(pattern), (tuple(scope),))


def test_visibility_limits_places_catalogs_and_rules() -> None:
    """A place is visible below a pattern, a catalog if anything in it may be, and a rule if it may match any of it."""
    visibility = (("lake", "sales"), ("d*",))
    assert sees(None, ("any",))
    places = (("lake", "sales"), ("lake", "hr"), ("lake",), ("dev", "x"))
    assert [sees(visibility, place) for place in places] == [True, False, False, True]
    assert [touches(visibility, c) for c in ("lake", "dev", "other")] == [True, True, False]
    assert overlaps((), visibility)
    assert overlaps(("lake",), visibility)
    assert not overlaps(("lake", "hr"), visibility)


def test_the_actions_that_a_job_requires() -> None:
    """Deleting needs more than rewriting; knobs of other operations need the right to change policy."""
    compact, expire = Operation.COMPACT, Operation.EXPIRE_SNAPSHOTS
    assert required_actions([compact], ["compact.where"]) == (A.JOBS_RUN,)
    assert required_actions([compact], ["execute.check_totals"]) == (A.JOBS_RUN, A.POLICIES_CHANGE)
    assert required_actions([compact, expire]) == (A.JOBS_RUN, A.JOBS_DELETE)
    assert required_actions([expire], dry_run=True) == (A.JOBS_DRY_RUN,)
    assert required_actions([expire], ["remove_orphans.inventory"], dry_run=True) == (A.JOBS_DRY_RUN, A.POLICIES_CHANGE)
    assert {Operation.EXPIRE_ROWS, expire, Operation.REMOVE_ORPHANS} == DELETING
