"""Which URLs a webhook may have, what it is told of, and when it is tried again."""

from datetime import timedelta

import msgspec
import pytest

from builders import NOW
from forewarn.maintenance import webhooks
from forewarn.maintenance.alerts import AlertKind
from forewarn.maintenance.model import Refused
from forewarn.maintenance.webhooks import DeliveryFailure, Webhook
from forewarn.vocabulary import ErrorCode

HOOK = Webhook(
    name="chat",
    url="https://chat.example/services/T0/B0/hidden",
    secret="whsec_aGlkZGVu",
    created_by="ann",
    created_at=NOW,
    done_sequence=3,
)
DOWN = DeliveryFailure(reason="it answered with status 503", status=503)


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
        "http://example.com/",
        "http://10.0.0.1/",
        "http://localhost.example.com/",
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


def test_http_to_another_machine_takes_a_word_of_the_operator() -> None:
    webhooks.judge_url("http://10.0.0.1/", insecure=True)
    with pytest.raises(Refused):
        webhooks.judge_url("ftp://10.0.0.1/", insecure=True)


def test_only_types_and_groups_of_news_can_be_asked_for() -> None:
    webhooks.judge_types(["operation.failed", "rollout.*"])
    for wrong in ("operation", "frog.*", "operation.", "*", ""):
        with pytest.raises(Refused):
            webhooks.judge_types([wrong])


@pytest.mark.parametrize(
    ("types", "told"),
    [
        ((), {"operation.failed", "operations.failed", "rollout.done"}),
        (("operation.*",), {"operation.failed"}),
        (("operation.failed", "rollout.*"), {"operation.failed", "rollout.done"}),
        (("operation.started",), set()),
    ],
)
def test_a_webhook_is_told_of_the_types_that_it_names(
    types: tuple[str, ...], told: set[str]
) -> None:
    kinds = {"operation.failed", "operations.failed", "rollout.done"}
    assert {kind for kind in kinds if hook(types=types).wants(kind)} == told


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


def test_each_try_comes_later_than_the_one_before_up_to_an_hour() -> None:
    webhook, now, waits = HOOK, NOW, []
    for _ in range(16):
        webhook = webhooks.failed(webhook, DOWN, now, 0.5)
        assert webhook.next_try_at is not None
        waits.append((webhook.next_try_at - now).total_seconds())
    assert waits[:4] == [5, 10, 20, 40]
    assert waits[-3:] == [3600, 3600, 3600]
    assert (webhook.tries, webhook.failing_since, webhook.trouble) == (16, NOW, DOWN.reason)


def test_delays_vary_by_a_quarter_so_that_receivers_are_not_tried_all_at_once() -> None:
    waits = [
        (at - NOW).total_seconds()
        for chance in (0.0, 0.5, 1.0)
        if (at := webhooks.failed(HOOK, DOWN, NOW, chance).next_try_at)
    ]
    assert waits == [3.75, 5, 6.25]


def test_a_receiver_may_ask_for_more_time_but_for_no_more_than_an_hour() -> None:
    for asked, given in ((60, 60), (1, 5), (10**6, 3600)):
        asking = DeliveryFailure(reason="", status=429, retry_after=timedelta(seconds=asked))
        at = webhooks.failed(HOOK, asking, NOW, 0.5).next_try_at
        assert at == NOW + timedelta(seconds=given)


def test_after_a_day_of_failures_a_webhook_is_disabled_and_an_alert_says_so() -> None:
    failing = webhooks.failed(HOOK, DOWN, NOW, 0.5)
    almost = NOW + webhooks.GIVE_UP - timedelta(seconds=1)
    failing = webhooks.failed(failing, DOWN, almost, 0.5)
    assert failing.disabled_at is None
    assert list(webhooks.alerts_of([failing])) == []
    disabled = webhooks.failed(failing, DOWN, NOW + webhooks.GIVE_UP, 0.5)
    assert (disabled.disabled_at, disabled.next_try_at) == (NOW + webhooks.GIVE_UP, None)
    (alert,) = webhooks.alerts_of([HOOK, disabled])
    assert (alert.kind, alert.about) == (AlertKind.WEBHOOK_DISABLED, "webhook chat")
    assert "hidden" not in alert.message
    assert not disabled.free_for("any", NOW + 2 * webhooks.GIVE_UP)


def test_a_receiver_that_is_gone_for_good_is_not_tried_again() -> None:
    gone = webhooks.failed(HOOK, DeliveryFailure(reason="gone", status=410), NOW, 0.5)
    assert gone.disabled_at == NOW


def test_what_is_accepted_ends_the_failures_and_moves_the_place_on() -> None:
    failing = webhooks.failed(HOOK, DOWN, NOW, 0.5)
    again = webhooks.delivered(failing, (4, 1), NOW + timedelta(hours=1))
    assert (again.done_sequence, again.done_index) == (4, 1)
    assert (again.failing_since, again.tries, again.next_try_at, again.trouble) == (
        *(None, 0, None, ""),
    )
    assert (again.delivered, again.delivered_at) == (1, NOW + timedelta(hours=1))
    passed = webhooks.passed(failing, (4, 2))
    assert (passed.done_index, passed.tries, passed.delivered) == (2, 1, 0)


def test_one_replica_at_a_time_has_a_webhook() -> None:
    until = NOW + webhooks.LEASE
    held = hook(holder="one", lease_until=until)
    assert held.held_by("one", NOW)
    assert held.free_for("one", NOW)
    assert not held.held_by("two", NOW)
    assert not held.free_for("two", NOW)
    assert held.free_for("two", until)
    assert not held.held_by("one", until)
    assert HOOK.free_for("two", NOW)
