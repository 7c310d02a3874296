"""Who opens far too many connections is kept out by the kernel, and nobody else is."""

import asyncio
import contextlib
import socket
import sys
from collections.abc import Iterator

import pytest

from forewarn.maintenance.model import Changes
from forewarn.server.guest import limits
from forewarn.server.guest.listener import APPLY_SECONDS, DROP_SECONDS, ConnectionFilter
from guest import room
from guest.room import EVENTS, answers, get, statuses
from guest.served import GUESTS, played, serving
from patience import reached

SYN_SENT = 2
MOST_REFUSED = limits.CONNECTIONS_PER_SECOND // limits.REFUSED_CONNECTIONS

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the kernel's filter is Linux's"
)


@contextlib.contextmanager
def listening(family: socket.AddressFamily, address: str) -> Iterator[socket.socket]:
    with socket.create_server((address, 0), family=family) as opened:
        yield opened


def connecting(to: socket.socket, address: str) -> socket.socket:
    """Return a connection that is being made, from this address."""
    made = socket.socket(to.family)
    made.bind((address, 0))
    made.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        made.connect(to.getsockname())
    return made


def is_dropped(made: socket.socket) -> bool:
    """Return whether a connection had no answer; on loopback one comes within the call."""
    with made:
        state: int = made.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
        return state == SYN_SENT


def pass_time(loop: room.SkippingLoop, seconds: float) -> None:
    loop.ahead += seconds
    loop.run_until_complete(asyncio.sleep(0))
    loop.run_until_complete(asyncio.sleep(0))


@pytest.fixture
def loop() -> Iterator[room.SkippingLoop]:
    loop = room.SkippingLoop()
    yield loop
    loop.close()


@pytest.mark.parametrize(
    ("family", "address", "networks", "dropped"),
    [
        (socket.AF_INET, "127.0.0.9", ["127.0.0.9"], True),
        (socket.AF_INET, "127.0.0.9", ["127.0.0.8", "fd00::/64", "127.0.0.9"], True),
        (socket.AF_INET, "127.0.0.9", ["127.0.0.8", "127.0.0.10", "127.0.9.0"], False),
        (socket.AF_INET6, "::1", ["::/64"], True),
        (socket.AF_INET6, "::1", ["127.0.0.1", "fd00::/64", "::/64"], True),
        (socket.AF_INET6, "::1", ["fd00::1", "::2", "::1"], True),
        (socket.AF_INET6, "::1", ["::2", "::1:0:0:1", "1::1", "::1:0:1"], False),
        (socket.AF_INET6, "::1", ["0:0:0:1::/64", "0:1::/64", "::1%lo", "127.0.0.1"], False),
    ],
)
def test_connections_of_these_networks_are_dropped_and_no_others(
    loop: room.SkippingLoop,
    family: socket.AddressFamily,
    address: str,
    networks: list[str],
    dropped: bool,
) -> None:
    start = "127.0.0.1" if family == socket.AF_INET else "::1"
    with listening(family, start) as opened:
        filter_ = ConnectionFilter(loop)
        filter_.guard("", opened)
        for each in networks:
            assert filter_.drop("", each)
        assert not is_dropped(connecting(opened, address))
        pass_time(loop, APPLY_SECONDS)
        assert is_dropped(connecting(opened, address)) is dropped


def test_a_network_may_connect_again_after_a_while(loop: room.SkippingLoop) -> None:
    with listening(socket.AF_INET, "127.0.0.1") as opened:
        filter_ = ConnectionFilter(loop)
        filter_.guard("", opened)
        filter_.drop("", "127.0.0.9")
        pass_time(loop, APPLY_SECONDS)
        assert not filter_.drop("", "127.0.0.9")
        assert filter_.is_active
        pass_time(loop, DROP_SECONDS - APPLY_SECONDS - 0.1)
        assert is_dropped(connecting(opened, "127.0.0.9"))
        pass_time(loop, 0.1 + APPLY_SECONDS)
        pass_time(loop, APPLY_SECONDS)
        assert not is_dropped(connecting(opened, "127.0.0.9"))
        assert not filter_.is_active


@played
async def test_who_is_refused_again_and_again_is_dropped_and_what_it_has_is_served_on() -> None:
    async with serving(GUESTS, limits=limits.Limits(connections_per_address=1)) as served:
        reader, writer = await served.connect()
        writer.write(get())
        await reader.readuntil(b"[]}")
        opened = served.plane.connections.filter._sockets[0][1]
        counters = served.plane.counters
        for number in range(MOST_REFUSED):
            assert counters.refusals[limits.Reason.CONNECTION_RATE] == 0, number
            assert [each.status for each in await served.ask(get())] == [503]
        assert counters.refusals[limits.Reason.CONNECTION_RATE] == 1
        await reached(lambda: served.plane.connections.filter.is_active)
        assert is_dropped(connecting(opened, "127.0.0.1"))
        assert not is_dropped(connecting(opened, "127.0.0.5"))
        writer.write(get(EVENTS, "Connection: close"))
        assert [each.status for each in answers(await reader.read())] == [200]
        writer.close()


def test_who_connects_anew_for_each_request_over_its_rate_is_dropped_sooner() -> None:
    with room.opened(rate=limits.Rate(per_second=50, burst=100)) as (plane, turn):
        statuses = []
        while plane.counters.refusals[limits.Reason.CONNECTION_RATE] == 0:
            peer = plane.connect()
            peer.send(get())
            turn()
            statuses += [each.status for each in answers(peer.got)]
            peer.abort()
        assert statuses[:100] == [200] * 100
        # Each connection counts for itself too.
        most = (limits.CONNECTIONS_PER_SECOND - 100) // (limits.REFUSED_RATE + 1)
        assert statuses[100:] in ([429] * most, [429] * (most + 1))


def test_strangers_who_have_all_that_they_may_are_dropped_sooner() -> None:
    with room.opened(limits.Limits(connections=8)) as (plane, _):
        for number in range(2):
            plane.connect(f"10.9.9.{number}")
        for _ in range(limits.CONNECTIONS_PER_SECOND // limits.REFUSED_STRANGERS):
            assert plane.counters.refusals[limits.Reason.CONNECTION_RATE] == 0
            plane.connect("10.9.9.9")
        assert plane.counters.refusals[limits.Reason.CONNECTIONS_OF_STRANGERS] == 4
        assert plane.counters.refusals[limits.Reason.CONNECTION_RATE] == 1


@pytest.mark.parametrize("form", ["fd00::{:x}", "fe80::{:x}%br-blue"])
def test_a_crowd_of_strangers_and_a_greedy_machine_leave_the_machines_of_their_link_alone(
    form: str,
) -> None:
    fleet = [room.machine(f"m{number}", form.format(number), scope="web") for number in (1, 2)]
    with room.opened() as (plane, turn):
        plane.learn(Changes(machines=tuple(fleet)))
        for number in range(MOST_REFUSED + 5):
            stranger = plane.connect(form.format(0x100 + number))
            stranger.send(get())
            assert statuses(stranger) == [403]
        dropped = plane.connections.filter._dropped
        assert dropped == set()
        for _ in range(MOST_REFUSED + 1):
            plane.connect(form.format(0x100)).send(get())
            turn()
        assert dropped == {("", form.format(0x100))}
        for _ in range(limits.CONNECTIONS_PER_SECOND + 1):
            plane.connect(form.format(1)).abort()
        assert dropped == {("", form.format(0x100)), ("", form.format(1))}
        neighbour = plane.connect(form.format(2))
        neighbour.send(get())
        assert statuses(neighbour) == [200]


def test_a_network_without_machines_is_dropped_whole() -> None:
    with room.opened() as (plane, turn):
        for number in range(MOST_REFUSED + 1):
            plane.connect(f"fd00:1::{number:x}").send(get())
            turn()
        assert plane.connections.filter._dropped == {("", "fd00:1::/64")}


def test_a_machine_may_poll_by_new_connections_and_does_not_pay_later() -> None:
    with room.opened() as (plane, _):
        for _ in range(3):
            for _ in range(limits.CONNECTIONS_PER_SECOND - 1):
                peer = plane.connect()
                peer.send(get(EVENTS, "Connection: close"))
                assert b" 200 OK" in peer.got
            plane.pass_time(1.0)
        assert plane.counters.refusals[limits.Reason.CONNECTION_RATE] == 0
        for _ in range(limits.CONNECTIONS_PER_SECOND + 1):
            plane.connect().abort()
        assert plane.counters.refusals[limits.Reason.CONNECTION_RATE] == 1
