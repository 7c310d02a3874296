"""The relay beside its stories: threads, the disk, clocks, and what asks its replicas."""

import asyncio
import contextlib
import errno
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import patience
from authority import Authority
from builders import NOW
from client.scripted import document, losing, message, serving
from forewarn.client.transport import PROBES, RequestFailed
from forewarn.clock import SystemClock
from forewarn.control.replicas import SharedSightings
from forewarn.maintenance.model import Changes, Sighting
from forewarn.protocol.message import Reply
from forewarn.relay import cache, streams
from forewarn.relay.cache import Freshness, HostDocuments, StateFile, StateUnusable
from forewarn.relay.forwarding import Forwarding
from forewarn.relay.settings import ReplicaAddress, UpstreamSettings, replica
from forewarn.relay.streams import ReplicaConnection
from forewarn.relay.upstream import MAX_AT_ONCE, Credentials, Upstream, UpstreamFailed
from forewarn.server import relay_feed
from guest import room
from guest.room import EVENT_ID, get, post
from patience import reached, settled
from relay import running
from relay.running import filled, made, relayed, relaying, settings, started
from relay.standin import Answer, Other, Request, StandIn

NOBODY = ("http://127.0.0.1:1",)
HALF_AN_HOUR = 1800.0
"""By a clock that is taken wrongly, an age is wrong by an hour here, or more."""


def newer(standin: StandIn, incarnation: int) -> None:
    """Let the scope have another incarnation."""
    changed = replace(standin.documents.scope("web"), incarnation=incarnation)
    standin.learn(Changes(scopes=(changed,)))


@pytest.mark.parametrize("hours", [-1, 1])
async def test_documents_are_as_old_as_the_clock_was_set_since(tmp_path: Path, hours: int) -> None:
    saved = StateFile(tmp_path / "state")
    then = SystemClock().now().timestamp() + hours * 3600
    saved.write(HostDocuments(host="h1", etag="e1"), then)
    relay = made(settings(tmp_path, urls=NOBODY, max_stale_seconds=60)).relay
    await relay._read_file()
    assert relay._freshness.age(relay.clock.monotonic()) > 3500
    assert not relay._serves()
    assert b"upstream_up 0" in relay.metrics(1)


async def test_documents_that_a_full_disk_took_late_are_no_younger_by_that(tmp_path: Path) -> None:
    relay = made(settings(tmp_path, urls=NOBODY)).relay
    relay._unsaved = HostDocuments(host="h1", etag="e1")
    relay._reader.freshness = Freshness(true_until=relay.clock.monotonic() - 3600)
    await relay._write()
    relay._reader.freshness = Freshness(true_until=relay.clock.monotonic(), is_true=True)
    await relay._read_file()
    assert relay._freshness.age(relay.clock.monotonic()) > 3500


class Watched(StateFile):
    """A file that notes what is done with it, by other threads than guests are answered on."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.may_write, self.asked = threading.Event(), False
        self.done: list[str] = []
        self._loop = threading.get_ident()

    def _note(self, done: str) -> None:
        assert threading.get_ident() != self._loop  # a disk may hang
        self.done.append(done)

    def write(self, known: HostDocuments, at: float) -> None:
        self.asked = True
        self.may_write.wait(patience.SECONDS)
        super().write(known, at)
        self._note("write")

    def touch(self, at: float) -> None:
        super().touch(at)
        self._note("touch")

    def remove(self) -> None:
        super().remove()
        self._note("remove")


async def test_what_is_not_saved_yet_nobody_reads_and_it_is_true_until_the_end(
    tmp_path: Path,
) -> None:
    async with relayed(tmp_path) as (service, relay):
        inside = relay.relay
        inside._file.unlock()
        file = inside._file = Watched(tmp_path / "state")
        newer(service, 3)
        await reached(lambda: inside._unsaved is not None)
        assert await relay.incarnation() == "2"
        file.may_write.set()
        await reached(lambda: inside._held.etag == service.etag)
        assert await relay.incarnation() == "3"
        inside._touch_at = 0.0
        await reached(lambda: "touch" in file.done)
        saved = tmp_path / "state" / cache.FILE_NAME
        os.utime(saved, (0, 0))
    assert saved.stat().st_mtime > 0
    assert file.done == ["write", "touch", "touch"]


async def test_what_comes_while_the_disk_is_slow_is_saved_too(tmp_path: Path) -> None:
    relay = made(settings(tmp_path, urls=NOBODY)).relay
    file = relay._file = Watched(tmp_path / "state")
    relay._unsaved = HostDocuments(host="h1", etag="e1")
    saving = asyncio.create_task(relay._write())
    await reached(lambda: file.asked)
    relay._unsaved = newest = HostDocuments(host="h1", etag="e2")
    file.may_write.set()
    await saving
    assert relay._unsaved is newest
    touching = asyncio.Event()
    relay._saving = asyncio.create_task(touching.wait())
    taking = asyncio.create_task(relay._save(newest))
    await settled()
    touching.set()
    await taking
    await relay._saving
    assert relay._unsaved is None  # and guests read it from now on


async def test_a_stall_that_comes_while_one_is_reported_is_reported_next(tmp_path: Path) -> None:
    relay = made(settings(tmp_path, urls=NOBODY)).relay
    relay._unreported = 2.0
    told = relay._state()
    relay._unreported += 3.0
    relay._reported(told)
    assert relay._state().stalled_seconds == 3.0


async def test_documents_are_no_younger_than_a_request_that_was_never_answered(
    tmp_path: Path,
) -> None:
    relay = made(settings(tmp_path, urls=NOBODY)).relay
    now = relay.clock.monotonic()
    relay._reader.freshness = relay._freshness.heard(now - 80)
    relay._reader._asked_at = now - 70
    relay._reader._fail(TimeoutError())
    assert relay._freshness.age(now) == 70


async def test_news_of_a_machine_are_told_without_a_beat_and_forgotten_with_it(
    tmp_path: Path,
) -> None:
    async with relayed(tmp_path) as (service, relay):
        (beat,) = (task for task in asyncio.all_tasks() if task.get_name() == "the beat")
        beat.cancel()
        await relay.ask()
        await reached(lambda: service.seen)
        service.learn(Changes(removed_machines=("web-0",)))
        await reached(lambda: "web-0" not in relay.relay._held.machines)
        await reached(lambda: "web-0" not in relay.relay._seen._saved)
        assert [each.machine for each in service.seen] == ["web-0"]


async def test_the_age_of_a_request_depends_on_no_clock_that_is_set(tmp_path: Path) -> None:
    async with relayed(tmp_path) as (service, relay):
        service.shows_time = False
        clock = SystemClock()
        reader = relay.relay._reader
        for by in (timedelta(hours=-1), timedelta(0)):
            reader.service_time = clock.now() + by, clock.monotonic()
            await relay.ask(get(room.EVENTS))
            for set_to in (timedelta(0), timedelta(hours=1), timedelta(hours=-2)):
                reader.service_time = clock.now() + set_to, clock.monotonic()
                relay.relay.clock.wrong_by = set_to
                asked_at = relay.relay._sighting("web-0").asked_at
                assert 0 <= relay.relay._age(asked_at) < HALF_AN_HOUR


async def test_an_approval_of_a_machine_that_moved_here_waits_for_the_service(
    tmp_path: Path,
) -> None:
    async with relayed(tmp_path, SystemClock(), listener=running.GUESTS) as (service, relay):
        service.unknown["127.0.0.1"] = room.machine("web-1", "127.0.0.1", scope="web")
        reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
        head, _, body = post().partition(b"\r\n\r\n")
        writer.write(head + b"\r\n\r\n" + body[:5])
        await reached(lambda: "web-1" in relay.relay._held.machines and service.claims)
        writer.write(body[5:] + get())
        for expected in (b"200", b"200"):
            line = await reader.readuntil(b"\r\n\r\n")
            assert line.split()[1] == expected
        assert service.approvals[0].machine == "web-1"
        writer.close()


async def test_a_second_relay_of_a_folder_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    other = filled("h2")
    async with started(other), relayed(tmp_path) as (service, relay):
        second = made(settings(tmp_path, other))
        with pytest.raises(StateUnusable):
            await second.open()
        await second.relay.close()
        service.tell()
        saved = (tmp_path / "state" / cache.FILE_NAME).read_bytes()
        assert b'"host":"h2"' not in saved
        assert other.states == []
        assert await relay.status() == 200
    async with relaying(settings(tmp_path, service, max_stale_seconds=0)) as again:
        assert await again.status() == 200


# What asks the replicas.


def always(status: int, body: bytes) -> Other:
    async def answer(_: Request) -> Answer:
        return status, body

    return answer


async def test_a_proxy_that_hangs_up_is_not_asked_as_fast_as_it_answers(tmp_path: Path) -> None:
    async with relayed(tmp_path) as (service, relay):
        waits: list[bool] = []

        async def note(request: Request) -> None:
            waits.append(request.query != relay_feed.AT_ONCE)

        service.other, service.hangs_up = note, True
        for number in range(1, 4):
            service.tell()
            await reached(lambda number=number: len(waits) == number)
        assert waits == [True] * 3
        assert relay.heard


@contextlib.asynccontextmanager
async def asking(
    folder: Path, other: Other | None = None, max_body: int = 1_000_000
) -> AsyncIterator[tuple[StandIn, Upstream]]:
    """A stand-in that answers so, and what asks it."""
    service = filled()
    service.other = other
    async with started(service):
        own = UpstreamSettings(urls=(service.url,), token_file=str(running.token_file(folder)))
        address = ReplicaAddress(tls=False, host="127.0.0.1", port=service.port)
        upstream = Upstream((address,), Credentials(own), max_body)
        yield service, upstream
        upstream.close()


async def approve(upstream: Upstream) -> Reply:
    asked = relay_feed.APPROVALS_PATH
    return await upstream.ask(asked, lambda: b"{}", patience.SECONDS, each_seconds=patience.SECONDS)


async def report(upstream: Upstream) -> Reply:
    asked = relay_feed.SIGHTINGS_PATH
    return await upstream.ask(asked, lambda: b"[]", patience.SECONDS, each_seconds=patience.SECONDS)


async def test_what_the_service_did_not_take_is_reported_again(tmp_path: Path) -> None:
    names = {f"m{number}" for number in range(relay_feed.MAX_SIGHTINGS + 1)}
    seen = SharedSightings(lambda _: Sighting(asked_at=NOW, version="2020-07-01"))
    for name in names:
        seen.hear(name)
    async with asking(tmp_path, always(503, b"")) as (service, upstream):
        forwarding = Forwarding(upstream, lambda _: 0.0, seen, SystemClock())
        await forwarding.tell(seen)
        service.other = None
        await forwarding.tell(seen)
        assert {each.machine for each in service.seen} == names
        await forwarding.close()


async def test_a_relay_that_ends_gives_a_report_up_that_the_service_does_not_answer(
    tmp_path: Path,
) -> None:
    asked = asyncio.Event()

    async def hang(request: Request) -> Answer | None:
        if request.path == relay_feed.SIGHTINGS_PATH:
            asked.set()
            await asyncio.Event().wait()
        return None

    standin = filled()
    standin.other = hang
    async with started(standin):
        own = made(settings(tmp_path, standin))
        await own.open()
        await own.ask()
        await asked.wait()
        telling = own.relay._telling
        await own.relay.close()
        assert telling is not None
        assert telling.cancelled()


async def test_the_age_of_a_request_is_that_of_when_it_is_sent_to_the_replica_that_takes_it(
    tmp_path: Path,
) -> None:
    ages = {"sighting": 0.0}

    async def late(_: Request) -> Answer:
        ages["sighting"] = 3.0
        return 503, b""

    seen = SharedSightings(lambda _: Sighting(asked_at=NOW, version="2020-07-01"))
    one, two = filled(), filled()
    one.other = late
    async with started(one, two):
        own = settings(tmp_path, one, two).upstream
        upstream = Upstream([*map(replica, own.urls)], Credentials(own), 1_000_000)
        forwarding = Forwarding(upstream, lambda _: ages["sighting"], seen, SystemClock())
        seen.hear("web-0")
        await forwarding.tell(seen)
        assert [each.age_seconds for each in two.seen] == [3.0]
        ages["sighting"] = 0.0
        approving = forwarding.approve("web", [EVENT_ID], by="web-0", address="")
        await asyncio.wrap_future(approving)
        assert [each.age_seconds for each in two.approvals] == [3.0]
        await forwarding.close()


def test_a_token_of_no_use_ends_no_connection_that_stands(tmp_path: Path) -> None:
    place = running.token_file(tmp_path)
    own = UpstreamSettings(urls=("https://127.0.0.1",), token_file=str(place))
    credentials, address = Credentials(own), replica(own.urls[0])
    credentials.refresh()
    before = credentials.context(address)
    running.token_file(tmp_path, "short")
    with pytest.raises(UpstreamFailed):
        credentials.refresh()
    assert credentials.context(address) is before


async def test_an_answer_over_the_limit_is_not_read(tmp_path: Path) -> None:
    async with asking(tmp_path, always(200, b"x" * 20_000), max_body=10_000) as (_, upstream):
        with pytest.raises(UpstreamFailed):
            await approve(upstream)


async def test_many_requests_share_a_few_connections_and_have_their_turns(tmp_path: Path) -> None:
    goes_on = asyncio.Event()

    async def slow(_: Request) -> Answer:
        await goes_on.wait()
        return 200, b""

    async with asking(tmp_path, slow) as (service, upstream):
        under_way = [asyncio.ensure_future(approve(upstream)) for _ in range(3 * MAX_AT_ONCE)]
        await reached(lambda: len(service.connections) == MAX_AT_ONCE)
        with pytest.raises(UpstreamFailed) as failed:
            await upstream.ask(
                relay_feed.APPROVALS_PATH, lambda: b"{}", 0.05, each_seconds=patience.SECONDS
            )
        assert not failed.value.maybe_done
        goes_on.set()
        assert {reply.status for reply in await asyncio.gather(*under_way)} == {200}
        assert len(service.connections) == MAX_AT_ONCE


async def test_a_replica_alone_has_all_of_the_time(tmp_path: Path) -> None:
    began: list[Request] = []

    async def late(request: Request) -> Answer:
        began.append(request)
        goes_on = asyncio.Event()
        asyncio.get_running_loop().call_later(0.2, goes_on.set)
        await goes_on.wait()
        return 200, b""

    async with asking(tmp_path, late) as (_, upstream):
        reply = await upstream.ask(
            relay_feed.APPROVALS_PATH, lambda: b"{}", patience.SECONDS, each_seconds=0.05
        )
        assert (reply.status, len(began)) == (200, 1)


async def test_a_replica_that_never_answers_takes_its_share_of_the_time(tmp_path: Path) -> None:
    async def never(_: Request) -> Answer:
        await asyncio.Event().wait()
        raise AssertionError

    async with asking(tmp_path) as (service, upstream):
        # So a connection is there, and the request is sent however long one takes.
        await upstream.ask(
            relay_feed.SIGHTINGS_PATH, lambda: b"[]", patience.SECONDS, each_seconds=0.1
        )
        service.other = never
        with pytest.raises(UpstreamFailed) as failed:
            await upstream.ask(relay_feed.APPROVALS_PATH, lambda: b"{}", 0.5, each_seconds=0.1)
        assert failed.value.maybe_done
        await service.stop()
        with pytest.raises(UpstreamFailed) as failed:
            await approve(upstream)
        assert not failed.value.maybe_done


class Resolving(asyncio.SelectorEventLoop):
    """A loop that knows `replica.test`, for as long as its name server answers."""

    lookups = 0
    answers: bool | None = True
    """None for never."""

    async def getaddrinfo(self, host: Any, port: Any, **asked: Any) -> Any:
        if host != "replica.test":
            return await super().getaddrinfo(host, port, **asked)
        self.lookups += 1
        if self.answers is None:
            await asyncio.Event().wait()
        if not self.answers:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]


def test_where_no_name_server_answers_the_addresses_are_those_of_before(tmp_path: Path) -> None:
    async def run(loop: Resolving) -> None:
        async with asking(tmp_path) as (_, upstream):
            upstream.replicas = [replace(upstream.now_first, host="replica.test")]
            loop.answers = False
            with pytest.raises(UpstreamFailed):
                await upstream.connect(upstream.now_first)
            for loop.answers in (True, False):
                (await upstream.connect(upstream.now_first)).close()
            loop.answers, before = None, loop.lookups
            reply = await report(upstream)
            assert (reply.status, loop.lookups) == (204, before)

    with asyncio.Runner(loop_factory=Resolving) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, Resolving)
        runner.run(asyncio.wait_for(run(loop), patience.SECONDS))


async def test_claims_are_repeated_together_and_none_of_what_the_fleet_has_here(
    tmp_path: Path,
) -> None:
    addresses = [f"10.0.0.{n}" for n in range(4)]
    together: list[str] = []
    all_came = asyncio.Event()

    async def claim(request: Request) -> Answer:
        together.append(relay_feed.decode_unknown(request.body).address)
        if len(together) == len(addresses) - 1:
            all_came.set()
        await all_came.wait()
        return 404, b"{}"

    async with asking(tmp_path, claim) as (_, upstream):
        forwarding = Forwarding(upstream, lambda _: 0.0, lambda _: None, SystemClock())
        forwarding._found = {("", address): None for address in addresses}
        for name, address, host in (("web-1", addresses[0], "h1"), ("web-2", addresses[1], "h2")):
            there = running.room.machine(name, address, scope="web", host=host)
            forwarding.arrived([there], "h1")
        await forwarding.claim_again()
        assert sorted(together) == addresses[1:]
        assert forwarding._found == {}  # each was answered in time
        await forwarding.close()


def test_short_stalls_add_up_as_those_of_the_service_do(tmp_path: Path) -> None:
    relay = running.made(settings(tmp_path, urls=NOBODY)).relay
    told = []
    for ran, stalled in ((9, 3.0), (9, 0.5), (9, 1.5), (9, 3.0), (9, 3.0), (999, 4.0), (9, 2.0)):
        relay._alive += ran
        relay._turn(relay._alive + stalled)
        told.append(relay._state().stalled_seconds)
    assert told == [0.0, 0.0, 0.0, 7.5, 7.5, 7.5, 13.5]


# One connection.


async def connected(
    port: int, *hosts: str, name: str = "replica", tls: ssl.SSLContext | None = None
) -> ReplicaConnection:
    places = [(socket.AF_INET, (host, port)) for host in hosts]
    replica = ReplicaAddress(tls=tls is not None, host=name, port=port)
    return await streams.connect(replica, tls, 0.5, places=places, max_body=999, probes=PROBES)


async def test_the_dot_behind_a_whole_name_is_not_in_its_certificate(tmp_path: Path) -> None:
    authority, service = Authority(tmp_path / "ca"), filled()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(authority.sign("h", "DNS:replica.example"))
    await service.start(context)
    tls = ssl.create_default_context(cafile=authority.certificate)
    stream = await connected(service.port, "127.0.0.1", name="replica.example.", tls=tls)
    assert stream.is_open
    stream.close()
    await service.stop()


async def test_a_name_whose_first_address_loses_packets_is_reached_at_its_second() -> None:
    with losing() as (_, port), serving(lambda *_: message(204), port, "127.0.0.2"):
        stream = await connected(port, "127.0.0.1", "127.0.0.2")
        assert (await stream.ask(b"GET", "/", ())).status == 204
        stream.close()


async def test_a_connection_whose_peer_falls_silent_is_stale_and_no_late_answer() -> None:
    """The system says so by a TimeoutError, which is not the end of the time for an answer."""
    with serving(lambda *_: message(200, document())) as server:
        stream = await connected(server.port, "127.0.0.1")
        assert (await stream.ask(b"GET", "/", ())).status == 200
        stream._reader.set_exception(TimeoutError(errno.ETIMEDOUT, "timed out"))
        with pytest.raises(RequestFailed) as failed:
            await stream.ask(b"GET", "/", ())
        assert (failed.value.reason, failed.value.stale) == ("cut", True)
        assert not stream.is_open


HANGS = """
import socket, sys, threading
sys.modules["uvloop"] = None  # which asks the system itself
real = socket.getaddrinfo
def look_up(host, *wanted, **others):
    if host != "service.example" or others.get("flags"):
        return real(host, *wanted, **others)
    print("asked", flush=True)
    threading.Event().wait()
socket.getaddrinfo = look_up
from forewarn.relay import run
sys.exit(run.main(["--config", sys.argv[1]]))
"""


def test_a_name_server_that_does_not_answer_keeps_no_relay_from_its_end(tmp_path: Path) -> None:
    """systemd kills it after 15 s, and resolvers wait for longer."""
    (tmp_path / "token").write_text("fw_" + "x" * 40)
    (tmp_path / "token").chmod(0o600)
    (tmp_path / "relay.toml").write_text(
        '[upstream]\nurls = ["https://service.example:8172"]\ntoken_file = "token"\n'
        '[status]\nlisten = "off"\n[state]\nfolder = "state"\n'
        '[[guest.listener]]\naddress = "127.0.0.1"\nport = 0\n'
    )
    command = (sys.executable, "-c", HANGS, str(tmp_path / "relay.toml"))
    with subprocess.Popen(command, stdout=subprocess.PIPE) as relay:
        assert relay.stdout is not None
        try:
            assert relay.stdout.readline() == b"asked\n"
            relay.terminate()
            assert relay.wait(patience.SECONDS) == 0
        finally:
            relay.kill()
