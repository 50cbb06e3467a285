"""Bodies of policies, access, the audit log and the overview."""

from __future__ import annotations

from datetime import date, datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from icewright.app.web.api.models.requests import RequestBody, Settings, Text
from icewright.core.permissions import Role
from icewright.core.policy import Operation
from icewright.ports.views import TrendStep


class Rule(BaseModel):
    """A policy rule and its newest version."""

    scope: str = Field(description="platform, or a pattern such as lake.events-*")
    source: str = Field(description="store: changed here or by the command line; else the file")
    settings: dict[str, Any]
    author: str | None
    at: datetime | None
    version: int | None


class Policies(BaseModel):
    """Rules, weakest level first, and guardrails."""

    rules: list[Rule]
    guardrails: list[str]


class Versions(BaseModel):
    """Versions of a stored rule, newest first; one without settings removed it."""

    items: list[Rule]


class RuleRequest(RequestBody):
    """A request to store a policy rule."""

    set: Settings
    version: Annotated[int, Field(ge=0)] | None = Field(
        None, description="newest version known to the client, 0 for none; a mismatch is a conflict"
    )


class KnobChange(BaseModel):
    """A knob that would change."""

    knob: str
    before: Any
    after: Any


class VerdictChange(BaseModel):
    """A verdict that would change."""

    operation: Operation
    before: str
    after: str
    reason: str


class TableChange(BaseModel):
    """A table that would change."""

    table: str
    knobs: list[KnobChange]
    verdicts: list[VerdictChange] | None = Field(description="null: not evaluated for this preview")
    error: str | None = Field(description="why it could not be evaluated")


class Preview(BaseModel):
    """The changes that a rule would make."""

    matched: int = Field(description="visible tables that the pattern matches")
    changed: int = Field(description="tables with a changed knob")
    evaluated: int = Field(description="tables whose verdicts were compared")
    items: list[TableChange]


class TokenRequest(RequestBody):
    """A request to make an API token."""

    name: Annotated[Text, Field(min_length=1, max_length=200)]
    role: Role
    scope: Annotated[list[Text], Field(max_length=100)] = Field(
        default_factory=list, description="catalogs or namespaces, by patterns; none: all, which no owner has"
    )
    days: Annotated[int, Field(ge=1, le=3660)] | None = Field(90, description="until it expires; null: never")


class Granted(BaseModel):
    """A role and the scope in which it applies."""

    role: Role
    scope: list[str] = Field(description="none: everywhere")


class Token(BaseModel):
    """A token, without its secret."""

    id: str
    name: str
    grants: list[Granted]
    author: str
    created: datetime
    expires: datetime | None
    revoked: datetime | None
    used: datetime | None = Field(description="to the minute")


class NewToken(Token):
    """A token just created, with its text."""

    token: str = Field(description="shown once; only a digest is stored")


class Tokens(BaseModel):
    """All API tokens, without their secrets."""

    items: list[Token]


class Me(BaseModel):
    """The caller and what the caller may do."""

    name: str
    via: Literal["token", "session", "local"]
    grants: list[Granted]
    actions: list[str] = Field(description="actions allowed in at least one place")
    csrf: str | None = Field(description="of a session: the header X-CSRF-Token of every change")


class AuditEntry(BaseModel):
    """A change, or a refusal."""

    id: int
    at: datetime
    actor: str
    via: str
    action: str
    target: str
    refused: bool
    source: str
    details: dict[str, Any]


class Audit(BaseModel):
    """A page of the audit log, newest first."""

    items: list[AuditEntry]
    next: str | None


class Spent(BaseModel):
    """GB-hours of one catalog and pool on one day."""

    day: date
    catalog: str
    pool: str
    gb_hours: float
    runs: int


class Saved(BaseModel):
    """Sums of what runs removed and saved since a time."""

    runs: int
    gb_hours: float
    money: float = Field(description="the same at the configured prices; 0 where there is none")
    data_files: int = Field(description="fewer than there were")
    manifests: int = Field(description="fewer than there were")
    snapshots: int = Field(description="expired")
    deleted_files: int
    deleted_bytes: int


class TrendStepSums(BaseModel):
    """Cost and removals of the runs of one pool in one step of a trend."""

    at: datetime = Field(description="beginning of the step")
    pool: str
    saved: Saved


class HealthDay(BaseModel):
    """Health and size of tables as they were known at the end of a day."""

    day: date
    tables: int = Field(description="that had been evaluated by then and are not dropped")
    health: float = Field(description="the mean, from 0 to 100")
    files: int = Field(description="data files")
    bytes: int


class Trend(BaseModel):
    """Cost and removals of runs over time, and health; steps without a run or an evaluation are left out."""

    since: datetime
    step: TrendStep
    points: list[TrendStepSums]
    health: list[HealthDay] = Field(description="by day, whatever the step")


class Overview(BaseModel):
    """Counts and sums of the fleet."""

    funnel: dict[str, int] = Field(description="tables, changed, due, running: each a subset of the previous")
    states: dict[str, int]
    health: list[int] = Field(description="tables by tens of health, from 0-9 to 90-100")
    health_unknown: int
    verdicts: dict[Operation, dict[str, int]]
    jobs: dict[str, int]
    spend: list[Spent]
    saved: Saved
    alerts: dict[str, int] = Field(description="open, by severity")
