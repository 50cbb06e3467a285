"""Creates the demo's lakehouse: real Iceberg tables, each neglected in its own way, and two healthy ones."""

from __future__ import annotations

from collections.abc import Callable

from icewright.app.demo.lake import Lake, Rot
from icewright.app.demo.ops import ledger, metrics, shared, uploads
from icewright.app.demo.shop import customers, orders, payments, products, returns
from icewright.app.demo.web import clicks, events, sessions

__all__ = [
    "TABLES",
    "Lake",
    "Rot",
    "build",
    "clicks",
    "customers",
    "events",
    "ledger",
    "metrics",
    "orders",
    "payments",
    "products",
    "returns",
    "sessions",
    "shared",
    "uploads",
]

# tables that need Spark come last, so that Spark can start meanwhile
TABLES: tuple[Callable[[Lake], Rot], ...] = (
    clicks,
    events,
    sessions,
    payments,
    customers,
    products,
    metrics,
    uploads,
    shared,
    ledger,
    orders,
    returns,
)


def build(lake: Lake, print_line: Callable[[str], None]) -> tuple[Rot, ...]:
    """Create every table of the namespaces web, shop and ops, and report each one."""
    rots = []
    for make in TABLES:
        rot = make(lake)
        print_line(f"{rot.name}: {rot.story}")
        rots.append(rot)
    return tuple(rots)
