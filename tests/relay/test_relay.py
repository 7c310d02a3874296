"""The relay beside its stories: threads, the disk, clocks and other relays."""

import asyncio
import os
import threading
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

import patience
from forewarn.clock import SystemClock
from forewarn.maintenance.model import Changes
from forewarn.relay import cache
from forewarn.relay.cache import REVOKED_SECONDS, HostDocuments, StateFile, StateUnusable
from guest import room
from guest.room import get, post
from patience import reached
from relay import running
from relay.running import filled, made, relayed, relaying, settings, started
from relay.standin import StandIn

HALF_AN_HOUR = 1800.0
"""By a clock that is taken wrongly, an age is wrong by an hour here, or more."""


def newer(standin: StandIn, incarnation: int) -> None:
    """Let the scope have another incarnation."""
    changed = replace(standin.documents.scope("web"), incarnation=incarnation)
    standin.learn(Changes(scopes=(changed,)))


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


class Watched(StateFile):
    """A file that notes what is done with it, by other threads than guests are answered on."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.may_write = threading.Event()
        self.done: list[str] = []
        self._loop = threading.get_ident()

    def _note(self, done: str) -> None:
        assert threading.get_ident() != self._loop  # a disk may hang
        self.done.append(done)

    def write(self, known: HostDocuments) -> None:
        self.may_write.wait(patience.SECONDS)
        super().write(known)
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


async def test_nothing_is_forgotten_while_news_after_a_refused_token_is_saved(
    tmp_path: Path,
) -> None:
    async with relayed(tmp_path) as (service, relay):
        inside = relay.relay
        file = inside._file = Watched(tmp_path / "state")
        service.token = "another token of the service"
        service.drop()
        await reached(lambda: inside._freshness.refused_since is not None)
        newer(service, 3)
        running.token_file(tmp_path, service.token)
        await reached(lambda: inside._unsaved is not None)
        inside._beat(inside._clock.monotonic() + 2 * REVOKED_SECONDS)
        file.may_write.set()
        await reached(lambda: relay.heard)
        assert await relay.incarnation() == "3"
        assert (tmp_path / "state" / cache.FILE_NAME).exists()
        inside._forget()
        await reached(lambda: "remove" in file.done)


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
