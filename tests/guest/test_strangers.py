"""Callers that are no machine: told to the log seldom, and within bounds whatever they do."""

import ipaddress
from collections.abc import Iterator

import pytest
import structlog
from structlog.testing import capture_logs
from structlog.typing import EventDict

from forewarn.protocol import identity
from forewarn.server.guest.listener import Listener
from forewarn.server.guest.proxies import Proxies
from forewarn.server.guest.strangers import LOG_SECONDS, MAX_ADDRESSES, Strangers
from forewarn.server.guest.tally import Reason
from guest import room
from guest.room import answers, get


@pytest.fixture
def log() -> Iterator[list[EventDict]]:
    structlog.reset_defaults()
    with capture_logs() as told:
        yield told


def test_an_address_is_told_of_once_a_minute_with_how_many_were_not(log: list[EventDict]) -> None:
    strangers = Strangers()
    assert strangers.note("", "10.9.9.9", 0.0, reason="unknown-address")
    for second in range(1, 60):
        assert not strangers.note("", "10.9.9.9", float(second))
    assert strangers.note("", "10.9.9.9", LOG_SECONDS)
    assert not strangers.note("", "10.9.9.9", LOG_SECONDS + 59)
    assert [(line["address"], line["untold_before"]) for line in log] == [
        ("10.9.9.9", 0),
        ("10.9.9.9", 59),
    ]
    assert log[0]["log_level"] == "warning"
    assert log[0]["reason"] == "unknown-address"


def test_one_address_at_two_listeners_is_two_strangers(log: list[EventDict]) -> None:
    strangers = Strangers()
    assert strangers.note("blue", "10.9.9.9", 0.0)
    assert strangers.note("green", "10.9.9.9", 0.0)
    assert [line["listener"] for line in log] == ["blue", "green"]


def test_a_flood_of_addresses_grows_neither_memory_nor_the_log(log: list[EventDict]) -> None:
    strangers = Strangers()
    for number in range(100_000):
        strangers.note("", f"fd00::{number:x}", number / 2000)
    assert len(strangers._told) == len(log) == MAX_ADDRESSES
    assert strangers.note("", "fd00::0", 120.0)
    assert log[-1]["untold_before"] == 100_000 - MAX_ADDRESSES
    assert len(strangers._told) == 1


def test_a_refused_request_is_counted_each_time_and_told_of_once(log: list[EventDict]) -> None:
    with room.opened() as (plane, _):
        stranger = plane.connect("10.9.9.9")
        for _ in range(3):
            stranger.send(get())
        assert [each.status for each in answers(stranger.got)] == [403] * 3
        assert plane.tally == {Reason.UNKNOWN_ADDRESS: 3}
        plane.pass_time(61)
        again = plane.connect("10.9.9.9")
        again.send(get())
    assert [(line["event"], line["reason"], line["untold_before"]) for line in log] == [
        ("a caller is no registered machine", "unknown-address", 0),
        ("a caller is no registered machine", "unknown-address", 2),
    ]


def test_the_log_says_what_a_proxys_guest_is_not_told(log: list[EventDict]) -> None:
    proxies = Proxies([ipaddress.ip_network("192.0.2.0/24")])
    proxies.secrets = (b"0123456789abcdef",)
    listener = Listener(host="169.254.169.254", proxies=proxies, name="blue")

    def signed(id_: str, secret: bytes) -> bytes:
        signature = identity.sign(id_.encode(), secret).decode()
        return get(room.EVENTS, f"X-Instance-ID: {id_}", f"X-Instance-ID-Signature: {signature}")

    with room.opened() as (plane, _):
        first = plane.connect("192.0.2.7", listener)
        first.send(signed("web-0", proxies.secrets[0]))
        first.send(signed("web-0", b"another secret!!"))
        second = plane.connect("192.0.2.8", listener)
        second.send(signed("web-9" * 40, proxies.secrets[0]))
        good, wrong = answers(first.got)
        (unknown,) = answers(second.got)
    assert (good.status, wrong.status, unknown.status) == (200, 403, 403)
    assert wrong.body == unknown.body
    assert [(line["address"], line["reason"]) for line in log] == [
        ("192.0.2.7", "wrong-signature"),
        ("192.0.2.8", "unknown-instance"),
    ]
    assert log[1]["instance_id"] == ("web-9" * 20) + "..."
    assert "another secret" not in str(log)


def test_a_proxys_connections_are_not_those_of_one_guest() -> None:
    proxies = Proxies([ipaddress.ip_network("192.0.2.7/32")])
    listener = Listener(host="169.254.169.254", proxies=proxies)
    with room.opened(room.Limits(connections_per_address=2)) as (plane, _):
        behind = [plane.connect("192.0.2.7", listener) for _ in range(5)]
        beside = [plane.connect("192.0.2.8", listener) for _ in range(3)]
        assert not any(peer.got for peer in behind)
        assert [bool(peer.got) for peer in beside] == [False, False, True]
        elsewhere = plane.connect("192.0.2.8", Listener(host="169.254.169.254", name="blue"))
        assert not elsewhere.got
        for peer in (*behind, *beside[:2], elsewhere):
            peer.abort()
        assert len(plane.connections) == 0
        assert plane.connections._of_address == {}


def test_secrets_are_changed_under_an_open_connection() -> None:
    old, new = b"the old secret!!", b"the new secret!!"
    proxies = Proxies([ipaddress.ip_network("192.0.2.7/32")])
    proxies.secrets = (old,)
    listener = Listener(host="169.254.169.254", proxies=proxies)

    def by(secret: bytes) -> bytes:
        signature = identity.sign(b"web-0", secret).decode()
        return get(room.EVENTS, "X-Instance-ID: web-0", f"X-Instance-ID-Signature: {signature}")

    with room.opened() as (plane, turn):
        peer = plane.connect("192.0.2.7", listener)
        for secrets in ((old,), (new, old), (new,)):
            proxies.secrets = secrets
            peer.send(by(old) + by(new))
            turn()
        assert [each.status for each in answers(peer.got)] == [200, 403, 200, 200, 403, 200]
