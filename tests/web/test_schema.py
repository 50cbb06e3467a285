"""The API against its own OpenAPI document, by requests that Schemathesis makes up."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.web.conftest import Served
from tests.web.test_access import API

pytestmark = [pytest.mark.external, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
EXAMPLES = 8


def test_what_the_document_says_holds(served: Served) -> None:
    """No made-up request is answered by an error inside, a status or a body that the document does not name."""
    import schemathesis
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import checks

    served.evaluate()
    app, host = served.app(requests_per_second=10**6), {"Host": "127.0.0.1:8765"}
    schema = schemathesis.openapi.from_asgi("/api/openapi.json", app, headers=host)
    wanted = [not_a_server_error, checks.status_code_conformance, checks.response_schema_conformance]
    client = served.client(served.app(requests_per_second=10**6))
    asked = 0

    def check(case: Any) -> None:
        nonlocal asked
        asked += 1
        answer = case.call(session=client, base_url="http://127.0.0.1:8765")
        case.validate_response(answer, checks=wanted)

    for result in schema.get_all_operations():
        found: Any = result
        operation = found.ok()
        if operation.path.startswith(API) and operation.path != f"{API}/events":
            bounds = settings(
                max_examples=EXAMPLES,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            draw: Any = given  # whose annotations leave out what a decorated function is
            made: Any = bounds(draw(operation.as_strategy())(check))
            made()
    assert asked > EXAMPLES
