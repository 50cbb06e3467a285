"""Who may judge what: no process raises, resolves or keeps open an alert that it cannot tell anything about."""

from __future__ import annotations

from dataclasses import replace

from icewright.core.capacity import CatalogLimits
from icewright.core.errors import CatalogUnavailable
from icewright.flow.alert import Alerting, alert_due
from icewright.ports import ProcessRow, Trigger
from icewright.testing import FixedClock
from tests.flow.bench import EXPIRE, Bench
from tests.flow.test_alert import Channel, at_once, look


class Service:
    """A process that looks at alerts, and of whose detection nothing is heard."""

    def __init__(self, bench: Bench, channel: Channel, holder: str = "host:9:9", kind: str = "service") -> None:
        self._kind = kind
        self._bench, self._holder, self._started = bench, holder, bench.clock.now()
        self._alerting = Alerting({"c0": channel}, at_once())

    def look(self) -> None:
        """One heartbeat, and one round of the alerts."""
        clock: FixedClock = self._bench.clock
        self._bench.store.processes.record_heartbeat(
            ProcessRow(self._holder, self._kind, self._started, clock.now(), 0, {})
        )
        alert_due(replace(self._bench.runtime(), trigger=Trigger("service", "me", self._holder)), self._alerting)


def later(bench: Bench) -> None:
    """A quarter of an hour goes by."""
    bench.clock.advance(minutes=15)


def test_a_long_pass(bench: Bench) -> None:
    """A pass that takes longer than ten intervals raises nothing about the catalog that it has read at its start."""
    bench.table()
    bench.after = lambda _: later(bench)
    bench.cycle()
    look(bench, slack := Channel())
    assert slack.titles == []


def test_a_pass_for_each_catalog(bench: Bench) -> None:
    """Passes that come in turn, each for a catalog of its own, raise nothing about the other's."""
    bench.table()
    bench.table(catalog="pond")
    slack = Channel()
    for _ in range(3):
        for name in ("lake", "pond"):
            bench.cycle(name)
            look(bench, slack)
            bench.clock.advance(minutes=30)
    assert slack.titles == []


def test_a_service_that_starts_after_downtime(bench: Bench) -> None:
    """It gives its own detection the time that the rule allows, counted from its start."""
    bench.table()
    bench.cycle()
    bench.clock.advance(hours=1)
    service = Service(bench, slack := Channel())
    for _ in range(2):
        service.look()
        bench.clock.advance(minutes=10)
    assert slack.titles == []
    service.look()
    assert slack.titles == ["[critical] no_detection: lake"]


def test_a_process_that_detects_nothing(bench: Bench) -> None:
    """A worker raises nothing however long it is up: it would not ask the catalog itself."""
    bench.table()
    bench.cycle()
    worker = Service(bench, slack := Channel(), kind="worker")
    bench.clock.advance(hours=1)
    worker.look()
    assert slack.titles == []


def unasked(bench: Bench) -> None:
    """Two catalogs that a service in which detection hangs has raised alerts about, a minute ago."""
    bench.table()
    bench.table(catalog="pond")
    bench.cycle()
    service = Service(bench, Channel())
    bench.clock.advance(minutes=11)
    service.look()
    assert raised(bench) == ["lake", "pond"]
    bench.clock.advance(minutes=1)


def raised(bench: Bench) -> list[str]:
    """What the alerts that are open are about."""
    return sorted(alert.subject for alert in bench.store.alerts.unresolved())


def test_a_pass_elsewhere_resolves_nothing(bench: Bench) -> None:
    """The alert about a catalog that a pass has not read stays open; that of the one that it has read is over."""
    unasked(bench)
    bench.cycle("pond")
    look(bench)
    assert raised(bench) == ["lake"]


def test_a_long_pass_resolves_what_it_has_read(bench: Bench) -> None:
    """The alert is over once a pass has read the catalog, however long the pass takes from there."""
    unasked(bench)
    bench.after = lambda _: later(bench)
    bench.cycle()
    look(bench)
    assert raised(bench) == []


def test_a_restart_resolves_nothing(bench: Bench) -> None:
    """A service that has just started does not know that the catalog is asked again, until it is."""
    unasked(bench)
    service = Service(bench, Channel(), "host:10:10")
    service.look()
    assert raised(bench) == ["lake", "pond"]
    bench.cycle()
    service.look()
    assert raised(bench) == []


def test_asked_in_vain(bench: Bench) -> None:
    """A catalog that was asked and fails is no longer one that nobody asks, in any process."""
    unasked(bench)
    bench.catalog.down = CatalogUnavailable("refused")
    bench.cycle("lake")
    look(bench)
    found = {str(alert.rule) for alert in bench.store.alerts.unresolved() if alert.subject == "lake"}
    assert found == {"catalog_unreachable"}


def test_a_budget_of_another_service(bench: Bench) -> None:
    """A service without the budget leaves the alert about it open, until the day is over."""
    bench.table()
    mine, none = replace(bench.limits, catalogs={"lake": CatalogLimits(None, 0.5)}), bench.limits
    bench.engine.function = lambda a: replace(bench._work(a), metrics={"gb_hours": 0.5})
    bench.run(EXPIRE)
    slack = Channel()
    for bench.limits in (mine, none, mine, none):
        look(bench, slack)
        bench.clock.advance(seconds=10)
    assert slack.titles == ["[warning] budget_spent: catalog lake"]
    bench.clock.advance(hours=12)
    look(bench, slack)
    assert slack.titles[1:] == ["[resolved] budget_spent: catalog lake"]
