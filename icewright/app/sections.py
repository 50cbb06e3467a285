"""The sections of the configuration file as models, and their faults in our words."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

_UNION_BRANCHES = ("str", "int", "float", "bool", "[key]")  # how pydantic says which kind it tried


class Section(BaseModel):
    """A part of the file: unknown keys are faults, values are not bent into shape."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def _joined(value: object) -> object:
    """A wildcard list as people write it: one text with commas, or a YAML list."""
    return ", ".join(value) if isinstance(value, list) and all(isinstance(v, str) for v in value) else value


_Wildcards = Annotated[str, BeforeValidator(_joined)]


class ScopeSection(Section):
    """Which tables are maintained; wildcards * and ?, separated by commas; blank means all."""

    namespaces: _Wildcards = ""
    tables: _Wildcards = ""


class CatalogSection(Section):
    """One catalog."""

    type: Literal["sql"]
    enabled: bool = False
    properties: dict[str, str | int | float | bool] = Field(default_factory=dict)
    scope: ScopeSection = Field(default_factory=ScopeSection)
    allowed_locations: list[str] | None = None
    pool: str = "default"
    detect_interval_seconds: Annotated[int, Field(ge=1)] | None = None
    max_concurrent: Annotated[int, Field(ge=1)] | None = None
    gb_hours_per_day: Annotated[float, Field(gt=0, strict=False)] | None = None


class PoolSection(Section):
    """A Spark application: on a master, or behind a Connect server."""

    kind: Literal["spark"] = "spark"
    master: str = "local[*]"
    remote: Annotated[str, Field(pattern="^sc://.+")] | None = None
    max_concurrent: int = Field(2, ge=1)
    gb_hours_per_day: Annotated[float, Field(gt=0, strict=False)] | None = None
    conf: dict[str, str | int | float | bool] = Field(default_factory=dict)


_OperationName = Literal[
    "expire_rows", "compact", "rewrite_deletes", "rewrite_manifests", "expire_snapshots", "remove_orphans"
]


def default_limits_per_operation() -> dict[_OperationName, int]:
    """Jobs at the same time that have the operation, where the file does not say."""
    return {
        "expire_rows": 2,
        "compact": 2,
        "rewrite_deletes": 2,
        "rewrite_manifests": 2,
        "expire_snapshots": 4,
        "remove_orphans": 1,
    }


class LimitsSection(Section):
    """How much may run at the same time."""

    total: int = Field(4, alias="global", ge=1)
    per_operation: dict[_OperationName, Annotated[int, Field(ge=1)]] = Field(
        default_factory=default_limits_per_operation
    )
    per_worker: int = Field(4, ge=1)
    max_jobs_per_detection: int = Field(100, ge=1)


class DetectSection(Section):
    """How often each catalog is asked what moved, and how long it may take."""

    interval_seconds: int = Field(60, ge=1)
    timeout_seconds: int = Field(300, ge=1)


class CacheSection(Section):
    """Where manifests are cached, and how much of them."""

    folder: str | None = None
    max_mb: int = Field(1024, ge=1)


class LedgerSection(Section):
    """Where the ledger of each job is written as a Parquet file."""

    folder: str | None = None


class ArchiveSection(Section):
    """Where history goes once it is old."""

    catalog: str
    namespace: str = "icewright"
    after_days: int = Field(30, ge=1)


def _keys(model: type[BaseModel], path: tuple[object, ...]) -> list[str]:
    """The keys of the section that a fault's path leads to."""
    for part in path[:-1]:
        inner = next((f.annotation for name, f in model.model_fields.items() if part in (name, f.alias)), None)
        if not isinstance(inner, type) or not issubclass(inner, BaseModel):
            return []
        model = inner
    return [f.alias or name for name, f in model.model_fields.items()]


def fault(path: str, item: Mapping[str, Any], model: type[BaseModel]) -> str:
    """A fault in our words: where, what kind of value stands there, and what would be right. Never the value."""
    loc = tuple(part for part in item["loc"] if part not in _UNION_BRANCHES)
    where = ".".join([path, *(str(part) for part in loc)])
    context = item.get("ctx", {})
    expected = {
        "bool_type": "true or false",
        "int_type": "a whole number",
        "string_type": "text",
        "list_type": "a list",
        "dict_type": "a mapping",
        "model_type": "a mapping",
        "greater_than_equal": f"a number of at least {context.get('ge')}",
        "greater_than": f"a number above {context.get('gt')}",
        "float_type": "a number",
        "string_pattern_mismatch": "an address such as sc://host:15002",  # the one pattern there is
        "literal_error": str(context.get("expected", "")).replace("'", ""),
    }
    if item["type"] == "missing":
        return f"{where}: missing"
    if item["type"] == "extra_forbidden":
        return f"{where}: there is no such key{near(str(loc[-1]), _keys(model, loc))}"
    right = "text" if len(loc) < len(item["loc"]) and "[key]" not in item["loc"] else expected.get(item["type"])
    return f"{where}: {kind(item.get('input'))} given; write {right or item['msg']}"


def kind(value: object) -> str:
    """What kind of value stands somewhere, in words."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "a truth value"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case list():
            return "a list"
        case dict():
            return "a mapping"
    return type(value).__name__


def near(name: str, known: tuple[str, ...] | list[str]) -> str:
    """A hint at what was probably meant."""
    alike = get_close_matches(name, known, 1)
    return f"; did you mean {alike[0]}?" if alike else f"; known are {', '.join(known)}" if known else ""
