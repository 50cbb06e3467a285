"""Generated rows, as columns, for the demo's tables."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

Columns = Mapping[str, Sequence[Any]]
Source = Callable[[random.Random, int, datetime], Columns]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PAGES = ("/", "/cart", "/checkout", "/help", "/product", "/search")
_COUNTRIES = ("BR", "DE", "IN", "US")
REGIONS = ("apac", "emea", "latam", "noram")


def spread(first: datetime, last: datetime, count: int, rng: random.Random) -> list[datetime]:
    """Return rising times from `first` to `last`, evenly spread with a little jitter."""
    step = (last - first) / max(count - 1, 1)
    inner = [first + step * (i + rng.uniform(-0.4, 0.4)) for i in range(1, count - 1)]
    return [first, *inner, last][-count:]


def micros(at: datetime) -> int:
    """Return a time as microseconds since 1970."""
    return (at - _EPOCH) // timedelta(microseconds=1)


def _timestamps(rng: random.Random, rows: int, end: datetime, seconds: int) -> list[int]:
    """Return rising times in microseconds within the `seconds` before `end` that lie on the same day as `end`."""
    last = micros(end)
    first = max(last - seconds * 1_000_000, micros(datetime.combine(end.date(), datetime.min.time(), UTC)))
    return sorted(rng.randint(first, last) for _ in range(rows))


def clicks(rng: random.Random, rows: int, at: datetime) -> Columns:
    """Return clicks of the minutes before `at`, all on the same day."""
    return {
        "click_id": [rng.getrandbits(62) for _ in range(rows)],
        "ts": _timestamps(rng, rows, at, 1200),
        "user": [f"user-{rng.randrange(5000)}" for _ in range(rows)],
        "page": rng.choices(_PAGES, k=rows),
        "millis": [None if rng.random() < 0.05 else rng.randrange(20, 9000) for _ in range(rows)],  # noqa: PLR2004
    }


def events(rng: random.Random, rows: int, at: datetime) -> Columns:
    """Return app events with a nested column, all on the day of `at`."""
    return {
        "event_id": [rng.randbytes(16).hex() for _ in range(rows)],
        "ts": _timestamps(rng, rows, at, 7200),
        "kind": rng.choices(("error", "open", "screen", "tap"), k=rows),
        "context": [
            {"os": rng.choice(("android", "ios", "web")), "tags": rng.sample(_PAGES, rng.randrange(3))}
            if rng.random() < 0.9  # noqa: PLR2004
            else None
            for _ in range(rows)
        ],
    }


def sessions(rng: random.Random, rows: int, at: datetime) -> Columns:
    """Return sessions with a map of browser attributes."""
    return {
        "session_id": [rng.randbytes(8).hex() for _ in range(rows)],
        "started": _timestamps(rng, rows, at, 86_400),
        "seconds": [rng.expovariate(1 / 300) for _ in range(rows)],
        "flags": [[(key, str(rng.randrange(3))) for key in rng.sample(("ab", "beta", "dnt"), 2)] for _ in range(rows)],
    }


def samples(rng: random.Random, rows: int, at: datetime) -> Columns:
    """Return measurements that hosts reported before `at`."""
    return {
        "host": [f"host-{rng.randrange(40):02d}" for _ in range(rows)],
        "ts": _timestamps(rng, rows, at, 3600),
        "load": [rng.choice((None, float("nan"), -0.0)) if rng.random() < 0.02 else rng.random() for _ in range(rows)],  # noqa: PLR2004
    }


def entries(rng: random.Random, rows: int, at: datetime) -> Columns:
    """Return lines of a ledger that were booked before `at`."""
    return {
        "entry_id": [rng.getrandbits(60) for _ in range(rows)],
        "booked": _timestamps(rng, rows, at, 7200),
        "account": [rng.randrange(100, 999) for _ in range(rows)],
        "amount": [Decimal(rng.randrange(-500_000, 500_000)).scaleb(-2) for _ in range(rows)],
    }


def uploads(rng: random.Random, rows: int, at: datetime) -> Columns:
    """Return files that people sent before `at`."""
    return {
        "upload_id": [rng.getrandbits(62) for _ in range(rows)],
        "ts": _timestamps(rng, rows, at, 3600),
        "digest": [rng.randbytes(32) for _ in range(rows)],
        "bytes": [rng.randrange(1 << 30) for _ in range(rows)],
    }


def orders(rng: random.Random, rows: int, at: datetime, region: str, first: int) -> Columns:
    """Return orders of one region, numbered from `first`."""
    return {
        "order_id": list(range(first, first + rows)),
        "region": [region] * rows,
        "customer_id": [rng.randrange(2000) for _ in range(rows)],
        "status": rng.choices(("cancelled", "open", "paid", "shipped"), (1, 3, 3, 3), k=rows),
        "amount": [Decimal(rng.randrange(100, 90_000)).scaleb(-2) for _ in range(rows)],
        "ordered": _timestamps(rng, rows, at, 7200),
    }


def payment_orders(ids: Sequence[int]) -> Columns:
    """Return the order and method of payments, which are another key of theirs."""
    return {
        "order_id": [100_000 + payment // 2 for payment in ids],
        "method": ["card" if payment % 2 else "transfer" for payment in ids],
    }


def payments(rng: random.Random, ids: Sequence[int], at: datetime) -> Columns:
    """Return one payment for each id, received in the hour before `at`."""
    return {
        "payment_id": list(ids),
        **payment_orders(ids),
        "amount": [Decimal(rng.randrange(100, 90_000)).scaleb(-2) for _ in ids],
        "paid": _timestamps(rng, len(ids), at, 3600),
    }


def customers(rng: random.Random, rows: int, at: datetime, first: int) -> Columns:
    """Return customers numbered from `first`, with the original column names."""
    return {
        "customer_id": list(range(first, first + rows)),
        "name": [f"Customer {rng.randbytes(4).hex()}" for _ in range(rows)],
        "country": rng.choices(_COUNTRIES, k=rows),
        "since": [(at - timedelta(days=rng.randrange(900))).date() for _ in range(rows)],
    }


def products(rng: random.Random, rows: int, first: int) -> Columns:
    """Make rows of products, numbered from `first`."""
    return {
        "product_id": list(range(first, first + rows)),
        "title": [f"{rng.choice(('big', 'plain', 'small'))} thing {rng.randbytes(6).hex()}" for _ in range(rows)],
        "price": [Decimal(rng.randrange(100, 90_000)).scaleb(-2) for _ in range(rows)],
        "listed": [date(2025, 1, 1) + timedelta(days=rng.randrange(500)) for _ in range(rows)],
    }
