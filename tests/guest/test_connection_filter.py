"""Who opens far too many connections is kept out by the kernel, and nobody else is."""

import asyncio
import contextlib
import socket
import sys
from collections.abc import Iterator

import pytest

from forewarn.server.guest import limits
from forewarn.server.guest.listener import APPLY_SECONDS, DROP_SECONDS, ConnectionFilter
from guest import room
from guest.room import EVENTS, answers, get
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
