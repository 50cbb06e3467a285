"""Policy rules that were set through the command line or the API, with all their versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from icewright.adapters.store.database import Database
from icewright.adapters.store.schema import POLICIES
from icewright.core.layering import PolicyRule
from icewright.core.policy import RENAMED
from icewright.ports import PolicyRules
from icewright.ports.views import RuleVersion

_RULES = sa.select(POLICIES.c.scope, POLICIES.c.settings).order_by(POLICIES.c.id)


@dataclass
class SqlRules(PolicyRules):
    """The PolicyRules port on a database."""

    db: Database

    def list(self) -> Sequence[PolicyRule]:
        with self.db.reading() as connection:
            newest = {tuple(scope): settings for scope, settings in connection.execute(_RULES)}
        return [
            PolicyRule(scope, {RENAMED.get(name, name): value for name, value in settings.items()}, "store")
            for scope, settings in newest.items()
        ]

    def put(
        self, match: tuple[str, ...], settings: Mapping[str, Any], author: str, now: datetime, expected: int | None
    ) -> int | None:
        with self.db.begin() as connection:
            if connection.dialect.name == "postgresql":  # two writers would choose the same version
                connection.exec_driver_sql("LOCK TABLE policies IN EXCLUSIVE MODE")
            rows = connection.execute(sa.select(POLICIES.c.scope, POLICIES.c.version)).all()
            current = max((row.version for row in rows if tuple(row.scope) == match), default=0)
            if expected is not None and expected != current:
                return None
            values = {"scope": list(match), "settings": dict(settings), "author": author, "at": now}
            connection.execute(sa.insert(POLICIES).values(**values, version=current + 1))
        return current + 1

    def versions(self, match: tuple[str, ...] | None = None) -> Sequence[RuleVersion]:
        with self.db.reading() as connection:
            rows = connection.execute(sa.select(POLICIES).order_by(POLICIES.c.id.desc())).all()
        versions = [RuleVersion(tuple(r.scope), r.settings, r.author, r.at, r.version) for r in rows]
        return [rule for rule in versions if match is None or rule.match == match]
