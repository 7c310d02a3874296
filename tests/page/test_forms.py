"""Forms become the bodies of requests; whatever a browser sends is carried out once or refused."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from urllib.parse import quote, urlencode

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forewarn.maintenance.model import Refused
from forewarn.server.operator import table
from forewarn.server.page import forms
from forewarn.server.page.forms import FilledForm
from forewarn.store.sqlite import InMemoryStore
from forewarn.vocabulary import ErrorCode
from server.running import Running, fleet, roles, settings_in

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def form(**texts: str) -> FilledForm:
    return FilledForm().filled(event_type="Reboot", **texts)


def asked(**texts: str) -> FilledForm:
    return form(**{"machines": "web-0"} | texts)


def test_a_form_in_which_nothing_of_a_policy_is_filled_in_asks_for_none() -> None:
    assert forms.maintenance(asked(order="tightest"), NOW).policy is None
    assert forms.maintenance(asked(order="listed"), NOW).policy is not None


def test_a_plan_keeps_the_time_that_it_was_made_with() -> None:
    typed = asked(not_before="+20m")
    settled = forms.settled(typed, NOW)
    later = forms.maintenance(settled, NOW + timedelta(minutes=7))
    assert later.not_before == NOW + timedelta(minutes=20)


def test_a_form_is_read_as_browsers_write_it() -> None:
    sent = forms.sent(
        b"machines=web-0%0D%0Aweb-1,+web-2&description=%3Cb%3E+%C3%A4&reference=1&reference=2"
    )
    assert sent.names("machines") == ("web-0", "web-1", "web-2")
    assert sent.text("description") == "<b> ä"
    assert sent.all("reference") == ("1", "2")


@pytest.mark.parametrize("body", [b"a=%ff", b"\xff", b"a=1&" * 1300])
def test_what_no_browser_sends_is_refused(body: bytes) -> None:
    with pytest.raises(Refused) as caught:
        forms.sent(body)
    assert caught.value.code is ErrorCode.INVALID


# Whatever a browser sends.


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
