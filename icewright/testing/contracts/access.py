"""The contract of every store for tokens, sessions, the audit log, idempotency keys and policy rules."""

from __future__ import annotations

from datetime import timedelta

from icewright.core.layering import PolicyRule
from icewright.core.permissions import Grant, Role
from icewright.ports import Store
from icewright.ports.access import AuditRow, ClaimedRequest, SessionRow, TokenRow
from icewright.testing import NOW
from icewright.testing.contracts.cases import StoreSuite

SALES = (("lake", "sales"),)


class AccessTests(StoreSuite):
    """The contract of tokens, sessions, the audit log and idempotency keys."""

    def test_tokens_sessions_and_audit_entries_come_back_as_given(self, store: Store) -> None:
        """Tokens, sessions and audit entries are stored unchanged, and entries are listed by place, newest first."""
        token = TokenRow("a1", "digest", "ci", (Grant(Role.OWNER, SALES),), "me", NOW, NOW + timedelta(days=1))
        store.access.add_token(token)
        assert store.access.token("a1") == token
        store.access.record_token_use("a1", NOW)
        assert store.access.revoke_token("a1", NOW)
        assert not store.access.revoke_token("a1", NOW)
        assert [(row.used, row.revoked) for row in store.access.tokens()] == [(NOW, NOW)]
        session = SessionRow("d", "ann", (Grant(Role.ADMIN),), NOW, NOW, NOW + timedelta(hours=1), "a1")
        store.access.add_session(session)
        assert store.access.session("d") == session
        store.access.end_session("d")
        assert store.access.session("d") is None
        for place in (None, ("lake", "sales"), ("lake", "hr")):
            target = ".".join(place or ("everything",))
            store.audit.append(AuditRow(NOW, "me", "token", "jobs.run", target, place, False, "here", {"k": 1}))
        assert [row.place for row in store.audit.entries(None, None, 10)] == [("lake", "hr"), ("lake", "sales"), None]
        (entry,) = store.audit.entries(SALES, None, 10, actor="me", refused=False)
        assert store.audit.entries(SALES, entry.id, 10) == []
        assert store.audit.entries(None, None, 10, search="KE.S") == [entry]
        assert store.audit.entries(None, None, 10, search="%") == []
        later = NOW + timedelta(seconds=1)
        assert [len(store.audit.entries(None, None, 10, since=at)) for at in (NOW, later)] == [3, 0]

    def test_a_request_is_carried_out_once_per_key(self, store: Store) -> None:
        """A key is claimed once; a refused request, and one whose process died, may be sent again."""
        assert store.requests.begin("r", "b", NOW) is None
        assert store.requests.begin("r", "b", NOW) == ClaimedRequest("b", None)
        store.requests.end("r", {"job_id": "j"})
        assert store.requests.begin("r", "c", NOW) == ClaimedRequest("b", {"job_id": "j"})
        store.requests.end("r", None)
        assert store.requests.begin("r", "b", NOW) is None
        assert store.requests.begin("r", "b", NOW + timedelta(minutes=2)) is None


class PolicyRulesTests(StoreSuite):
    """The contract of policy rules and their versions."""

    def test_a_rule_is_changed_only_from_the_expected_version(self, store: Store) -> None:
        """A change that expects an older version than the newest is refused."""
        assert store.rules.put(("lake",), {"importance": "high"}, "a", NOW, 0) == 1
        assert store.rules.put(("lake",), {"importance": "low"}, "b", NOW, 0) is None
        assert store.rules.put(("lake",), {}, "b", NOW, 1) == 2
        assert [(v.version, v.author, dict(v.settings)) for v in store.rules.versions(("lake",))] == [
            (2, "b", {}),
            (1, "a", {"importance": "high"}),
        ]

    def test_the_newest_version_of_a_rule_holds(self, store: Store) -> None:
        """The newest version of a rule holds, and earlier versions keep author and time."""
        rules = [
            PolicyRule(("lake", "a.b"), {"compact.where": "x = '☃'"}),
            PolicyRule((), {"preset": "streaming"}),
            PolicyRule((), {}),
        ]
        for number, rule in enumerate(rules):
            store.rules.put(rule.match, rule.settings, f"author {number}", NOW, None)
        assert set(map(str, store.rules.list())) == {"lake.a.b", "platform"}
        assert [(r.match, r.settings, r.source) for r in store.rules.list()] == [
            (("lake", "a.b"), {"compact.where": "x = '☃'"}, "store"),
            ((), {}, "store"),
        ]
        versions = [(v.version, v.author, v.at) for v in reversed(store.rules.versions())]
        assert versions == [(n, f"author {i}", NOW) for i, n in enumerate((1, 1, 2))]
