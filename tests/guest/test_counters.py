"""What the guest plane counts, and tells the log: seldom, and within bounds whatever guests do."""

import ipaddress
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from forewarn.protocol import exchange
from forewarn.server.guest.endpoint import Counters
from forewarn.server.guest.limits import Reason
from forewarn.server.guest.listener import Listener
from forewarn.server.guest.machines import Proxies
from forewarn.server.process import LOG_SECONDS, MAX_LOGGED
from guest import room
from guest.room import Behind, answers, get


@pytest.fixture
def log() -> Iterator[list[EventDict]]:
    with capture_logs() as told:
        yield told


def refuse(counters: Counters, address: str, now: float, listener: str = "") -> None:
    counters.refuse(Reason.RATE, listener, address, now)


def test_an_address_is_logged_once_a_minute_with_how_many_were_not(log: list[EventDict]) -> None:
    counters = Counters()
    for second in range(60):
        refuse(counters, "10.9.9.9", float(second))
    refuse(counters, "10.9.9.9", LOG_SECONDS)
    refuse(counters, "10.9.9.9", LOG_SECONDS + 59)
    assert [(line["address"], line["not_logged_before"]) for line in log] == [
        ("10.9.9.9", 0),
        ("10.9.9.9", 59),
    ]
    assert log[0]["log_level"] == "warning"
    assert log[0]["reason"] == "rate"
    assert counters.refusals == {Reason.RATE: 62}


def test_two_listeners_and_two_reasons_are_logged_apart(log: list[EventDict]) -> None:
    counters = Counters()
    refuse(counters, "10.9.9.9", 0.0, "blue")
    refuse(counters, "10.9.9.9", 0.0, "green")
    counters.refuse(Reason.WAITERS, "green", "10.9.9.9", 0.0)
    assert [(line["listener"], line["reason"]) for line in log] == [
        ("blue", "rate"),
        ("green", "rate"),
        ("green", "waiters"),
    ]


def test_a_flood_of_addresses_grows_neither_memory_nor_the_log(log: list[EventDict]) -> None:
    counters = Counters()
    for number in range(100_000):
        refuse(counters, f"fd00::{number:x}", number / 2000)
    assert len(counters._log._logged) == len(log) == MAX_LOGGED
    refuse(counters, "fd00::0", 120.0)
    assert log[-1]["not_logged_before"] == 100_000 - MAX_LOGGED
    assert len(counters._log._logged) == 1


def test_a_refused_request_is_counted_each_time_and_told_of_once(log: list[EventDict]) -> None:
    with room.opened() as (plane, _):
        for _ in range(3):
            stranger = plane.connect("10.9.9.9")
            stranger.send(get())
            assert [each.status for each in answers(stranger.got)] == [403]
        assert plane.counters.refusals == {Reason.UNKNOWN_ADDRESS: 3}
        plane.pass_time(61)
        again = plane.connect("10.9.9.9")
        again.send(get())
    told = [line for line in log if "reason" in line]  # the loop's own stall is told beside it
    assert [(line["reason"], line["not_logged_before"]) for line in told] == [
        ("unknown-address", 0),
        ("unknown-address", 2),
    ]


def test_the_log_says_what_a_proxys_guest_is_not_told(log: list[EventDict]) -> None:
    proxies = Proxies([ipaddress.ip_network("192.0.2.0/24")])
    proxies.secrets = (b"0123456789abcdef",)
    listener = Behind(Listener(address="169.254.169.254", name="blue"), proxies)

    def signed(id_: str, secret: bytes) -> bytes:
        signature = exchange.sign(id_.encode(), secret).decode()
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
