"""The whole API under cases that Schemathesis makes from its own OpenAPI document.

Each operation gets requests that keep to the document and requests that do not, with a token, over
TCP. None is answered with 5xx, or with a status or a body that the document does not have.
API_CASES in the environment says how many there are in all. `test_accounts` shows that no route
answers without a token, or with a wrong one: these are slowed, and a case of each would take hours.
"""

import os
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import APIOperation, Case, GenerationMode
from schemathesis.checks import CHECKS, FailureGroup, load_all_checks

import patience
from forewarn.clock import ManualClock
from seeds import SEED
from server.running import Client, Running

load_all_checks()

pytestmark = pytest.mark.soak

CASES: Final = int(os.environ.get("API_CASES", "") or 400)
"""Of all operations together."""

JUDGED: Final = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
)

ENDLESS: Final = frozenset({"GET /v1/stream"})
"""Answers that do not end by themselves."""

KNOWN: Final[dict[str, tuple[Any, ...]]] = {
    "name": ("web-0", "web", "h0", "one"),
    "machine": ("web-0", "bastion"),
    "scope": ("web",),
    "host": ("h0", "h1"),
    "number": (1, 2),
    "references": (["1"], ["2.1", "1"]),
    "machines": (["web-0"], ["web-1", "web-2"]),
    "scopes": (["web"],),
    "hosts": (["h0"], ["h1", "h0"]),
    "unit": ("web-0", "h0"),
}
"""What there is: names that are made up are all answered 404."""


ASKED: Final = (
    {"event_type": "Reboot", "machines": ["web-0"]},
    {"event_type": "Freeze", "scopes": ["batch"], "opens_at": "2026-03-02T22:00:00Z"},
    {"event_type": "Reboot", "machines": ["web-1", "web-2"], "policy": {}},
)
"""So that something is over, something is under way, and something waits."""


@pytest.mark.timeout(3600)
def test_no_request_is_answered_with_5xx_or_against_the_document(
    service: Running, client: Client, clock: ManualClock
) -> None:
    for body in ASKED:
        assert client.ask("POST", "/v1/maintenances", body).status == 201
    clock.advance(timedelta(minutes=20))
    url = service.opened.operators[1]
    token = Path(service.settings.operator.token_file).read_text(encoding="ascii").strip()
    schema = schemathesis.openapi.from_dict(client.get("/v1/schema"))
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) > 40
    asked = Counter[str]()
    failed: list[str] = []
    for operation in operations:
        if operation.label in ENDLESS:
            continue
        for mode in GenerationMode:
            cases = max(1, CASES // len(operations) // len(GenerationMode))
            try:
                _judge(operation, mode, cases, url, token, asked)
            except (AssertionError, FailureGroup) as error:
                failed.append(f"{operation.label} ({mode.value}): {error}")
            except Unsatisfiable:
                assert mode is GenerationMode.NEGATIVE  # it takes nothing that could be wrong
    sys.stdout.write(f"{asked.total()} requests: {dict(sorted(asked.items()))}; SEED={SEED}\n")
    assert not failed, "\n\n".join(failed)
    assert client.get("/healthz")


def _judge(
    operation: APIOperation,
    mode: GenerationMode,
    cases: int,
    url: str,
    token: str,
    asked: Counter[str],
) -> None:
    checks = CHECKS.get_by_names(JUDGED)

    @seed(SEED)
    @settings(
        max_examples=cases,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(mode), data=st.data())
    def ask(case: Case, data: st.DataObject) -> None:
        _name_what_there_is(case, data)
        headers = {"Authorization": f"Bearer {token}"}
        answer = case.call(base_url=url, headers=headers, timeout=patience.SECONDS)
        asked[str(answer.status_code)] += 1
        case.validate_response(answer, checks=checks)

    ask()


def _name_what_there_is(case: Case, data: st.DataObject) -> None:
    """Put what there is in the place of some made-up names."""
    for place in (case.path_parameters, case.query, case.body):
        if not isinstance(place, dict):
            continue
        for name in KNOWN.keys() & place.keys():
            if data.draw(st.booleans()):
                place[name] = data.draw(st.sampled_from(KNOWN[name]))
