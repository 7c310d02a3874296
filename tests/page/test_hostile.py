"""Whatever a browser sends, the page refuses it or does it, and never breaks."""

import re
from collections.abc import Iterator
from urllib.parse import quote, urlencode

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forewarn.server.operator import table
from forewarn.store.sqlite import InMemoryStore
from server.running import Client, Running, fleet, roles, settings_in

MARKUP = "<script>document.title = 'run'</script>"
TEXTS = st.one_of(
    st.sampled_from(("1", "1.1", "9.9", "web-0", "web", "-1", "0", "everything", "Reboot", MARKUP)),
    st.text(min_size=1, max_size=20),
)
FIELDS = (
    *("q", "key", "range", "choice", "cursor", "machine", "scope", "host", "type", "status"),
    *("since", "until", "event_type", "machines", "reason", "name", "kind", "not_before"),
)
LEFT_OUT = {"GET /page/stream", "POST /login", "POST /logout"}
"""What has no end, and what makes whoever fails wait."""
ROUTES = [route for route in roles(table.PAGE.routes) if route not in LEFT_OUT]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    wanted = settings_in(tmp_path_factory.mktemp("hostile"), listen="127.0.0.1:0")
    with Running(wanted, InMemoryStore()) as opened:
        assert opened.client().ask("PUT", "/v1/fleet", fleet()).status == 200
        yield opened


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    route=st.sampled_from(ROUTES),
    segments=st.lists(TEXTS, min_size=3, max_size=3),
    fields=st.dictionaries(st.sampled_from(FIELDS), TEXTS, max_size=4),
    is_script=st.booleans(),
)
def test_no_request_is_an_internal_error(
    running: Running, route: str, segments: list[str], fields: dict[str, str], *, is_script: bool
) -> None:
    method, path = route.split()
    given_segments = iter(segments)
    path = re.sub(r"\{\w+\}", lambda _: quote(next(given_segments), safe=""), path)
    encoded = urlencode(fields, errors="surrogatepass")
    headers = {"HX-Request": "true"} if is_script else {}
    body = None
    if method == "GET":
        path += f"?{encoded}"
    else:
        body = encoded.encode()
        headers["Content-Type"] = "application/x-www-form-urlencoded"
    answer = running.client().ask(method, path, body, headers)
    assert answer.status < 500, answer.body


@pytest.mark.parametrize("body", [b"\xff", b"a" * 2_000_000, b"=&=&%", b"token=" + b"%00" * 100])
def test_a_body_that_is_no_form_is_refused(running: Running, body: bytes) -> None:
    url = running.opened.operators[1]
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Origin": url}
    answer = Client(url).ask("POST", "/login", body, headers)
    assert 400 <= answer.status < 500, answer.body


def test_a_form_may_not_be_json_nor_an_order_to_the_api_a_form(running: Running) -> None:
    assert running.client().ask("POST", "/login", {"token": "x"}).status == 415
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    assert running.client().ask("POST", "/v1/tokens/page", b"token=x", headers).status == 415
