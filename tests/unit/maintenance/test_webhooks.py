"""The URLs that a webhook may have, and how they are shown."""

import msgspec
import pytest

from builders import NOW
from forewarn.maintenance import webhooks
from forewarn.maintenance.model import Refused
from forewarn.maintenance.webhooks import Webhook
from forewarn.vocabulary import ErrorCode

HOOK = Webhook(
    name="chat",
    url="https://chat.example/services/T0/B0/hidden",
    secret="whsec_aGlkZGVu",
    cursor=(3, 0),
)


def hook(**fields: object) -> Webhook:
    return msgspec.structs.replace(HOOK, **fields)


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com",
        "https://example.com:8443/a/b?c=d%20e",
        "http://127.0.0.1:9/hook",
        "http://[::1]/hook",
        "http://localhost:80/",
        "https://[2001:db8::1]/",
    ],
)
def test_https_and_this_machine_are_allowed(url: str) -> None:
    webhooks.judge_url(url, insecure=False)
    assert hook(url=url).shown_url.startswith(url[:8])


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.com",
        "ftp://example.com",
        "https://",
        "https:///path",
        "https://ann:secret@example.com/",
        "https://example.com/#part",
        "https://example.com:0/",
        "https://example.com:x/",
        "https://example.com:99999/",
        "https://[::1/",
        "https://example.com/a b",
        "https://example.com/\n",
        "https://exämple.com/",
        "https://example.com/" + "a" * 2000,
    ],
)
def test_any_other_url_is_refused(url: str) -> None:
    with pytest.raises(Refused) as refusal:
        webhooks.judge_url(url, insecure=False)
    assert (refusal.value.code, refusal.value.facts) == (ErrorCode.INVALID, {"where": "url"})


@pytest.mark.parametrize("host", ["example.com", "10.0.0.1", "localhost.example.com"])
def test_http_to_another_machine_takes_a_word_of_the_operator(host: str) -> None:
    webhooks.judge_url(f"http://{host}/", insecure=True)
    with pytest.raises(Refused) as refusal:
        webhooks.judge_url(f"http://{host}/", insecure=False)
    assert refusal.value.facts == {"where": "insecure"}


def test_a_word_of_the_operator_does_not_allow_another_protocol() -> None:
    with pytest.raises(Refused):
        webhooks.judge_url("ftp://10.0.0.1/", insecure=True)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://chat.example/services/T0", "https://chat.example/..."),
        ("https://chat.example:8443?key=hidden", "https://chat.example:8443/..."),
        ("https://chat.example/", "https://chat.example/"),
    ],
)
def test_what_may_be_secret_in_a_url_is_not_shown(url: str, shown: str) -> None:
    assert hook(url=url).shown_url == shown


def test_an_alert_shows_nothing_that_is_secret() -> None:
    webhook = hook(waiting_since=NOW, trouble="it answered with status 503")
    (alert,) = webhooks.alerts_of([HOOK, webhook], NOW + webhooks.BEHIND)
    assert "https://chat.example/..." in alert.message
    assert "503" in alert.message
    assert "hidden" not in alert.message
