"""Alerts from what the store says to what channels hear: each once, whatever breaks in between."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import pairwise
from threading import Barrier
from typing import Any

import pytest

from icewright.adapters.store.alerts import SqlAlerts
from icewright.core.alerts import AlertRule, RuleTerms, Severity, default_terms
from icewright.core.capacity import CatalogLimits, PoolLimits
from icewright.core.errors import CatalogUnavailable, ChannelUnavailable, MetadataUnreadable, StorageUnavailable
from icewright.core.policy import Operation
from icewright.core.runs import failed
from icewright.core.table import TableRef
from icewright.flow.alert import CLAIM, Alerting, alert_due
from icewright.flow.runtime import Runtime, Scope
from icewright.ports import AlertQuery, Notifier, PendingDelivery, ProcessRow, StepRequest, Trigger
from icewright.testing import REF
from tests.flow.bench import COMPACT, EXPIRE, Bench

HOUR = timedelta(hours=1)
EVERY = AlertQuery(resolved=None)


@dataclass
class Channel:
    """A channel that writes down what it was told; `down` is why it takes nothing."""

    down: str = ""
    titles: list[str] = field(default_factory=list)
    bodies: list[str] = field(default_factory=list)
    before: Callable[[], None] = lambda: None
    attempts: int = 0

    def send(self, title: str, body: str, severity: Severity) -> None:
        """Take it, or not."""
        self.attempts += 1
        self.before()
        if self.down:
            raise ChannelUnavailable(self.down)
        self.titles.append(title)
        self.bodies.append(body)


def at_once(**terms: Any) -> Mapping[AlertRule, RuleTerms]:
    """The rules by default but without delays."""
    return {rule: replace(found, delay=timedelta(0), **terms) for rule, found in default_terms().items()}


def look(bench: Bench, *channels: Channel, rules: Mapping[AlertRule, RuleTerms] | None = None, **ports: Any) -> int:
    """One round of the alerts."""
    names: dict[str, Notifier] = {f"c{n}": channel for n, channel in enumerate(channels)}
    return alert_due(bench.runtime(**ports), Alerting(names, rules or at_once()))


def failing(bench: Bench) -> None:
    """Make a table whose jobs fail."""
    bench.table()
    bench.engine.function = lambda a: failed(a.operation, "no space")
    bench.run(EXPIRE)


def test_a_failed_job(bench: Bench) -> None:
    """Told once when it fails and once when a later run succeeds, however often is looked."""
    failing(bench)
    slack = Channel()
    for _ in range(3):
        look(bench, slack)
    assert slack.titles == [f"[warning] job_failed: {REF}"]
    assert "expire_snapshots failed: no space" in slack.bodies[0]
    bench.engine.function = bench._work
    bench.run(EXPIRE)
    for _ in range(3):
        look(bench, slack)
    assert slack.titles[1:] == [f"[resolved] job_failed: {REF}"]
    kinds = [kind for kind, _ in bench.told if kind.startswith("alert_")]
    assert kinds == ["alert_raised", "alert_resolved"]


def test_the_circuit_breaker(bench: Bench) -> None:
    """A table that failed three times is paused, and both is told; resumed, the pause is over."""
    bench.table()
    bench.engine.function = lambda a: failed(a.operation, "no space")
    for _ in range(3):
        bench.run(EXPIRE)
    slack = Channel()
    look(bench, slack)
    assert slack.titles == [f"[warning] job_failed: {REF}", f"[warning] table_paused: {REF}"]
    bench.store.tables.pause(REF, None)
    look(bench, slack)
    assert slack.titles[2:] == [f"[resolved] table_paused: {REF}"]


def test_a_verification_that_failed(bench: Bench) -> None:
    """Its own rule, of the highest severity, in place of the pause's."""
    bench.rot(bench.table())

    def after(request: StepRequest) -> None:
        now = bench.catalog.load(request.base.ref)
        last = replace(now.snapshots[-1], summary={**now.snapshots[-1].summary, "added-records": "9"})
        bench.catalog.concurrently(request.base.ref, snapshots=(*now.snapshots[:-1], last))

    bench.after = after
    bench.run(COMPACT)
    slack = Channel()
    look(bench, slack)
    assert f"[critical] verification_failed: {REF}" in slack.titles
    assert not any("table_paused" in title for title in slack.titles)


def test_a_catalog_that_cannot_be_read(bench: Bench) -> None:
    """Told after its delay; one that answers again before then leaves nothing."""
    slack = Channel()
    for minutes, down in ((0, True), (3, True), (1, False), (1, True), (4, True), (1, True), (9, True)):
        bench.clock.advance(minutes=minutes)
        bench.catalog.down = CatalogUnavailable("refused") if down else None
        bench.cycle()
        look(bench, slack, rules=default_terms())
    assert slack.titles == ["[critical] catalog_unreachable: lake"]
    bench.catalog.down = None
    bench.cycle()
    look(bench, slack, rules=default_terms())
    assert slack.titles[1:] == ["[resolved] catalog_unreachable: lake"]


def test_a_table_that_cannot_be_read(bench: Bench) -> None:
    """It is told; what was known of its health before is neither resolved nor told again meanwhile."""
    bench.rot(bench.table())
    bench.cycle(dry_run=True)
    rules = {
        **at_once(),
        AlertRule.TABLE_UNHEALTHY: RuleTerms(True, Severity.INFO, HOUR * 0, {"below": 100, "hours": 0}),
    }
    slack = Channel()
    look(bench, slack, rules=rules)
    assert slack.titles == [f"[info] table_unhealthy: {REF}"]
    bench.files.broken[REF] = MetadataUnreadable("m1 is gone")
    bench.clock.advance(hours=2)
    bench.catalog.concurrently(REF)
    bench.cycle(dry_run=True)
    look(bench, slack, rules=rules)
    assert slack.titles[1:] == [f"[warning] unmaintainable: {REF}"]
    assert "the table cannot be read: MetadataUnreadable: m1 is gone" in slack.bodies[1]


@pytest.mark.parametrize("scope", [Scope(), Scope(enabled=True, tables="others-*")])
def test_tables_that_are_not_maintained(bench: Bench, scope: Scope) -> None:
    """Nobody is told that what is out of scope, or in a catalog that is off, is unwell, nor that it is well again."""
    bench.rot(bench.table())
    bench.cycle(dry_run=True)
    bench.scopes["lake"] = scope
    rules = {
        **at_once(),
        AlertRule.TABLE_UNHEALTHY: RuleTerms(True, Severity.INFO, HOUR * 0, {"below": 100, "hours": 0}),
    }
    look(bench, slack := Channel(), rules=rules)
    assert slack.titles == []
    bench.files.broken[bench.table("unread")] = MetadataUnreadable("m1 is gone")
    del bench.scopes["lake"]
    bench.cycle(dry_run=True)
    look(bench, slack, rules=rules)
    told = slack.titles.copy()
    assert len(told) == 2, told
    bench.scopes["lake"] = scope
    look(bench, slack, rules=rules)
    assert slack.titles == told


def test_a_budget(bench: Bench) -> None:
    """Told when the day's budget is spent, over at midnight."""
    bench.table()
    bench.limits = replace(
        bench.limits, catalogs={"lake": CatalogLimits(None, 0.5)}, pools={"default": PoolLimits(2, 1.0)}
    )
    bench.engine.function = lambda a: replace(bench._work(a), metrics={"gb_hours": 0.5})
    bench.run(EXPIRE)
    look(bench, slack := Channel())
    assert slack.titles == ["[warning] budget_spent: catalog lake"]
    bench.clock.advance(hours=13)
    look(bench, slack)
    assert "[resolved] budget_spent: catalog lake" in slack.titles


def test_processes_and_their_loops(bench: Bench) -> None:
    """What services and workers say of themselves, and that they say nothing."""
    loops = {"evaluate": {"failures": 3, "error": "StorageUnavailable: away", "lag_seconds": 1.0}}
    now = bench.clock.now()
    bench.store.processes.record_heartbeat(ProcessRow("a:1:1", "service", now, now, 0, {"loops": loops}))
    look(bench, slack := Channel())
    assert slack.titles == ["[critical] loop_failing: loop evaluate"]
    bench.clock.advance(minutes=6)
    bench.store.processes.record_heartbeat(ProcessRow("b:1:1", "worker", now, bench.clock.now(), 4, {}))
    look(bench, slack)
    assert slack.titles[1:] == ["[warning] worker_lost: service"]
    bench.store.processes.deregister(["a:1:1"])
    look(bench, slack)
    assert sorted(slack.titles[2:]) == ["[resolved] loop_failing: loop evaluate", "[resolved] worker_lost: service"]


def test_catalogs_of_other_services(bench: Bench) -> None:
    """A service leaves alerts about catalogs alone that it does not know, until nobody asks them any more."""
    bench.table(catalog="pond")
    bench.catalogs["pond"].down = CatalogUnavailable("refused")
    bench.cycle()
    look(bench, slack := Channel())
    assert slack.titles == ["[critical] catalog_unreachable: pond"]
    del bench.catalogs["pond"]
    look(bench, slack)
    assert len(slack.titles) == 1
    bench.clock.advance(days=2)
    look(bench, slack)
    assert "[resolved] catalog_unreachable: pond" in slack.titles


def test_a_channel_that_is_down(bench: Bench) -> None:
    """Nothing is lost and nothing doubled: it is tried again, ever later, and the others are told at once."""
    failing(bench)
    slack, mail = Channel(down="refused"), Channel()
    attempts = []
    for _ in range(35):
        before = slack.attempts
        look(bench, slack, mail)
        if slack.attempts > before:
            attempts.append(bench.clock.now())
        bench.clock.advance(minutes=1)
    assert mail.titles == [f"[warning] job_failed: {REF}"]
    waits = [round((b - a) / timedelta(minutes=1)) for a, b in pairwise(attempts)]
    assert waits == [1, 2, 4, 8, 16]
    assert bench.told[-1] == ("alert_delivery_failed", {"channel": "c0", "failures": 6, "error": "refused"})
    slack.down = ""
    for _ in range(3):
        bench.clock.advance(hours=1)
        look(bench, slack, mail)
    assert slack.titles == mail.titles


def test_down_until_it_is_over(bench: Bench) -> None:
    """A channel that was down all the while hears of the beginning, then of the end."""
    failing(bench)
    slack = Channel(down="refused")
    look(bench, slack)
    bench.engine.function = bench._work
    bench.run(EXPIRE)
    look(bench, slack)
    slack.down = ""
    for _ in range(3):
        bench.clock.advance(hours=1)
        look(bench, slack)
    assert slack.titles == [f"[warning] job_failed: {REF}", f"[resolved] job_failed: {REF}"]


def test_two_services(bench: Bench) -> None:
    """Of services that look at the same time, one tells."""
    failing(bench)
    slack, start = Channel(), Barrier(4)

    def run(number: int) -> None:
        runtime = replace(bench.runtime(), trigger=Trigger("cycle", "me", f"host:{number}:1"))
        start.wait()
        alert_due(runtime, Alerting({"slack": slack}, at_once()))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, range(4)))
    assert slack.titles == [f"[warning] job_failed: {REF}"]


def test_a_service_that_takes_too_long(bench: Bench) -> None:
    """Its turn passes to another while it tells; what it has claimed is still its own."""
    failing(bench)
    slack = Channel()

    def meanwhile() -> None:
        slack.before = lambda: None
        bench.clock.advance(minutes=3)
        other = replace(bench.runtime(), trigger=Trigger("cycle", "me", "other:1:1"))
        alert_due(other, Alerting({"c0": slack}, at_once()))

    slack.before = meanwhile
    look(bench, slack)
    assert slack.titles == [f"[warning] job_failed: {REF}"]


def test_a_service_that_is_killed_before_it_tells(bench: Bench) -> None:
    """What it had claimed, the next one tells when the claim has run out."""
    failing(bench)
    slack = Channel()

    def die() -> None:
        raise KeyboardInterrupt

    slack.before = die
    with pytest.raises(KeyboardInterrupt):
        look(bench, slack)
    slack.before = lambda: None
    look(bench, slack)
    assert slack.titles == []
    bench.clock.time += CLAIM
    look(bench, slack)
    look(bench, slack)
    assert slack.titles == [f"[warning] job_failed: {REF}"]


class _Forgetful(SqlAlerts):
    """Alerts of a store that is away when a delivery is first marked."""

    fails = 1

    def mark_delivered(self, deliveries: Sequence[PendingDelivery], now: datetime) -> None:
        """Fail the first time, then mark the deliveries."""
        if self.fails and deliveries:
            self.fails -= 1
            raise StorageUnavailable("away")
        super().mark_delivered(deliveries, now)


def test_a_store_that_is_away_when_it_was_told(bench: Bench) -> None:
    """The service knows what it told, and writes it down later instead of telling it again."""
    failing(bench)
    slack = Channel()
    bench.store.alerts = _Forgetful(bench.store.db)
    runtime, alerting = bench.runtime(), Alerting({"slack": slack}, at_once())
    with pytest.raises(StorageUnavailable):
        alert_due(runtime, alerting)
    for _ in range(3):
        bench.clock.time += CLAIM
        alert_due(runtime, alerting)
    assert slack.titles == [f"[warning] job_failed: {REF}"]
    assert bench.store.alerts.list()[0].deliveries[0].told_at is not None


def test_a_storm(bench: Bench) -> None:
    """A dozen tables that fail at once are one message."""
    refs = [bench.table(f"t{n}") for n in range(12)]
    bench.engine.function = lambda a: failed(a.operation, "no space")
    bench.limits = replace(bench.limits, total=100, max_jobs=100, per_operation=dict.fromkeys(Operation, 100))
    bench.cycle()
    look(bench, slack := Channel())
    assert slack.titles == [f"[warning] job_failed: {len(refs)} alerts"]
    assert len(bench.store.alerts.list()) == len(refs)


def test_a_message_that_a_channel_never_takes(bench: Bench) -> None:
    """It goes last, so that it holds nothing else up for ever."""
    failing(bench)
    slack = Channel()
    slack.down = "refused"
    look(bench, slack)
    bench.clock.advance(hours=1)
    bench.store.tables.pause(REF, "by hand")

    def picky() -> None:
        slack.down = "refused" if slack.attempts > 2 else ""

    slack.before = picky
    look(bench, slack)
    assert slack.titles == [f"[warning] table_paused: {REF}"]


def test_without_channels(bench: Bench) -> None:
    """Alerts are kept for whoever looks; a channel that comes later hears of what is open."""
    failing(bench)
    assert look(bench) == 1
    assert look(bench) == 0
    (alert,) = bench.store.alerts.list()
    assert (alert.ref, alert.deliveries) == (REF, ())
    look(bench, slack := Channel())
    assert slack.titles == [f"[warning] job_failed: {REF}"]


def test_a_process_that_stops(bench: Bench) -> None:
    """It tells nothing more; what is left, others tell."""
    failing(bench)
    runtime: Runtime = replace(bench.runtime(), stopping=lambda: True)
    slack = Channel()
    alert_due(runtime, Alerting({"c0": slack}, at_once()))
    assert slack.titles == []
    bench.clock.time += CLAIM
    look(bench, slack)
    assert len(slack.titles) == 1


def test_other_tables_are_left_alone(bench: Bench) -> None:
    """A table that is well has no alert."""
    bench.table()
    bench.run(EXPIRE)
    look(bench, slack := Channel())
    assert slack.titles == []
    assert bench.store.tables.get(TableRef("lake", ("sales",), "orders")) is not None


def heard(channel: Channel) -> dict[str, list[bool]]:
    """Of each table, what the channel was told in order: True that it is paused, False that it is over."""
    found: dict[str, list[bool]] = {}
    for title, body in zip(channel.titles, channel.bodies, strict=True):
        many = title.endswith(" alerts")
        names = [line.partition(": ")[0] for line in body.splitlines()] if many else [title.rpartition(": ")[2]]
        for name in names:
            if name.startswith("lake."):
                found.setdefault(name, []).append("[resolved]" not in title)
    return found


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.external) for seed in (1, 2, 3))])
def test_a_long_history(bench: Bench, seed: int) -> None:
    """Whatever comes and goes, channels break and services die: every channel hears every alert once, in order."""
    rng = random.Random(seed)
    refs = [bench.table(f"t{n}") for n in range(4)]
    bench.store.tables.record_listing("lake", bench.catalog.pointers(), bench.clock.now())
    channels = [Channel(), Channel()]
    services = [Alerting({f"c{n}": channel for n, channel in enumerate(channels)}, at_once()) for _ in range(2)]

    def die() -> None:
        if rng.random() < 0.2:
            raise KeyboardInterrupt

    for _ in range(40):
        bench.store.tables.pause(rng.choice(refs), rng.choice([None, "by hand"]))
        for channel in channels:
            channel.down, channel.before = rng.choice(["", "", "refused"]), die
        with suppress(KeyboardInterrupt):
            alert_due(bench.runtime(), rng.choice(services))
        bench.clock.advance(minutes=rng.choice([0, 1, 5, 30]))
    for channel in channels:
        channel.down, channel.before = "", lambda: None
    bench.clock.advance(hours=1)
    while alert_due(bench.runtime(), services[0]):
        pass
    wanted: dict[str, list[bool]] = {}
    for alert in reversed(bench.store.alerts.list(EVERY)):
        wanted.setdefault(alert.subject, []).extend([True, False] if alert.resolved_at else [True])
    assert sum(map(len, wanted.values())) > 10
    assert [heard(channel) for channel in channels] == [wanted, wanted]
