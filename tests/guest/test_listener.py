"""The plane over real sockets, on each event loop that it may run on."""

import asyncio
import errno
import os
import socket
import sys
from threading import Thread
from typing import Any

import pytest

import patience
import programs
from forewarn.server.guest.connection import REFUSAL_SECONDS
from forewarn.server.guest.limits import Limits
from forewarn.server.guest.listener import (
    MAX_LISTENERS,
    CannotListen,
    Listener,
    _attach,
    filter_program,
)
from forewarn.server.sockets import HandedOver
from guest import room
from guest.room import answers, get, post
from guest.served import GUESTS, HERE, Served, played, serving
from patience import reached
from ports import free_port


@played
async def test_guests_are_answered_on_every_listener_by_its_own_rules() -> None:
    async with serving(HERE, GUESTS, Listener(address="::1", port=0)) as served:
        assert len({listener.port for listener in served.at}) == 3
        assert 0 not in {listener.port for listener in served.at}
        named = get(f"/vm/web-1{room.EVENTS}")
        assert [each.status for each in await served.ask(get() + named, 0)] == [200, 200]
        # The address is bastion's on both; only a loopback listener serves names.
        assert [each.status for each in await served.ask(get() + named, 1)] == [200, 404]
        assert [each.status for each in await served.ask(named, 2)] == [200]
        assert [each.status for each in await served.ask(get(), 2)] == [403]


@played
async def test_an_approval_is_answered_by_the_thread_that_decided_it() -> None:
    async with serving() as served:
        served.plane.approvals.waits = True
        path = f"/vm/web-0{room.EVENTS}"
        asked = asyncio.ensure_future(served.ask(post(target=path) + get()))
        await served.plane.approvals.asked.wait()
        decider = Thread(target=served.plane.approvals.decide_all)
        decider.start()
        approved, document = await asked
        decider.join()
        assert (approved.status, approved.body) == (200, b"")
        assert document.status == 200
        assert served.plane.approvals.book[0][2:] == ("web-0", "127.0.0.1")


@played
async def test_how_long_a_refusal_takes_does_not_tell_whether_the_event_is_anothers() -> None:
    async with serving() as served:
        loop = asyncio.get_running_loop()
        unknown = post(room.APPROVAL.replace(b"C1BF", b"0000"), target=f"/vm/web-0{room.EVENTS}")
        approved = post(target=f"/vm/web-0{room.EVENTS}")
        for request, status, least in ((unknown, 400, REFUSAL_SECONDS), (approved, 200, 0.0)):
            began = loop.time()
            (answer,) = await served.ask(request)
            assert answer.status == status
            assert loop.time() - began >= least - 0.001  # uvloop tells whole milliseconds


@played
async def test_the_answer_to_a_refused_request_survives_what_was_still_to_come() -> None:
    async with serving() as served:
        reader, writer = await served.connect()
        # Far more than any buffer on the way: a server that closed at once would reset it.
        writer.write(
            b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n\r\n" + b"x" * 200000
        )
        got = await reader.read()
        (answer,) = answers(got)
        assert answer.status == 413
        writer.close()
        await reached(lambda: len(served.plane.connections) == 0)


@played
async def test_stopping_closes_the_idle_and_lets_requests_under_way_be_answered() -> None:
    async with serving() as served:
        idle_reader, idle_writer = await served.connect()
        idle_writer.write(get())
        await idle_reader.readuntil(b"[]}")
        served.plane.approvals.waits = True
        asking_reader, asking_writer = await served.connect()
        asking_writer.write(post(target=f"/vm/web-0{room.EVENTS}"))
        await served.plane.approvals.asked.wait()
        served.listeners.accept_at_once()
        accepted_reader, accepted_writer = await served.connect()
        await reached(lambda: len(served.plane.connections) == 3)
        stopping = asyncio.ensure_future(served.stop(20))
        assert await idle_reader.read() == b""
        with pytest.raises(ConnectionRefusedError):
            await served.connect()
        accepted_writer.write(get())  # the first request of who was accepted before
        served.plane.approvals.decide_all()
        for reader in (accepted_reader, asking_reader):
            (answer,) = answers(await reader.read())
            assert (answer.status, answer.headers["connection"]) == (200, "close")
        for writer in (idle_writer, asking_writer, accepted_writer):
            writer.close()
        assert await stopping == 0


@pytest.mark.skipif(sys.platform != "linux", reason="the packet filter is Linux's")
@played
async def test_a_socket_of_systemds_is_like_ours_and_keeps_its_queue_when_we_stop() -> None:
    with socket.create_server(("127.0.0.1", 0)) as systemds:
        # What the process before left behind: it would drop whoever comes from here.
        dropping = filter_program(socket.AF_INET, ["127.0.0.1"])
        _attach(systemds, dropping)
        at = Listener(port=systemds.getsockname()[1], default_vm="web-0")
        handed_over = HandedOver([os.dup(systemds.fileno())])
        async with serving(at, HERE, handed_over=handed_over) as served:
            assert served.at[0] == at
            assert [each.status for each in await served.ask(get(), 0)] == [200]
            sizes = {buffer_of(own) for own in (systemds, *listening(served))}
            assert len(sizes) == 1
            await served.stop(0)
            later = socket.create_connection(systemds.getsockname(), timeout=patience.SECONDS)
        systemds.settimeout(patience.SECONDS)
        systemds.accept()[0].close()
        later.close()


def buffer_of(listening: socket.socket) -> int:
    return listening.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)


def listening(served: Served) -> list[socket.socket]:
    return [own for _, own in served.plane.connections.filter._sockets]


@played
async def test_stopping_cuts_off_what_takes_too_long() -> None:
    async with serving() as served:
        served.plane.approvals.waits = True
        reader, writer = await served.connect()
        writer.write(post(target=f"/vm/web-0{room.EVENTS}"))
        await served.plane.approvals.asked.wait()
        assert await served.stop(0) == 1
        got = await asyncio.gather(reader.read(), return_exceptions=True)
        assert got == [b""] or isinstance(got[0], ConnectionResetError)
        writer.close()


async def test_an_approval_that_ends_after_the_loop_does_no_harm() -> None:
    left: list[room.Room] = []
    async with serving() as served:
        served.plane.approvals.waits = True
        _, writer = await served.connect()
        writer.write(post(target=f"/vm/web-0{room.EVENTS}"))
        await served.plane.approvals.asked.wait()
        left.append(served.plane)
        writer.close()
    left[0].approvals.decide_all()
    assert len(left[0].approvals.book) == 1


async def refusal(*at: Listener) -> str:
    with pytest.raises(CannotListen) as caught:
        async with serving(*at):
            pass
    message = str(caught.value)
    assert "\n" not in message
    return message


@played
async def test_an_address_in_use_is_told_in_one_line_and_no_listener_stays_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        first = Listener(address="127.0.0.1", port=free_port())
        message = await refusal(first, Listener(address="127.0.0.1", port=port))
        assert message.startswith(f"cannot listen on 127.0.0.1:{port}: the address is in use")
        async with serving(first) as served:
            assert served.at == (first,)


AT_A_BRIDGE = """
import asyncio
from forewarn.maintenance.model import Changes
from forewarn.server.guest.listener import INTERFACE_SECONDS, Listener
from guest import room
from guest.served import HERE, serving


async def test(loop):
    async with serving(Listener(address=AT, port=8080), HERE) as served:
        served.plane.learn(Changes(machines=(room.machine("web-0", AT, scope="web"),)))

        async def statuses(which=0):
            loop.ahead += INTERFACE_SECONDS
            for _ in range(3):  # so that the listeners look at the interfaces
                await asyncio.sleep(0)
            try:
                return [each.status for each in await served.ask(room.get(), which)]
            except OSError:
                return []

        for _ in range(2):  # it has another index each time
            assert await statuses() == []
            assert await statuses(1) == [200]
            make_bridge()
            assert await statuses() == [200]
            delete_bridge()
        make_bridge()
        assert await statuses() == [200]
        delete_bridge()
        make_bridge()  # between two looks
        assert await statuses() == [200]
        assert len(served.plane.connections.filter._sockets) == 2


with asyncio.Runner(loop_factory=room.SkippingLoop) as runner:
    runner.run(test(runner.get_loop()))
"""


def test_a_bridge_that_is_made_later_or_again_is_listened_at() -> None:
    assert programs.run_in_a_network(programs.BRIDGE + AT_A_BRIDGE) == 0


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (errno.EACCES, "CAP_NET_BIND_SERVICE"),
        (errno.EAFNOSUPPORT, "family"),
        (errno.EMFILE, "Too many open files"),
    ],
)
def test_what_the_system_refuses_is_told_in_one_line(number: int, says: str) -> None:
    class Refusing(asyncio.SelectorEventLoop):
        def add_reader(self, fd: Any, *rest: Any) -> None:
            if not isinstance(fd, socket.socket) or not fd.getsockopt(
                socket.SOL_SOCKET, socket.SO_ACCEPTCONN
            ):
                return super().add_reader(fd, *rest)
            raise OSError(number, "Too many open files")

    async def body() -> None:
        message = await refusal(GUESTS)
        assert message.startswith("cannot listen on 0.0.0.0:0: ")
        assert says in message

    with asyncio.Runner(loop_factory=Refusing) as runner:
        runner.run(body())


async def test_a_link_local_address_without_an_interface_is_told_so() -> None:
    assert "fe80::1%br0" in await refusal(Listener(address="fe80::1", port=0))


async def test_listeners_have_a_limit() -> None:
    assert "too many" in await refusal(*[GUESTS] * (MAX_LISTENERS + 1))


def test_an_address_is_shown_as_in_a_url() -> None:
    assert str(Listener(address="fd00::1", port=80)) == "[fd00::1]:80"
    assert str(Listener(address="10.0.0.1", port=80)) == "10.0.0.1:80"


@played
async def test_slow_connections_are_swept_by_the_plane_itself() -> None:
    async with serving(limits=Limits(sweep_seconds=0.001)) as served:
        reader, writer = await served.connect()
        writer.write(b"GET / HT")
        await reached(lambda: any(c._reader.started for c in served.plane.connections._all))
        served.plane.clock.advance(room.timedelta(seconds=5))
        (answer,) = answers(await reader.read())
        assert answer.status == 408
        writer.close()
