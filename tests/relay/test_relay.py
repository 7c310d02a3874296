"""The relay in front of a service: what guests are answered, whatever becomes of the service."""

import asyncio
import json
import os
import threading
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import patience
from forewarn.clock import SystemClock
from forewarn.maintenance.model import Changes
from forewarn.protocol import codec
from forewarn.relay import cache
from forewarn.relay.cache import REVOKED_SECONDS, HostDocuments, StateFile, StateUnusable
from forewarn.server import relay_feed
from forewarn.server.relay_feed import GuestRules
from guest import room
from guest.room import get, post
from patience import reached
from relay import running
from relay.running import filled, made, relayed, relaying, settings, started
from relay.standin import Answer, Request, StandIn

HALF_AN_HOUR = 1800.0
"""By a clock that is taken wrongly, an age is wrong by an hour here, or more."""


def newer(standin: StandIn, incarnation: int) -> None:
    """Let the scope have another incarnation."""
    changed = replace(standin.documents.scope("web"), incarnation=incarnation)
    standin.learn(Changes(scopes=(changed,)))


async def test_guests_read_by_a_relay_what_the_service_has_and_its_changes(tmp_path: Path) -> None:
    async with relayed(tmp_path) as (service, relay):
        answer = await relay.ask()
        assert json.loads(answer.body)["Events"][0]["EventId"] == room.EVENT_ID
        assert "age" not in answer.headers
        newer(service, 3)
        await reached(lambda: relay.relay._held.documents["web"].scope.incarnation == 3)
        assert await relay.incarnation() == "3"
        assert service.etags[0] == ""
        assert set(service.etags[1:]) == {"e1", "e2"}


async def test_an_approval_is_answered_once_the_service_has_it(tmp_path: Path) -> None:
    async with relayed(tmp_path) as (service, relay):
        assert await relay.status(post()) == 200
        (approval,) = service.approvals
        assert (approval.machine, approval.event_ids) == ("web-0", (room.EVENT_ID,))
        assert (approval.address, approval.version) == ("127.0.0.1", "2020-07-01")
        unknown = b'{"StartRequests":[{"EventId":"%s"}]}' % (b"A" * 36)
        assert await relay.status(post(unknown)) == 400
        service.machines.clear()
        assert await relay.status(post()) == 403


async def test_an_approval_goes_to_the_next_replica_if_one_does_not_answer(tmp_path: Path) -> None:
    one, two = filled(), filled()

    async def cut_off(request: Request) -> Answer | None:
        if request.method == "GET":
            return None
        for writer in list(one.connections):
            writer.transport.abort()
        return 500, b""

    one.other = cut_off
    async with started(one, two), relaying(settings(tmp_path, one, two)) as relay:
        assert await relay.status(post()) == 200
        assert (len(one.approvals), len(two.approvals)) == (0, 1)
        two.other = cut_off
        await two.stop()
        answer = await relay.ask(post())
        assert (answer.status, "retry-after" in answer.headers) == (503, True)


def last_heard(relay: running.Running, seconds: float) -> None:
    """Have the service been heard so long ago."""
    reader = relay.relay._reader
    at = reader.freshness.true_until - seconds
    reader.freshness = type(reader.freshness)(true_until=at, is_true=False)


async def test_guests_read_on_without_the_service_and_are_told_how_old_it_is(
    tmp_path: Path,
) -> None:
    async with relayed(tmp_path) as (service, relay):
        await service.stop()
        await reached(lambda: not relay.heard)
        assert await relay.status() == 200
        last_heard(relay, 100)
        await reached(lambda: relay.relay._freshness.age(relay.relay._clock.monotonic()) > 100)
        # Answers show it from the next second on.
        began = relay.relay._clock.monotonic()
        await reached(lambda: relay.relay._clock.monotonic() > began + 1)
        answer = await relay.ask()
        assert int(answer.headers["age"]) >= 100
        assert await relay.status(post()) == 503
        await service.start()
        await reached(lambda: relay.heard)
        assert await relay.status(post()) == 200


async def test_a_restart_answers_from_what_was_saved_and_goes_on_from_there(tmp_path: Path) -> None:
    service = filled()
    await service.start()
    own = settings(tmp_path, service)
    loop = asyncio.get_running_loop()
    read: list[str] = []

    class ReadMeanwhile(cache.StateFile):
        def write(self, *given: Any) -> None:
            asking = asyncio.run_coroutine_threadsafe(relay.incarnation(), loop)
            read.append(asking.result(patience.SECONDS))
            super().write(*given)

    async with relaying(own) as relay:
        assert await relay.incarnation() == "2"
        relay.relay._file.unlock()
        relay.relay._file = ReadMeanwhile(tmp_path / "state")
        for incarnation in (3, 4):
            newer(service, incarnation)
            await reached(lambda: relay.relay._held.etag == service.etag)
            assert await relay.incarnation() == str(incarnation)
        assert read == ["2", "3"]  # what is not saved yet nobody reads
        saved = tmp_path / "state" / cache.FILE_NAME
        os.utime(saved, (0, 0))
    assert saved.stat().st_mtime > 0, "it was true until the end"
    await service.stop()
    async with relaying(own) as relay:
        assert await relay.incarnation() == "4"
        service.etags.clear()
        await service.start()
        await reached(lambda: relay.heard)
        assert service.etags[0] == "e3"
    await service.stop()


@pytest.mark.parametrize("hours", [-1, 1])
async def test_documents_are_as_old_as_the_clock_was_set_since(tmp_path: Path, hours: int) -> None:
    saved = StateFile(tmp_path / "state")
    saved.write(HostDocuments(host="h1", etag="e1"))
    saved.touch(SystemClock().now().timestamp() + hours * 3600)
    nobody = ("http://127.0.0.1:1",)
    relay = made(settings(tmp_path, urls=nobody, max_stale_seconds=60)).relay
    await relay._read_file()
    assert relay._freshness.age(relay._clock.monotonic()) > 3500
    assert not relay._serves()


async def test_no_socket_opens_before_anything_is_known(tmp_path: Path) -> None:
    service = filled()
    async with started(service):
        own = settings(tmp_path, service)
    relay = running.made(own)
    opening = asyncio.ensure_future(relay.open())
    await reached(lambda: relay.relay._reader.failures > 2)
    assert not opening.done()
    assert relay.relay._guests is None
    await service.start()
    await opening
    assert await relay.status() == 200
    await relay.relay.close()
    await service.stop()


async def test_a_relay_whose_token_is_refused_answers_nobody_meanwhile(tmp_path: Path) -> None:
    removed_on: list[int] = []

    class Noting(cache.StateFile):
        def remove(self) -> None:
            super().remove()
            removed_on.append(threading.get_ident())

    async with relayed(tmp_path) as (service, relay):
        relay.relay._file = Noting(tmp_path / "state")
        service.token = "another token of the service"
        for writer in list(service.connections):
            writer.transport.abort()
        await reached(lambda: relay.relay._freshness.refused_since is not None)
        relay.relay._beat(relay.relay._clock.monotonic() + REVOKED_SECONDS)
        assert await relay.reply() is None
        await reached(lambda: removed_on)
        assert threading.get_ident() not in removed_on  # a disk may hang
        assert not (tmp_path / "state" / cache.FILE_NAME).exists()
        running.token_file(tmp_path, service.token)
        await reached(lambda: relay.heard and not relay.relay._is_suspended)
        assert await relay.incarnation() == "2"
        assert "" in service.etags[1:]


async def test_nothing_is_forgotten_while_news_after_a_refused_token_is_saved(
    tmp_path: Path,
) -> None:
    released = threading.Event()

    class SlowFile(cache.StateFile):
        def write(self, *given: Any) -> None:
            released.wait(patience.SECONDS)
            super().write(*given)

    async with relayed(tmp_path) as (service, relay):
        inside = relay.relay
        inside._file = SlowFile(tmp_path / "state")
        service.token = "another token of the service"
        for writer in list(service.connections):
            writer.transport.abort()
        await reached(lambda: inside._freshness.refused_since is not None)
        newer(service, 3)
        running.token_file(tmp_path, service.token)
        await reached(lambda: inside._unsaved is not None)
        inside._beat(inside._clock.monotonic() + 2 * REVOKED_SECONDS)
        released.set()
        await reached(lambda: relay.heard)
        assert await relay.incarnation() == "3"
        assert (tmp_path / "state" / cache.FILE_NAME).exists()


async def test_beyond_the_longest_age_connections_close_without_an_answer(tmp_path: Path) -> None:
    async with relayed(tmp_path, max_stale_seconds=10) as (service, relay):
        await service.stop()
        await reached(lambda: not relay.heard)
        last_heard(relay, 11)
        await reached(lambda: relay.relay._is_suspended)
        assert await relay.reply() is None
        await service.start()
        await reached(lambda: not relay.relay._is_suspended)
        assert await relay.status() == 200


async def test_rules_of_the_service_are_followed_as_they_change(tmp_path: Path) -> None:
    async with relayed(tmp_path) as (service, relay):
        bare = post().replace(b"Metadata: true\r\n", b"")
        assert await relay.status(bare) == 400
        service.rules = GuestRules(post_without_header="always", rate_per_second=0)
        service.tell()
        await reached(lambda: relay.relay._held.rules == service.rules)
        assert await relay.status(bare) == 200
        service.rules = GuestRules(enablement="first-request", rate_per_second=0)
        service.tell()
        await reached(lambda: relay.relay._held.rules == service.rules)
        assert await relay.status() == 200
        assert service.asked_for == [("web",)]
        service.rules = GuestRules(post_without_header="of a later release", rate_per_second=0)
        service.tell()
        await reached(lambda: relay.relay._held.rules == service.rules)
        assert await relay.status(bare) == 400
        service.rules = GuestRules(rate_per_second=0.01, rate_burst=1)
        service.tell()
        await reached(lambda: relay.relay._held.rules == service.rules)
        assert [await relay.status() for _ in range(3)][1:] == [429, 429]


async def test_the_service_hears_which_machines_ask_and_by_which_version(tmp_path: Path) -> None:
    async with relayed(tmp_path) as (service, relay):
        (beat,) = (task for task in asyncio.all_tasks() if task.get_name() == "the beat")
        beat.cancel()  # what is news is told at once, without it
        await relay.ask(get(room.EVENTS, 'Forewarn-Agent: held; reason="backup"'))
        await reached(lambda: service.seen)
        (seen,) = service.seen
        assert (seen.machine, seen.version) == ("web-0", "2020-07-01")
        assert (seen.agent, seen.reason) == ("held", "backup")
        assert 0 <= seen.age_seconds < HALF_AN_HOUR
        service.learn(Changes(removed_machines=("web-0",)))
        await reached(lambda: "web-0" not in relay.relay._held.machines)
        assert await relay.status() == 403
        await reached(lambda: "web-0" not in relay.relay._seen._saved)


async def test_the_age_of_a_request_does_not_depend_on_the_services_clock(tmp_path: Path) -> None:
    async with relayed(tmp_path) as (service, relay):
        service.shows_time = False
        clock = SystemClock()
        reader = relay.relay._reader
        for by in (timedelta(hours=-1), timedelta(0)):
            reader.service_time = clock.now() + by, clock.monotonic()
            await relay.ask(get(room.EVENTS))
            for set_to in (timedelta(0), timedelta(hours=1), timedelta(hours=-2)):
                reader.service_time = clock.now() + set_to, clock.monotonic()
                asked_at = relay.relay._sighting("web-0").asked_at
                assert 0 <= relay.relay._age(asked_at) < HALF_AN_HOUR


async def test_a_machine_that_waits_is_made_to_ask_again(tmp_path: Path) -> None:
    async with relayed(tmp_path) as (service, relay):
        request = get(room.EVENTS, "If-None-Match: 2", "Prefer: wait=100")
        reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
        writer.write(request)
        await reached(lambda: relay.relay._guests.figures()["guest_waiters"] == 1)
        service.awaited = ("web-0",)
        service.tell()
        assert (await reader.readline()).split()[1] == b"304"
        writer.close()


async def test_the_disk_is_never_waited_for_where_guests_are_answered(tmp_path: Path) -> None:
    threads: list[int] = []

    class Noting(cache.StateFile):
        def touch(self, at: float) -> None:
            threads.append(threading.get_ident())
            super().touch(at)

    async with relayed(tmp_path) as (_, relay):
        relay.relay._file.unlock()
        relay.relay._file = Noting(tmp_path / "state")
        relay.relay._touch_at = 0.0
        await reached(lambda: threads)
    assert len(threads) > 1, "the last time is noted when it ends"
    assert threading.get_ident() not in threads


@pytest.mark.parametrize("by_sync", [False, True])
async def test_a_machine_that_moved_here_unannounced_is_answered_once_the_service_knows(
    tmp_path: Path, *, by_sync: bool
) -> None:
    here = room.machine("web-1", "127.0.0.1", scope="web")
    async with relayed(tmp_path, SystemClock(), listener=running.GUESTS) as (service, relay):
        if not by_sync:
            service.unknown["127.0.0.1"] = here
        asked = asyncio.ensure_future(relay.status())
        await reached(lambda: service.claims)
        if by_sync:  # fleet sync has seen it
            service.learn(Changes(machines=(here,)))
        assert await asked == 200
        assert service.claims == ["127.0.0.1"]
        await reached(lambda: relay.relay._forwarding._claims == {})  # no timer is left


async def test_a_claimed_machine_is_claimed_again_at_another_replica(tmp_path: Path) -> None:
    replicas = [filled(), filled()]
    moved = room.machine("web-1", "127.0.0.1", scope="web")
    for each in replicas:
        await each.start()
        each.unknown["127.0.0.1"] = moved
    own = settings(tmp_path, *replicas, listener=running.GUESTS)
    async with relaying(own, SystemClock()) as relay:
        assert await relay.status() == 200
        (first,) = [each for each in replicas if each.claims]
        (second,) = [each for each in replicas if each is not first]
        await first.stop()
        await reached(lambda: second.claims == ["127.0.0.1"])
        await reached(lambda: relay.relay._held.machines["web-1"] == moved)
        assert await relay.status() == 200
        for writer in list(second.connections):
            writer.transport.abort()
        await reached(lambda: len(second.claims) == 2)  # it moved: that is not known any more
        await reached(lambda: not relay.relay._forwarding._found)
    await second.stop()


async def test_a_stranger_is_refused_once_the_service_does_not_know_it(tmp_path: Path) -> None:
    async with relayed(tmp_path, listener=running.GUESTS) as (service, relay):
        assert [await relay.status() for _ in range(4)] == [403] * 4
        assert [await relay.status(post()) for _ in range(2)] == [403] * 2
        assert service.claims == ["127.0.0.1"]
    service = filled()

    async def never(request: Request) -> Answer | None:
        if request.path == relay_feed.UNKNOWN_PATH:
            await asyncio.Event().wait()
        return None

    service.other = never
    async with started(service):
        own = settings(tmp_path, service, listener=running.GUESTS)
        async with relaying(own) as relay:
            assert await relay.status() == 403


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


class WrongClock(running.ShortPauses):
    """A host's whose time of day was set wrong."""

    def now(self) -> datetime:
        return super().now() + timedelta(hours=1)


@pytest.mark.parametrize(("shows_time", "wrong_by"), [(True, 0), (False, 3600)])
async def test_guests_count_their_notice_by_the_services_time_though_the_hosts_is_wrong(
    tmp_path: Path, *, shows_time: bool, wrong_by: int
) -> None:
    service = filled()
    service.shows_time = shows_time  # a service of an earlier release shows none
    await service.start()
    async with relaying(settings(tmp_path, service), WrongClock()) as relay:
        answer = await relay.ask()
        sent = codec.any_date(answer.headers["date"])
        assert abs((sent - SystemClock().now()).total_seconds() - wrong_by) < HALF_AN_HOUR
        await reached(lambda: service.seen)
        assert service.seen[0].age_seconds < HALF_AN_HOUR
    await service.stop()
