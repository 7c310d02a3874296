"""A relay that the service knows by a certificate: renewed while guests ask, and revoked."""

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import patience
from authority import Authority
from end_to_end.running import Running
from end_to_end.test_relay import FLEET, Relay, reboot, until
from forewarn.relay.settings import UpstreamSettings
from forewarn.settings import FieldError
from ports import free_port

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


@pytest.fixture
def service(tmp_path: Path, authority: Authority) -> Iterator[tuple[Running, int]]:
    port = free_port()
    own = authority.sign("service", "IP:127.0.0.1")
    files = {
        "tls_certificate": own,
        "client_ca": authority.certificate,
        "client_crl": authority.revocations,
    }
    lines = "\n".join(f'{name} = "{path}"' for name, path in files.items())
    running = Running(tmp_path, clock=f'[relay]\nlisten = "127.0.0.1:{port}"\n{lines}')
    running.start()
    try:
        running.apply(FLEET)
        yield running, port
    finally:
        running.kill()


@pytest.fixture
def relay(service: tuple[Running, int], authority: Authority, tmp_path: Path) -> Iterator[Relay]:
    running = Relay(tmp_path / "h1", service[1], "no token at all")
    text = running.settings.read_text()
    text = text.replace("http://", "https://").replace(
        'token_file = "relay.token"',
        f'certificate = "relay.pem"\nca_file = "{authority.certificate}"',
    )
    running.settings.write_text(text)
    try:
        yield running
    finally:
        if running.process is not None and running.process.poll() is None:
            running.process.kill()
            running.process.wait()


def show(relay: Relay, certificate: Path) -> None:
    new = relay.folder / "relay.pem.new"
    shutil.copy(certificate, new)
    new.replace(relay.folder / "relay.pem")


def test_a_certificate_is_renewed_while_guests_ask_and_then_the_old_one_is_revoked(
    service: tuple[Running, int], authority: Authority, relay: Relay
) -> None:
    first, second = (authority.sign(name, "DNS:h1") for name in ("first", "second"))
    show(relay, first)
    relay.start()
    relay.ready()
    statuses: list[int] = []
    over = threading.Event()

    def poll() -> None:
        while not over.wait(patience.PAUSE_SECONDS):
            statuses.append(relay.ask()[0])

    polling = threading.Thread(target=poll)
    polling.start()
    try:
        show(relay, second)
        authority.revoke(first)
        service[0].reload()
        reboot(service[0])
        (event,) = until(relay.events, relay.log.read_text)
        approval = {"StartRequests": [{"EventId": event["EventId"]}]}
        until(lambda: relay.ask("POST", approval)[0] == 200, relay.log.read_text)
    finally:
        over.set()
        polling.join()
    assert set(statuses) == {200}
    assert relay.stop() == 0


def test_a_relay_whose_certificate_is_revoked_is_told_nothing_more_until_it_has_another(
    service: tuple[Running, int], authority: Authority, relay: Relay
) -> None:
    first, second = (authority.sign(name, "DNS:h1") for name in ("first", "second"))
    show(relay, first)
    relay.start()
    relay.ready()
    authority.revoke(first)
    service[0].reload()
    until(lambda: relay.metric("upstream_up") == 0, relay.log.read_text)
    reboot(service[0])
    until(lambda: relay.metric("upstream_failures_total") > 3, relay.log.read_text)
    assert relay.events() == []
    show(relay, second)
    (event,) = until(relay.events, relay.log.read_text)
    assert event["Resources"] == ["web-0"]
    assert relay.stop() == 0


def test_a_certificate_of_another_host_serves_none_of_this_ones_machines(
    service: tuple[Running, int], authority: Authority, relay: Relay
) -> None:
    assert service[0].operator is not None
    show(relay, authority.sign("other", "DNS:h2"))
    relay.start()
    relay.ready()
    assert relay.ask()[0] == 403
    assert relay.ask(path="/vm/db-0/metadata/scheduledevents?api-version=2020-07-01")[0] == 200
    assert relay.stop() == 0


def test_a_certificate_that_is_replaced_halfway_is_used_once_it_fits(
    service: tuple[Running, int], authority: Authority, relay: Relay
) -> None:
    assert service[0].operator is not None
    first, second = (authority.sign(name, "DNS:h1") for name in ("first", "second"))
    show(relay, first)
    relay.start()
    relay.ready()
    half = relay.folder / "half.pem"
    keys = first.read_text().partition("-----BEGIN PRIVATE")
    half.write_text(second.read_text().partition("-----BEGIN PRIVATE")[0] + keys[1] + keys[2])
    show(relay, half)
    reboot(service[0])
    (event,) = until(relay.events, relay.log.read_text)
    approval = {"StartRequests": [{"EventId": event["EventId"]}]}
    assert relay.ask("POST", approval)[0] == 200
    until(lambda: "keeps its old certificate" in relay.log.read_text(), relay.log.read_text)
    assert relay.stop() == 0


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ({}, "token_file"),
        ({"token_file": "t", "certificate": "c"}, "certificate"),
        ({"token_file": "t", "key": "k"}, "key"),
        ({"certificate": "c", "urls": ("http://127.0.0.1",)}, "certificate"),
    ],
)
def test_a_relay_needs_a_token_or_a_certificate_and_tls_for_this(
    given: dict[str, Any], place: str
) -> None:
    with pytest.raises(FieldError) as refused:
        UpstreamSettings(**({"urls": ("https://forewarn.example",)} | given))
    assert refused.value.field == place
