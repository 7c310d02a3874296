"""Webhooks of a running service, and real receivers over real sockets."""

import http.server
import logging
import threading
import urllib.parse
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

import patience
from forewarn.clock import ManualClock
from forewarn.server import settings
from forewarn.store.sqlite import InMemoryStore
from http_proxy import HttpProxy
from server.receiver import Receiver, answer, receiving
from server.running import Client, Running, fleet, settings_in

CERTIFICATES = Path(__file__).with_name("certificates")
Handler = http.server.BaseHTTPRequestHandler


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as running:
        yield running


def add(client: Client, url: str, name: str = "ours", **more: Any) -> str:
    """Add a webhook and return its secret."""
    added = client.ask("POST", "/v1/webhooks", {"name": name, "url": url, **more})
    assert added.status == 201, added.body
    assert added.json["webhook"]["name"] == name
    secret: str = added.json["secret"]
    return secret


def schedule(client: Client, *machines: str) -> None:
    body = {"event_type": "Reboot", "machines": list(machines)}
    assert client.ask("POST", "/v1/maintenances", body).status == 201


def tried(client: Client, name: str = "ours") -> Any:
    return client.ask("POST", f"/v1/webhooks/{name}/tests", {}).json


def shown(client: Client, name: str = "ours") -> Any:
    (found,) = (w for w in client.get("/v1/webhooks")["webhooks"] if w["name"] == name)
    return found


def test_a_secret_is_shown_once_and_written_nowhere(
    client: Client, receiver: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    logging.getLogger().setLevel(logging.DEBUG)
    receiver.answers["/T0/hidden?key=hidden"] = answer(500)
    secret = add(client, receiver.url("/T0/hidden?key=hidden"))
    tried(client)
    schedule(client, "web-0")
    patience.until(lambda: shown(client)["tries"])
    listed = client.ask("GET", "/v1/webhooks").body
    removed = client.ask("DELETE", "/v1/webhooks?name=ours").body
    audit = client.ask("GET", "/v1/audit").body
    assert b"/v1/webhooks" in audit
    out, err = capsys.readouterr()
    for told in (listed, removed, audit, out.encode(), err.encode()):
        assert b"hidden" not in told
        assert secret.encode() not in told


def test_a_test_says_whether_it_was_accepted(client: Client, receiver: Receiver) -> None:
    secret = add(client, receiver.url())
    assert tried(client)["accepted"] is True
    (test,) = receiver.awaited(1)
    assert test.verified_by(secret)["type"] == "webhook.test"
    receiver.answers["/hook"] = answer(404)
    refused = tried(client)
    assert (refused["accepted"], "404" in refused["trouble"]) == (False, True)
    receiver.answers["/hook"] = answer(307, Location=receiver.url("/elsewhere"))
    assert tried(client)["accepted"] is False
    assert (len(receiver.got()), receiver.got("/elsewhere")) == (3, [])  # it is not followed

    def endless(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(10**12))
        handler.end_headers()
        handler.wfile.write(b"x")
        handler.wfile.flush()
        receiver.over.wait(patience.SECONDS)

    receiver.answers["/hook"] = endless
    assert tried(client)["accepted"] is True  # an answer is taken by its head
    unknown = client.ask("POST", "/v1/webhooks/frog/tests", {})
    assert (unknown.status, unknown.error["code"]) == (404, "not-found")


def test_a_request_goes_through_the_proxy_of_the_environment(
    client: Client, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = receiver.url().replace("127.0.0.1", "chat.corp.invalid")
    add(client, url, insecure=True)
    with HttpProxy(urllib.parse.urlsplit(url).port or 0) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        assert tried(client)["accepted"] is True
        assert proxy.asked[0][0].startswith(f"POST {url}")
        monkeypatch.setenv("http_proxy", "socks5://127.0.0.1:1080")
        assert tried(client)["accepted"] is False


def test_a_webhook_has_one_test_at_a_time(client: Client, receiver: Receiver) -> None:
    go_on = threading.Event()

    def slow(handler: Handler) -> None:
        go_on.wait(patience.SECONDS)
        answer(204)(handler)

    receiver.answers["/hook"] = slow
    add(client, receiver.url())
    with ThreadPoolExecutor(1) as other:
        first = other.submit(tried, client)
        receiver.awaited(1)
        assert client.ask("POST", "/v1/webhooks/ours/tests", {}).status == 409
        go_on.set()
        assert first.result()["accepted"] is True


@pytest.mark.parametrize("name", ["none.pem", "empty.pem"])
def test_certificates_that_cannot_be_read_are_the_trouble_of_each_webhook(
    tmp_path: Path, clock: ManualClock, name: str
) -> None:
    (tmp_path / "empty.pem").touch()
    wanted = msgspec.structs.replace(
        settings_in(tmp_path), webhooks=settings.WebhookSettings(tls_ca=str(tmp_path / name))
    )
    with Running(wanted, InMemoryStore(), clock) as service:
        client = service.client()
        add(client, "https://127.0.0.1:1/")
        assert "webhooks.tls_ca" in tried(client)["trouble"]
        assert client.ask("PUT", "/v1/fleet", fleet()).status == 200
        patience.until(lambda: shown(client)["tries"])


def test_a_receiver_with_tls_is_verified_by_the_certificates_of_the_settings(
    tmp_path: Path, clock: ManualClock
) -> None:
    wanted = msgspec.structs.replace(
        settings_in(tmp_path),
        webhooks=settings.WebhookSettings(tls_ca=str(CERTIFICATES / "first.pem")),
    )
    with (
        receiving(CERTIFICATES / "first.pem") as known,
        receiving(CERTIFICATES / "second.pem") as stranger,
        Running(wanted, InMemoryStore(), clock) as service,
    ):
        client = service.client()
        assert client.ask("PUT", "/v1/fleet", fleet()).status == 200
        secret = add(client, known.url())
        add(client, stranger.url(), "stranger")
        assert tried(client)["accepted"] is True
        refused = tried(client, "stranger")
        assert refused["accepted"] is False
        assert "certificate" in refused["trouble"].lower()
        schedule(client, "web-0")
        for one in known.awaited(3):
            one.verified_by(secret)
        patience.until(lambda: shown(client, "stranger")["tries"])
        assert stranger.got() == []
