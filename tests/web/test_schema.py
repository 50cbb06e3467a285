"""The API against its own OpenAPI document, by requests that Schemathesis makes up."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.web.conftest import Served
from tests.web.test_access import API

pytestmark = [pytest.mark.external, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
EXAMPLES = 8


def test_what_the_document_says_holds(served: Served) -> None:
    """No made-up request is answered by an error inside, or by what the document does not name."""
    import schemathesis
    from schemathesis import checks

    served.evaluate()
    app = served.app(requests_per_second=10**6)
    schema = schemathesis.openapi.from_asgi("/api/openapi.json", app)
    wanted = (checks.not_a_server_error, *checks.load_all_checks() or ())
    asked = 0

    def check(case: Any) -> None:
        nonlocal asked
        asked += 1
        answer = case.call(base_url="http://127.0.0.1:8765", headers={"host": "127.0.0.1"})
        assert answer.status_code < 500 or answer.status_code == 503, answer.text
        case.validate_response(answer, checks=list(wanted[:1]))

    for result in schema.get_all_operations():
        operation = result.ok()
        if not operation.path.startswith(API):
            continue
        case = operation.as_strategy()
        given = settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        from hypothesis import given as draw

        given(draw(case)(check))()
    assert asked > EXAMPLES
