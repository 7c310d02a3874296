"""What a relay makes of whatever may answer in the service's place, or not answer at all."""

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import patience
from builders import NOW
from client.scripted import document, losing, message, serving
from forewarn.client.transport import PROBES, RequestFailed
from forewarn.clock import SystemClock
from forewarn.control.replicas import SharedSightings
from forewarn.maintenance.model import Sighting
from forewarn.protocol.message import Reply
from forewarn.relay import cache, streams
from forewarn.relay.forwarding import Forwarding
from forewarn.relay.settings import ReplicaAddress, UpstreamSettings, replica
from forewarn.relay.streams import ReplicaConnection
from forewarn.relay.upstream import MAX_AT_ONCE, Credentials, Upstream, UpstreamFailed
from forewarn.server import relay_feed
from forewarn.server.relay_feed import HostDocument
from guest.room import EVENT_ID, post
from patience import reached
from relay import running
from relay.running import filled, relayed, relaying, settings, started
from relay.standin import TOKEN, Answer, Other, Request, StandIn
from relays.process import certify


def always(status: int, body: bytes) -> Other:
    async def answer(_: Request) -> Answer:
        return status, body

    return answer


def host(name: str = "h1", **fields: Any) -> Other:
    return always(200, relay_feed.encode(HostDocument(host=name, **fields)))


HOSTILE: dict[str, Other] = {
    "not JSON": always(200, b"<html>a proxy's page</html>"),
    "JSON of something else": always(200, b'{"DocumentIncarnation":1,"Events":[]}'),
    "empty": always(200, b""),
    "not UTF-8": always(200, b'{"host":"\xff"}'),
    "nested": always(200, b'{"host":"h1","later":' + b"[" * 10_000),
    "no object": always(200, b"[]"),
    "another host's": host("h2"),
    "a machine without its scope": host(machines=(running.room.MACHINES[0],)),
    "a redirect": always(302, b""),
    "an error": always(500, b"\xff\xfe"),
    "not found": always(404, b"{}"),
    "a gateway's refusal": always(401, b"<html>Who are you?</html>"),
    "a firewall's refusal": always(403, b'{"error":{"code":"unauthorized","message":""}}'),
}


async def test_no_answer_that_does_not_fit_changes_what_guests_read(tmp_path: Path) -> None:
    async with relayed(tmp_path) as (service, relay):
        before = await relay.ask()
        for name, other in HOSTILE.items():
            service.other, failures = other, relay.relay._reader.failures
            service.tell()
            for writer in list(service.connections):
                writer.transport.abort()
            await reached(lambda failures=failures: relay.relay._reader.failures >= failures + 3)
            after = await relay.ask()
            assert (after.status, after.body) == (before.status, before.body), name
            assert relay.relay.status(1).trouble != "", name
            assert relay.relay._freshness.refused_since is None, name  # or it would forget all
            service.other = None
            await reached(lambda: relay.heard)
            assert await relay.incarnation() == "2"


async def test_a_replica_that_answers_is_found_behind_those_that_do_not(tmp_path: Path) -> None:
    # Who knows nothing yet takes the first host that fits for its own.
    others = [other for name, other in HOSTILE.items() if name != "another host's"]
    broken, service = [filled() for _ in others], filled()
    for each, other in zip(broken, others, strict=True):
        each.other = other
    async with (
        started(*broken, service),
        relaying(settings(tmp_path, *broken, service)) as relay,
    ):
        assert await relay.incarnation() == "2"
        assert await relay.status(post()) == 200


async def test_a_proxy_that_hangs_up_is_not_asked_as_fast_as_it_answers(tmp_path: Path) -> None:
    async with relayed(tmp_path) as (service, relay):
        waits: list[bool] = []

        async def note(request: Request) -> None:
            waits.append(relay_feed.WAIT not in request.query)

        service.other, service.hangs_up = note, True
        for number in range(1, 4):
            service.tell()
            await reached(lambda number=number: len(waits) == number)
        assert waits == [True] * 3
        assert relay.heard


async def test_a_replica_that_hangs_up_before_it_is_asked_for_the_host_has_failed(
    tmp_path: Path,
) -> None:
    async with relayed(tmp_path) as (service, relay):
        reader = relay.relay._reader
        relay.relay._forwarding._found = {("", "10.0.0.9"): None}

        async def hang_up(request: Request) -> None:
            if request.path == relay_feed.UNKNOWN_PATH:
                for writer in list(service.connections):
                    writer.transport.abort()

        service.other = hang_up
        for writer in list(service.connections):
            writer.transport.abort()
        await reached(lambda: reader.failures >= 3)
        assert not relay.heard


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


async def test_a_replica_that_ends_with_an_approval_may_have_stored_it(tmp_path: Path) -> None:
    async with asking(tmp_path) as (service, upstream):
        for _ in range(2):  # the second on the connection of the first
            await report(upstream)
        assert len(service.connections) == 1

        async def end(_: Request) -> Answer:
            await service.stop()
            raise asyncio.CancelledError

        service.other = end
        with pytest.raises(UpstreamFailed) as failed:
            await approve(upstream)
        assert failed.value.maybe_done


async def test_nothing_is_sent_to_a_replica_that_has_hung_up(tmp_path: Path) -> None:
    async with asking(tmp_path) as (service, upstream):
        await report(upstream)
        (connection,) = upstream._idle
        await service.stop()
        await reached(lambda: not connection.is_open)
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
            upstream.replicas = [msgspec.structs.replace(upstream.now_first, host="replica.test")]
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


REFUSED = [
    (503, "unavailable", 503),
    (503, "unknown-outcome", 503),
    (500, "internal", 503),
    (401, "unauthorized", 503),
    (400, "invalid", 500),  # it would be refused again, and so nobody is told to send it again
    (400, "of a gateway before it", 500),
    (413, "limit", 500),
    (403, "not-eligible", 403),
    (403, "internal", 503),  # of a gateway before it
    (404, "not-found", 503),
]
"""How the service refuses an approval, and what its guest is answered."""


async def test_a_guests_approval_is_refused_as_the_service_refuses_it(tmp_path: Path) -> None:
    async with relayed(tmp_path) as (service, relay):
        for status, code, expected in REFUSED:
            refuse_approvals(service, status, code)
            answer = await relay.ask(post())
            assert answer.status == expected, code
            nothing = b"Nothing was approved" in answer.body
            assert nothing is (expected == 503 and code != "unknown-outcome"), code


async def test_an_event_id_that_no_message_can_have_is_unknown(tmp_path: Path) -> None:
    body = b'{"StartRequests":[{"EventId":"%s"},{"EventId":"A\\u0000"}]}' % EVENT_ID.encode()
    async with relayed(tmp_path) as (service, relay):
        answer = await relay.ask(post(body))
        assert (answer.status, b"never published" in answer.body) == (400, True)
        assert service.approvals == []
        assert relay.relay._forwarding.approvals == {"not-found": 1}


def refuse_approvals(service: StandIn, status: int, code: str) -> None:
    body = relay_feed.encode(relay_feed.RelayRefusal(code=code))

    async def refuse(request: Request) -> Answer | None:
        return (status, body) if request.method == "POST" else None

    service.other = refuse


async def test_an_outcome_that_a_replica_does_not_know_is_unknown_to_guests(tmp_path: Path) -> None:
    one, two = filled(), filled()
    refuse_approvals(one, 503, "unknown-outcome")
    refuse_approvals(two, 503, "unavailable")
    async with started(one, two), relaying(settings(tmp_path, one, two)) as relay:
        answer = await relay.ask(post())
        assert answer.status == 503
        assert b"Nothing was approved" not in answer.body


async def test_an_approval_of_a_thousand_events_in_chunks_goes_up_whole(tmp_path: Path) -> None:
    ids = [f"{n:08X}-0000-4000-8000-000000000000" for n in range(999)] + [EVENT_ID]
    entries = b",".join(b'{"EventId":"%s"}' % each.encode() for each in ids)
    body = b'{"StartRequests":[' + entries + b"]}"
    request = post(running.room.chunked(body, 1000), "Transfer-Encoding: chunked")
    async with relayed(tmp_path) as (service, relay):
        service.published.update(ids)
        assert await relay.status(request) == 200
        (approval,) = service.approvals
        assert approval.event_ids == tuple(ids)


def test_short_stalls_add_up_as_those_of_the_service_do(tmp_path: Path) -> None:
    relay = running.made(settings(tmp_path, urls=("http://127.0.0.1:1",))).relay
    told = []
    for ran, stalled in ((9, 3.0), (9, 0.5), (9, 1.5), (9, 3.0), (9, 3.0), (999, 4.0), (9, 2.0)):
        relay._alive += ran
        relay._turn(relay._alive + stalled)
        told.append(relay._state().stalled_seconds)
    assert told == [0.0, 0.0, 0.0, 7.5, 7.5, 7.5, 13.5]


async def test_a_stall_of_the_loop_is_told_once_and_at_once(tmp_path: Path) -> None:
    async with relayed(tmp_path) as (service, relay):
        await reached(lambda: len(service.states) >= 2)
        relay.relay._alive -= 30.0
        await reached(lambda: any(each.stalled_seconds >= 30 for each in service.states))
        await reached(lambda: service.states[-1].stalled_seconds == 0)
        assert sum(each.stalled_seconds >= 30 for each in service.states) == 1


async def test_a_relay_that_cannot_save_says_so_and_leaves_nothing_older(tmp_path: Path) -> None:
    async with relayed(tmp_path) as (service, relay):
        state = tmp_path / "state"
        (state / f"{cache.FILE_NAME}.new").mkdir()  # nothing can be written there
        service.tell()
        await reached(lambda: not relay.relay.status(1).saved)
        await reached(lambda: not (state / cache.FILE_NAME).exists())
        assert await relay.incarnation() == "2"
        (state / f"{cache.FILE_NAME}.new").rmdir()
        service.tell()
        await reached(lambda: relay.relay.status(1).saved)
        assert (state / cache.FILE_NAME).exists()


async def test_a_service_is_trusted_by_the_settings_certificates_alone(tmp_path: Path) -> None:
    made, key = certify(tmp_path, "127.0.0.1")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(made, key)
    service = filled()
    await service.start(context)
    url = service.url.replace("http", "https")
    own = settings(tmp_path, service, urls=(url,))
    relay = running.made(own)
    opening = asyncio.ensure_future(relay.open())
    await reached(lambda: relay.relay._reader.failures >= 2)
    assert not opening.done()
    assert "certificate" in relay.relay.status(1).trouble
    opening.cancel()
    await asyncio.gather(opening, return_exceptions=True)
    await relay.relay.close()
    own = settings(tmp_path, service, urls=(url,), ca_file=str(made))
    async with relaying(own) as trusting:
        assert await trusting.incarnation() == "2"
    await service.stop()


SPOILT: tuple[Callable[[Path], object], ...] = (
    lambda path: path.unlink(),
    lambda path: path.write_text("short"),
    lambda path: path.chmod(0o666),
    lambda path: path.write_text("a token\x00 with what none has"),
)


@pytest.mark.parametrize("spoil", SPOILT)
async def test_a_token_that_cannot_be_used_is_named_and_read_again(
    tmp_path: Path, spoil: Callable[[Path], object]
) -> None:
    async with relayed(tmp_path) as (service, relay):
        spoil(tmp_path / "relay.token")

        def named() -> bool:
            # Each look: a relay whose loop stood still connects again by itself, by what it had.
            for writer in list(service.connections):
                writer.transport.abort()
            return "relay.token" in relay.relay.status(1).trouble

        await reached(named)
        assert await relay.status() == 200
        running.token_file(tmp_path, TOKEN)
        await reached(lambda: relay.heard)


# One connection.


async def connected(port: int, *hosts: str) -> ReplicaConnection:
    places = [(socket.AF_INET, (host, port)) for host in hosts]
    replica = ReplicaAddress(tls=False, host="replica", port=port)
    return await streams.connect(replica, None, 0.5, places=places, max_body=999, probes=PROBES)


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
