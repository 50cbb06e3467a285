"""Vacuum of a catalog with branches: the cut-off policy, and which versions of tables are live. Nessie's words.

A reference is a branch or tag of the whole catalog; a commit changes tables by key; a content is a version of a table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from icewright.core.errors import Refused
from icewright.core.numbers import whole_number

EMPTY = "Default cut-off-policy cannot be empty or null"
PER_REF = "Please reconfigure the GC policy without PerRefCutoffPolicies and retry."
NONE = "VACUUM command cannot continue because the cut-off policy is set to NONE"
UNSUPPORTED = (
    "Only duration and timestamp based cut-offs are supported. Kindly reconfigure with a duration or time based policy "
    "and retry"
)
DEFAULT_CUTOFF = timedelta(days=5)
LEAST_GRACE = timedelta(hours=24)
_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.IGNORECASE)
BY_VACUUM = "nessie.vacuum"  # among the properties of a table as a catalog with branches serves it: whether it may act
_COLLECTED_BY = {
    "true": ": vacuum of the catalog does it, which sees all branches",
    "false": ": its user keeps all files, from vacuum of the catalog too",
}
_NEVER = datetime.min.replace(tzinfo=UTC)

Key = tuple[str, ...]  # a table's name: namespaces, then the table


@dataclass(frozen=True, slots=True)
class GcConfig:
    """Nessie's stored repository configuration `GARBAGE_COLLECTOR`."""

    default_cutoff: str | None = None
    grace: str | None = None
    per_ref: bool = False  # whether it has policies for single references


@dataclass(frozen=True, slots=True)
class CutoffPolicy:
    """The age or instant before which history may expire, and the grace period of new files. One of both is set."""

    age: timedelta | None
    instant: datetime | None
    grace: timedelta
    source: str  # where the cut-off was configured, for people

    def at(self, now: datetime) -> datetime:
        """Return the moment before which commits and snapshots are old."""
        return self.instant if self.instant is not None else ago(now, self.age or timedelta())

    def __str__(self) -> str:
        return f"{self.instant.isoformat()}" if self.instant is not None else f"{self.age}"


def ago(now: datetime, age: timedelta) -> datetime:
    """Return the moment of that age; an endless age ends with the calendar."""
    try:
        return now - age
    except OverflowError:
        return _NEVER


def resolve(config: GcConfig | None, cutoff: str | None, grace: timedelta, now: datetime) -> CutoffPolicy:
    """Return the policy in force: Nessie's own configuration, else ours (`cutoff`), else five days.

    Raises `Refused` with the words that users of such catalogs know.
    """
    text, source = (cutoff, "the policy's vacuum.cutoff") if cutoff is not None else (None, "the default")
    if config is not None:
        if not (config.default_cutoff or "").strip():
            raise Refused(EMPTY)
        if config.per_ref:
            raise Refused(PER_REF)
        text, source = config.default_cutoff, "Nessie's configuration"
        if config.grace is not None:
            grace = _grace(config.grace)
    if grace < LEAST_GRACE:
        raise Refused(f"newFilesGracePeriod is {grace}: it must be at least 24 hours, or files being written may go")
    age, instant = (DEFAULT_CUTOFF, None) if text is None else parse_cutoff(text)
    if instant is not None and instant > now:
        raise Refused(f"the cut-off {instant.isoformat()} lies in the future: everything but the heads would go")
    return CutoffPolicy(age, instant, grace, source)


def parse_cutoff(text: str) -> tuple[timedelta | None, datetime | None]:
    """Return a duration (PT48H) or an instant (2023-12-01T18:00:00.0000Z). Raises `Refused` for NONE and all else."""
    stripped = text.strip()
    if not stripped:
        raise Refused(EMPTY)
    if stripped.upper() == "NONE":
        raise Refused(NONE)
    if (age := parse_duration(stripped)) is not None:
        return age, None
    try:
        instant = datetime.fromisoformat(stripped) if "-" in stripped else None
        if instant is not None and instant.tzinfo is not None:
            return None, instant.astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise Refused(UNSUPPORTED)


def check_cutoff(text: str) -> None:
    """Raise `ValueError` when the text is neither a cut-off nor NONE."""
    try:
        parse_cutoff(text)
    except Refused as error:
        if str(error) != NONE:
            raise ValueError(f"{text!r}: {error}") from None


def parse_duration(text: str) -> timedelta | None:
    """Parse an ISO-8601 duration of days, hours, minutes and seconds; None for other text. Long ones saturate."""
    match = _DURATION.fullmatch(text.strip())
    if match is None or not any(match.groups()) or text.strip().upper().endswith("T"):
        return None
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    try:
        return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    except OverflowError:
        return timedelta.max


def _grace(text: str) -> timedelta:
    grace = parse_duration(text)
    if grace is None:
        raise Refused(f"newFilesGracePeriod {text!r} is no duration: write it as PT24H, at least 24 hours")
    return grace


@dataclass(frozen=True, slots=True)
class Reference:
    """A branch or tag of the catalog, and the commit at its head."""

    name: str
    is_branch: bool
    hash: str


@dataclass(frozen=True, slots=True)
class Content:
    """A version of a table: its id lasts through renames and branches."""

    content_id: str
    key: Key
    metadata_location: str
    snapshot_id: int | None


@dataclass(frozen=True, slots=True)
class KeyChange:
    """The table that a commit put under a key; None: it removed the table, or put something else there."""

    key: Key
    content: Content | None


@dataclass(frozen=True, slots=True)
class Commit:
    """One entry of a commit log."""

    hash: str
    parent: str | None
    time: datetime
    changes: tuple[KeyChange, ...]


@dataclass(frozen=True, slots=True)
class Limit:
    """The retention of a table on one reference: history younger than the cut-off, and the `keep` newest snapshots."""

    cutoff: datetime
    keep: int = 1


def limit_of(properties: Mapping[str, str], cutoff: datetime, now: datetime, keep: int = 1) -> Limit:
    """Return a table's own limit: its properties may lengthen the retention and keep more snapshots."""
    age = _whole_number(properties.get("history.expire.max-snapshot-age-ms"))
    count = _whole_number(properties.get("history.expire.min-snapshots-to-keep"))
    if age is not None:
        own = _NEVER if age > 10**14 else ago(now, timedelta(milliseconds=age))
        cutoff = min(cutoff, own)
    return Limit(cutoff, max(1, keep if count is None else count))


def _whole_number(text: str | None) -> int | None:
    """Parse a whole number. Raises `Refused` for other text: nobody knows which retention was meant."""
    if text is None:
        return None
    number = whole_number(text) if text.strip().isascii() else None
    if number is None:
        raise Refused(f"a history.expire property says {text!r}, which is not a whole number")
    return number


def gc_enabled(properties: Mapping[str, str]) -> bool:
    """Return whether the table lets anybody delete its files: where it says nothing or, as Java reads it, `true`."""
    return properties.get("gc.enabled", "true").lower() == "true"


def collected_by(properties: Mapping[str, str]) -> str:
    """Return who may delete the files of a table whose catalog has branches, as the end of a sentence; else blank."""
    return _COLLECTED_BY.get(properties.get(BY_VACUUM, ""), "")


def is_forbidden_by_user(properties: Mapping[str, str]) -> bool:
    """Return whether a user forbade collection, as told from Nessie's own default of `gc.enabled=false`.

    Nessie's REST side writes the default beside `created-at`, its native client beside
    `write.metadata.delete-after-commit.enabled=false`; where neither stands, a user said it.
    """
    if gc_enabled(properties):
        return False
    native = properties.get("write.metadata.delete-after-commit.enabled", "").lower() == "false"
    return not native and "created-at" not in properties


@dataclass
class Walk:
    """The live versions of one reference's tables, from its commits told newest first.

    A version is live when some live commit sees it: the head, or a commit that is not older than the cut-off of the
    version's table. A commit sees the last version put at or before it. Beyond that, a table's newest snapshots stay,
    as many as its limit keeps.
    """

    head: Mapping[Key, Content]
    limits: Mapping[str, Limit]  # by content id, of the tables at the head
    default: Limit
    live: set[Content] = field(default_factory=set)
    _seen: dict[Key, datetime] = field(default_factory=dict)  # the newest commit that sees the key's next older version
    _fresh: set[Key] = field(default_factory=set)  # changed by the last commit: the next is that commit
    _snapshots: dict[str, set[int | None]] = field(default_factory=dict)
    _open: set[Key] = field(default_factory=set)  # whose next older version is live, and not met yet
    _last: Commit | None = None

    def __post_init__(self) -> None:
        self.live.update(self.head.values())
        self._deepest = min([self.default.cutoff, *(limit.cutoff for limit in self.limits.values())])
        for content in self.head.values():
            self._snapshots[content.content_id] = {content.snapshot_id}
        self._short = {c.content_id for c in self.head.values() if self._limit(c).keep > 1}

    def _limit(self, content: Content) -> Limit:
        return self.limits.get(content.content_id, self.default)

    def add(self, commit: Commit) -> bool:
        """Add the next older commit. Return False when nothing older can be live, except what `unmet` names."""
        if commit.time < self._deepest and not self._short:
            return False  # neither this commit nor an older one sees anything that a live commit does not see
        for key in self._fresh:
            self._seen[key] = commit.time
            if commit.time >= self._deepest:
                self._open.add(key)
        self._fresh = {change.key for change in commit.changes}
        for change in commit.changes:
            self._visit_change(change)
        self._last = commit
        return commit.time >= self._deepest or bool(self._short)

    def _visit_change(self, change: KeyChange) -> None:
        self._open.discard(change.key)
        content = change.content
        if content is None:
            return
        limit = self._limit(content)
        seen_at = self._seen.get(change.key)
        if seen_at is None and change.key not in self.head:
            return  # told by a commit that the head does not lead to: cannot be
        if seen_at is None or seen_at >= limit.cutoff:
            self.live.add(content)
        if content.content_id in self._short:
            snapshot_ids = self._snapshots[content.content_id]
            if content.snapshot_id not in snapshot_ids:
                self.live.add(content)
                snapshot_ids.add(content.snapshot_id)
            if len(snapshot_ids) >= limit.keep:
                self._short.discard(content.content_id)

    def satisfied(self, content_ids: Iterable[str]) -> None:
        """Record that the own metadata of these tables has the snapshots to keep, so that they need no older commit."""
        self._short.difference_update(content_ids)

    def unmet(self) -> tuple[str, frozenset[Key]]:
        """Return the commit and the keys whose versions live commits see, but no commit so far has changed."""
        return (self._last.hash if self._last else "", frozenset(self._open))

    def state(self, contents: Iterable[Content]) -> None:
        """Add the contents that the commit of `unmet` has under its keys."""
        for content in contents:
            if content.key in self._open and self._seen[content.key] >= self._limit(content).cutoff:
                self.live.add(content)


def walk(
    branch_walk: Walk, commits: Iterable[Commit], state: Callable[[str, frozenset[Key]], Iterable[Content]]
) -> None:
    """Feed a walk with the commits that it needs, newest first, then with the contents that no commit had."""
    for commit in commits:
        if not branch_walk.add(commit):
            break
    at, keys = branch_walk.unmet()
    if keys:
        branch_walk.state(state(at, keys))
