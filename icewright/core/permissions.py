"""Permissions: the single table that enforcement, documentation and tests are derived from."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from icewright.core.errors import UsageError
from icewright.core.layering import matches, parse_pattern
from icewright.core.policy import INVENTORY, Operation
from icewright.core.table import TableRef

Place = tuple[str, ...]  # a catalog, or a namespace of it, or a pattern of either; empty: everything
VisibilityFilter = tuple[Place, ...] | None  # patterns of the visible places; None: all places

DELETING = frozenset({Operation.EXPIRE_ROWS, Operation.EXPIRE_SNAPSHOTS, Operation.REMOVE_ORPHANS})
_AMBIGUOUS = 3  # from so many parts on, a rule's pattern may mean a table or a nested namespace


class Role(enum.StrEnum):
    """A role, which a `Grant` limits to scopes."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    OWNER = "owner"
    ADMIN = "admin"


class Action(enum.StrEnum):
    """The actions that need a permission."""

    TABLES_READ = "tables.read"
    JOBS_READ = "jobs.read"
    PLAN_READ = "plan.read"
    POLICIES_READ = "policies.read"
    POLICIES_PREVIEW = "policies.preview"
    ALERTS_READ = "alerts.read"
    SYSTEM_READ = "system.read"
    JOBS_DRY_RUN = "jobs.dry_run"
    JOBS_RUN = "jobs.run"
    JOBS_CANCEL = "jobs.cancel"
    TABLES_PAUSE = "tables.pause"
    TABLES_PIN = "tables.pin"
    ALERTS_TEST = "alerts.test"
    ALERTS_ACKNOWLEDGE = "alerts.acknowledge"
    JOBS_DELETE = "jobs.delete"
    JOBS_UNDO = "jobs.undo"
    TABLES_RESTORE = "tables.restore"
    TABLES_ERASE = "tables.erase"
    POLICIES_CHANGE = "policies.change"
    CATALOGS_VACUUM = "catalogs.vacuum"
    CATALOGS_CHANGE = "catalogs.change"
    LIMITS_CHANGE = "limits.change"
    TABLES_COPY = "tables.copy"
    AUDIT_READ = "audit.read"
    TOKENS_MANAGE = "tokens.manage"


@dataclass(frozen=True, slots=True)
class Permission:
    """The roles that may do an action, and a description of the action."""

    roles: frozenset[Role]
    help: str


_ALL = frozenset(Role)
_WORKERS = _ALL - {Role.VIEWER}
_OWNERS = frozenset({Role.OWNER, Role.ADMIN})
_ADMINS = frozenset({Role.ADMIN})

PERMISSIONS: Mapping[Action, Permission] = {
    Action.TABLES_READ: Permission(_ALL, "see tables: health, facts, verdicts, knobs, snapshots, pins"),
    Action.JOBS_READ: Permission(_ALL, "see jobs and runs, their logs and the files that they deleted"),
    Action.PLAN_READ: Permission(_ALL, "see the queue, the plan and the overview"),
    Action.POLICIES_READ: Permission(_ALL, "see policy rules and their versions"),
    Action.POLICIES_PREVIEW: Permission(_ALL, "see what a rule would change, without changing it"),
    Action.ALERTS_READ: Permission(_ALL, "see alerts"),
    Action.SYSTEM_READ: Permission(_ALL, "see catalogs, pools, limits and processes"),
    Action.JOBS_DRY_RUN: Permission(_WORKERS, "let operations say what they would do"),
    Action.JOBS_RUN: Permission(_WORKERS, "start operations that rewrite"),
    Action.JOBS_CANCEL: Permission(_WORKERS, "cancel jobs"),
    Action.TABLES_PAUSE: Permission(
        _WORKERS, "pause and resume tables; everywhere: also the fleet, and drain processes"
    ),
    Action.TABLES_PIN: Permission(_WORKERS, "hold snapshots for readers, and release them"),
    Action.ALERTS_TEST: Permission(_WORKERS, "send a test message to the channels"),
    Action.ALERTS_ACKNOWLEDGE: Permission(_WORKERS, "acknowledge alerts, and silence them for a time"),
    Action.JOBS_DELETE: Permission(_OWNERS, f"start operations that delete: {', '.join(sorted(DELETING))}"),
    Action.JOBS_UNDO: Permission(_OWNERS, "undo jobs, and give up deletions that wait"),
    Action.TABLES_RESTORE: Permission(_OWNERS, "return tables to earlier states, and repair them"),
    Action.TABLES_ERASE: Permission(_OWNERS, "look for rows by their values, erase them, and read what was found"),
    Action.POLICIES_CHANGE: Permission(_OWNERS, "change policy rules, or knobs of other operations for one run"),
    Action.CATALOGS_VACUUM: Permission(_OWNERS, "vacuum a whole catalog"),
    Action.AUDIT_READ: Permission(_OWNERS, "read the audit log"),
    Action.CATALOGS_CHANGE: Permission(_ADMINS, "enable catalogs, and set which tables are maintained"),
    Action.LIMITS_CHANGE: Permission(_ADMINS, "change limits of jobs, budgets of GB-hours, and prices"),
    Action.TABLES_COPY: Permission(_ADMINS, "copy tables to any place, and register tables from any place"),
    Action.TOKENS_MANAGE: Permission(_ADMINS, "list, make and revoke tokens"),
}


@dataclass(frozen=True, slots=True)
class Grant:
    """A role in the places that match a scope; without scopes, everywhere."""

    role: Role
    scopes: tuple[Place, ...] = ()

    def covers(self, place: Place) -> bool:
        """Return whether the grant applies to the place."""
        return not self.scopes or any(covers(scope, place) for scope in self.scopes)


class Via(enum.StrEnum):
    """The way in which a principal is authenticated."""

    TOKEN = "token"  # noqa: S105 - the word, not one
    SESSION = "session"
    LOCAL = "local"  # on this machine, where nobody else gets in


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller, with its grants."""

    name: str
    via: Via
    grants: tuple[Grant, ...]

    def may(self, action: Action, place: Place = ()) -> bool:
        """Return whether the principal may do the action in the scope; without a scope: everywhere."""
        return any(grant.covers(place) for grant in self._for(action))

    def may_somewhere(self, action: Action) -> bool:
        """Return whether the principal may do the action in any scope."""
        return bool(self._for(action))

    def may_rule(self, action: Action, pattern: Place) -> bool:
        """Return whether the principal may do the action in every place that a rule of this pattern can match."""
        return any(
            not grant.scopes or any(within(pattern, scope) for scope in grant.scopes) for grant in self._for(action)
        )

    def visibility(self, action: Action) -> VisibilityFilter:
        """Return the scopes in which the principal may do the action."""
        grants = self._for(action)
        if any(not grant.scopes for grant in grants):
            return None
        return tuple(dict.fromkeys(scope for grant in grants for scope in grant.scopes))

    def _for(self, action: Action) -> list[Grant]:
        return [grant for grant in self.grants if grant.role in PERMISSIONS[action].roles]


def grant(role: str, scopes: Iterable[str] = ()) -> Grant:
    """Parse a grant of a role and its scopes. Raises `UsageError`."""
    if role not in list(Role):
        raise UsageError(f"there is no role {role}; there is: {', '.join(Role)}")
    places = tuple(parse_pattern(scope) for scope in scopes)
    if role == Role.OWNER and not places:
        raise UsageError("an owner owns catalogs or namespaces: name them by --scope, as in lake or lake.sales")
    if role == Role.ADMIN and places:
        raise UsageError("an admin is one everywhere: leave out the scope, or make an owner")
    return Grant(Role(role), places)


def place_of(ref: TableRef) -> Place:
    """Return the catalog and namespace of a table as a place."""
    return (ref.catalog, *ref.namespace)


def covers(scope: Place, place: Place) -> bool:
    """Return whether the scope's pattern matches the place or a namespace that contains it."""
    return bool(place) and matches(scope, place[: len(scope)])


def sees(visibility: VisibilityFilter, place: Place) -> bool:
    """Return whether the place is visible."""
    return visibility is None or any(covers(scope, place) for scope in visibility)


def touches(visibility: VisibilityFilter, catalog: str) -> bool:
    """Return whether anything of the catalog may be visible."""
    return visibility is None or any(matches(scope[:1], (catalog,)) for scope in visibility)


def within(pattern: Place, scope: Place) -> bool:
    """Return whether every table that a rule's pattern can match lies in the scope.

    A pattern of three parts or more may mean a table or a nested namespace, so it has to be longer than the scope.
    """
    if len(pattern) < len(scope) or len(pattern) == len(scope) >= _AMBIGUOUS:
        return False
    return all(_covers(outer, inner) for outer, inner in zip(scope, pattern, strict=False))


def overlaps(pattern: Place, visibility: VisibilityFilter) -> bool:
    """Return whether a rule of this pattern can match anything that is visible."""
    return visibility is None or any(
        all(matches((a,), (b,)) or matches((b,), (a,)) for a, b in zip(pattern, scope, strict=False))
        for scope in visibility
    )


def _covers(outer: str, inner: str) -> bool:
    """Return whether the pattern `outer` matches every name that `inner` matches; `?` never covers `*`."""
    return matches((outer,), (inner,)) and not ("?" in outer and "*" in inner)


def required_actions(
    operations: Sequence[Operation], knobs: Collection[str] = (), *, dry_run: bool = False
) -> tuple[Action, ...]:
    """Return the actions that a request needs permission for; `knobs` are those that it sets for its run."""
    if dry_run and INVENTORY.name not in knobs:
        return (Action.JOBS_DRY_RUN,)
    if dry_run:  # it names a file anywhere that the service can read
        return (Action.JOBS_DRY_RUN, Action.POLICIES_CHANGE)
    own = tuple(f"{operation}." for operation in operations)
    actions = [Action.JOBS_DELETE if op in DELETING else Action.JOBS_RUN for op in operations]
    if any(not knob.startswith(own) for knob in knobs):
        actions.append(Action.POLICIES_CHANGE)
    return tuple(dict.fromkeys(actions))
