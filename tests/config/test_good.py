"""Configurations that are accepted, and what they come to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from icewright.app.bootstrap import directory, read_config
from icewright.app.config import Config
from icewright.app.environment import find_config
from icewright.app.sections import AlertsConfig
from icewright.app.web.application import Settings
from icewright.core.alerts import AlertRule, RuleTerms, Severity, default_terms
from icewright.core.capacity import MAX_WAIT, CatalogLimits
from icewright.core.errors import ConfigError
from icewright.core.policy import ENABLED, KNOBS, ORDER, ORPHAN_AGE, ORPHAN_MODE, RETENTION, Operation
from icewright.core.rewriting import MIN_INPUT_FILES
from icewright.core.table import TableRef

LAKE = 'catalogs: {lake: {type: sql, properties: {uri: "sqlite:////data/catalog.db", warehouse: "file:///data/"}}}\n'
Read = Callable[..., Config]


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Read:
    """Write a configuration to a folder of its own, and read it from another."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    def write_and_read(*texts: str) -> Config:
        path = tmp_path / "etc" / "icewright.yaml"
        path.write_text("".join(texts), encoding="utf-8")
        return read_config(path)

    return write_and_read


def test_defaults(read: Read) -> None:
    """One catalog is enough; it is off, all of its tables are in scope, and deletions stay in its warehouse."""
    config = read(LAKE)
    lake = config.catalogs["lake"]
    assert not lake.scope.enabled
    assert lake.scope.contains(TableRef("lake", ("any", "where"), "t"))
    assert (lake.pool, lake.allowed_locations) == ("default", ("file:///data/",))
    assert (config.limits.total, config.limits.max_jobs) == (4, 100)
    assert dict(config.limits.per_operation) == dict(zip(Operation, (2, 2, 2, 2, 1, 4, 4, 1, 1), strict=True))
    knobs = config.policy.knobs_for(TableRef("lake", ("a",), "t"), None)
    assert [op for op, knob in ENABLED.items() if not knobs[knob]] == [
        Operation.EXPIRE_ROWS,
        Operation.COMPUTE_STATISTICS,
        Operation.CHECK,
    ]
    assert (knobs[ORPHAN_MODE], knobs[RETENTION], knobs[ORPHAN_AGE]) == ("report", 168, 72)


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("", "sqlite:///{here}/icewright.db"),
        ("state: sqlite:///state.db\n", "sqlite:///{here}/state.db"),
        ("state: sqlite:///deep/state.db\n", "sqlite:///{here}/deep/state.db"),
        ("state: sqlite:////var/state.db\n", "sqlite:////var/state.db"),
        ("state: postgresql+psycopg://me@host/db\n", "postgresql+psycopg://me@host/db"),
    ],
)
def test_a_relative_state_file_lies_beside_the_configuration(read: Read, given: str, used: str) -> None:
    """Wherever the command is called."""
    config = read(LAKE, given)
    assert config.state == used.format(here=config.path.parent)


def test_secrets_come_from_environment_and_files(read: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`${env:}` and `${file:}`, relative to the configuration, may stand anywhere in a value; no repr shows them."""
    monkeypatch.setenv("HUSH", "hush-4711\n")  # as of a mounted secret
    (tmp_path / "etc" / "pw").write_text("hush-4712\n", encoding="utf-8")
    config = read(
        "state: postgresql+psycopg://me:${env:HUSH}@host/db\n",
        LAKE.replace("sqlite:////data/catalog.db", "postgresql://me:${file:pw}@host/lake"),
        "pools: {default: {conf: {spark.secret: '${env:HUSH}'}}}\n",
    )
    assert config.state == "postgresql+psycopg://me:hush-4711@host/db"
    assert config.catalogs["lake"].properties["uri"] == "postgresql://me:hush-4712@host/lake"
    assert "hush-471" not in repr(config)


@pytest.mark.cases(87)
def test_layers(read: Read) -> None:
    """The most specific level wins; within one level the more specific pattern, then the later rule."""
    config = read(
        LAKE,
        """policy:
  - {match: lake.sales.orders, set: {compact.min_input_files: 10}}
  - {match: lake.sales, set: {compact.min_input_files: 9}}
  - {match: "lake.sal*", set: {compact.min_input_files: 8, expire_snapshots.retention_hours: 48}}
  - {match: "lake.s*", set: {compact.min_input_files: 7, order: seaweedfs}}
  - {match: lake, set: {compact.min_input_files: 6, order: canonical}}
  - {match: lake, set: {compact.min_input_files: 5}}
  - {set: {compact.min_input_files: 4}}
  - {match: "*.sales.`or.ders`", set: {compact.min_input_files: 3}}
""",
    )
    found = {
        name: config.policy.knobs_for(TableRef.parse(name), None)
        for name in (
            "lake.sales.orders",
            "lake.sales.other",
            "lake.sal.x",
            "lake.web.x",
            "pond.a.b",
            "a.sales.`or.ders`",
        )
    }
    assert [knobs[MIN_INPUT_FILES] for knobs in found.values()] == [10, 9, 8, 5, 4, 3]
    assert (found["lake.sales.orders"][ORDER], found["lake.sales.orders"][RETENTION]) == ("seaweedfs", 48)
    origin = found["lake.sales.orders"].origins[MIN_INPUT_FILES.name]
    assert [o.level for o in origin] == ["table", *["namespace"] * 3, "catalog", "catalog", "platform"]
    assert [o.value for o in origin] == [10, 9, 8, 7, 5, 6, 4]


def test_presets_and_guardrails(read: Read) -> None:
    """A preset is weaker than what stands beside it; a guardrail holds presets and defaults too, and says so."""
    config = read(
        LAKE,
        "guardrails: ['expire_snapshots.retention_hours >= 48', 'remove_orphans.older_than_hours >= 96']\n",
        "policy: [{match: lake, set: {preset: compliance, expire_snapshots.min_snapshots_to_keep: 7}}]\n",
    )
    knobs = config.policy.knobs_for(TableRef("lake", ("a",), "t"), None)
    assert knobs[RETENTION] == 48
    assert "guardrail" in knobs.origins[RETENTION.name][0].note
    assert knobs[KNOBS["expire_snapshots.min_snapshots_to_keep"]] == 7
    assert knobs[ORPHAN_AGE] == 96


@pytest.mark.parametrize(
    ("scope", "inside", "outside"),
    [
        ("{namespaces: 'analytics, events-*'}", ["analytics.t", "events-1.t"], ["analytics2.t", "xevents-1.t"]),
        ("{namespaces: [analytics, 'e?']}", ["analytics.t", "e1.t"], ["e12.t"]),
        ("{tables: 'clicks, orders-*'}", ["a.clicks", "b.c.orders-"], ["a.clicks2", "a.Clicks"]),
        ("{namespaces: 'a.*', tables: '*[1]'}", ["a.b.x[1]"], ["a.x[1]", "a.b.x1"]),
        ("{namespaces: '', tables: ' , '}", ["a.t"], []),
        ("{tables: 'grün%_*'}", ["a.grün%_1"], ["a.grünX_1"]),
    ],
)
def test_wildcards_of_a_scope(read: Read, scope: str, inside: list[str], outside: list[str]) -> None:
    """`*` and `?` are wildcards, everything else stands for itself; blank means all."""
    found = read(LAKE.replace("type: sql", f"type: sql, scope: {scope}")).catalogs["lake"].scope
    assert all(found.contains(TableRef.parse(f"lake.{name}")) for name in inside)
    assert not any(found.contains(TableRef.parse(f"lake.{name}")) for name in outside)


def test_everything_that_may_be_said(read: Read) -> None:
    """All sections together, numbers as text where properties are text, and nothing where a section is blank."""
    config = read(
        LAKE.replace("type: sql", "type: sql, enabled: true, allowed_locations: ['s3://a/', 's3://b/'], pool: big"),
        "pools: {big: {master: 'spark://host:7077', conf: {spark.executor.cores: 4, spark.ui.enabled: false}}}\n",
        "limits: {global: 9, per_operation: {compact: 1}, max_jobs_per_detection: 7, max_wait_hours: {low: 9},\n",
        "  namespaces: {lake.a-*: {max_concurrent: 2, gb_hours_per_day: 5}}}\n",
        "cache: {folder: /var/cache/x, max_mb: 2}\npolicy:\nguardrails:\nevents:\n",
        "server: {host: '::1', port: 0, max_body_mb: 16, requests_per_second: 7}\n",
    )
    assert config.catalogs["lake"].allowed_locations == ("s3://a/", "s3://b/")
    assert config.pools["big"].conf == {"spark.executor.cores": "4", "spark.ui.enabled": "false"}
    assert (config.limits.total, config.limits.max_jobs) == (9, 7)
    assert config.limits.max_wait == {**MAX_WAIT, "low": timedelta(hours=9)}
    assert config.limits.namespaces == {("lake", "a-*"): CatalogLimits(2, 5)}
    assert config.limits.per_operation[Operation.COMPACT] == 1
    assert config.limits.per_operation[Operation.EXPIRE_SNAPSHOTS] == 4
    assert (str(config.cache_folder), config.cache_bytes) == ("/var/cache/x", 2 * 1024 * 1024)
    assert (config.server.host, config.server.max_body_mb, config.server.requests_per_second) == ("::1", 16, 7)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "localhost", "::1", "::ffff:127.0.0.1"])
def test_this_machine_alone_may_push_events(read: Read, host: str) -> None:
    """Which needs neither tokens nor secrets."""
    assert read(LAKE, f"server: {{host: '{host}'}}\n").server.host == host


def test_who_may_push_events(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the server may listen to all; no repr shows tokens and secrets."""
    monkeypatch.setenv("HUSH", "hush-47114711471147114711")
    everywhere = "server: {host: 0.0.0.0}\n"
    for who in ("tokens", "secrets"):
        config = read(LAKE, everywhere, f"events: {{{who}: ['${{env:HUSH}}']}}\n")
        assert getattr(config.events, who) == ["hush-47114711471147114711"]
        assert "hush" not in repr(config)
        assert "hush" not in repr(config.events)


@pytest.mark.cases(153)
def test_a_service_that_others_reach_is_exposed_unless_callers_bring_tokens(read: Read) -> None:
    """Then it serves no API and no pages, where everybody on the machine would be an admin."""
    events, everywhere = "events: {tokens: [token-0123456789-hush]}\n", "server: {host: 0.0.0.0}\n"
    assert Settings.of(read(LAKE, events, everywhere)).exposed
    assert not Settings.of(read(LAKE, events, everywhere, "auth: {}\n")).exposed
    assert not Settings.of(read(LAKE, events, "server: {host: 127.0.0.1}\n")).exposed


def test_names_that_events_use(read: Read) -> None:
    """A catalog's aliases, its locations, and its table of commit reports."""
    more = "type: sql, aliases: [iceberg, 'spark_catalog'], commit_reports: ops.`a.b`"
    config = read(LAKE.replace("type: sql", more))
    lake = config.catalogs["lake"]
    assert (lake.aliases, lake.commit_reports) == (("iceberg", "spark_catalog"), ("ops", "a.b"))
    known = directory(config)
    assert (known.named("iceberg"), known.named("lake"), known.named("sea")) == ("lake", "lake", None)
    assert known.catalogs["lake"].locations == ("file:///data/",)


def test_where_the_configuration_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--config` comes before ICEWRIGHT_CONFIG, and that before icewright.yaml in the current folder."""
    for name in ("given.yaml", "named.yaml", "icewright.yaml"):
        (tmp_path / name).write_text(LAKE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert find_config(None).name == "icewright.yaml"
    monkeypatch.setenv("ICEWRIGHT_CONFIG", "named.yaml")
    assert find_config(None).name == "named.yaml"
    assert find_config("given.yaml") == tmp_path / "given.yaml"


def test_an_archive(read: Read) -> None:
    """Its tables are in scope in their catalog, whatever the lists say; nothing is archived without the section."""
    assert read(LAKE).archive is None
    narrow = LAKE.replace("type: sql,", 'type: sql, scope: {namespaces: "shop", tables: "a*"},')
    config = read(narrow, "archive: {catalog: lake}\n")
    assert config.archive is not None
    assert (config.archive.namespace, config.archive.after_days) == ("icewright", 30)
    scope = config.catalogs["lake"].scope
    names = [("shop", "apples"), ("shop", "pears"), ("icewright", "runs"), ("icewright2", "runs")]
    assert [scope.contains(TableRef("lake", (space,), name)) for space, name in names] == [True, False, True, False]
    nested = read(LAKE, "archive: {catalog: lake, namespace: ops.history, after_days: 7}\n").catalogs["lake"].scope
    assert nested.contains(TableRef("lake", ("ops", "history"), "runs"))


def test_alerts(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules keep their defaults where nothing is said; channels are secrets, whether or not they came from outside."""
    assert read(LAKE).alerts == AlertsConfig((), default_terms())
    monkeypatch.setenv("TOKEN", "hush-4711")
    config = read(
        LAKE,
        "alerts:\n  channels: ['json://localhost/${env:TOKEN}', 'json://localhost/written-here']\n"
        "  rules:\n    table_unhealthy: {below: 30}\n"
        "    stale: {enabled: false, severity: info, delay_minutes: 5, hours: 9}\n",
    )
    assert config.alerts.channels == ("json://localhost/hush-4711", "json://localhost/written-here")
    rules, given = default_terms(), config.alerts.rules
    assert given[AlertRule.STALE] == RuleTerms(
        enabled=False, severity=Severity.INFO, delay=timedelta(minutes=5), parameters={"hours": 9}
    )
    unhealthy = replace(rules[AlertRule.TABLE_UNHEALTHY], parameters={"below": 30, "hours": 6})
    assert given[AlertRule.TABLE_UNHEALTHY] == unhealthy
    others = set(AlertRule) - {AlertRule.STALE, AlertRule.TABLE_UNHEALTHY}
    assert all(given[rule] == rules[rule] for rule in others)
    assert config.secrets >= {"hush-4711", "json://localhost/hush-4711", "json://localhost/written-here"}
    assert "localhost" not in repr(config)
    assert "hush-4711" not in repr(config)


def test_the_log(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    """ICEWRIGHT_LOG wins over the file's level; a level that is none is a fault."""
    assert (read(LAKE).log.level, read(LAKE).log.format) == ("info", "auto")
    text = "log: {level: warning, format: json}\n"
    assert read(LAKE, text).log.level == "warning"
    monkeypatch.setenv("ICEWRIGHT_LOG", "DEBUG")
    assert (read(LAKE, text).log.level, read(LAKE, text).log.format) == ("debug", "json")
    monkeypatch.setenv("ICEWRIGHT_LOG", "loud")
    with pytest.raises(ConfigError, match=r"ICEWRIGHT_LOG\.level: text given; write debug, info, warning or error"):
        read(LAKE, text)
