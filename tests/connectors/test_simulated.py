"""The simulated connector's hosts: who is where, what moves there, and what a reboot changes."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

import patience
from connectors.workshop import STARTED, play, task
from forewarn.clock import ManualClock
from forewarn.connectors.port import Found, Outcome
from forewarn.connectors.simulated import HOST_REBOOT, SimulatedConnector
from forewarn.vocabulary import EventType
from guest.room import machine

SECOND = timedelta(seconds=1)


class Room:
    def __init__(self, file: Path) -> None:
        self.clock = ManualClock(STARTED)
        self.machines = [
            machine(name, host=host, vm_id=f"id-of-{name}")
            for name, host in (("web-0", "h1"), ("web-1", "h1"), ("db", "h2"))
        ]
        self.file = file

    def connector(self) -> SimulatedConnector:
        return SimulatedConnector(self.clock, {}, lambda: self.machines, self.file)

    async def done(self, work: "asyncio.Task[Outcome]") -> bool:
        await patience.settled()
        return work.done()


@pytest.fixture
def room(tmp_path: Path) -> Room:
    return Room(tmp_path / "hosts.json")


def test_a_host_that_lost_its_last_machine_is_still_there_after_a_restart(room: Room) -> None:
    play(room.connector().survey())
    room.machines = [machine("db", host="h2")]
    assert play(room.connector().survey())["h1"].guests == ()


def test_a_file_that_a_power_cut_left_empty_keeps_no_service_from_its_start(room: Room) -> None:
    room.file.touch()
    assert [*play(room.connector().survey())] == ["h1", "h2"]


def test_hosts_that_reboot_at_the_same_time_are_all_remembered(room: Room) -> None:
    async def reboot(connector: SimulatedConnector) -> list[Outcome]:
        hosts = (f"h{number}" for number in range(20))
        return await asyncio.gather(*map(connector.reboot_host, hosts))

    for _ in range(10):  # each showed it before, in two of three cases
        assert all(outcome.succeeded for outcome in play(reboot(room.connector())))
        assert len(play(room.connector().survey())) == 20
        room.file.unlink()


@pytest.mark.parametrize("cold", [False, True])
def test_a_move_goes_where_the_task_says_and_else_to_the_emptiest_open_host(
    room: Room, cold: bool
) -> None:
    connector = room.connector()
    room.machines.append(machine("x", host="h3"))
    play(connector.survey())
    room.machines.pop()
    room.clock.advance(timedelta(hours=1))
    move = {"event_type": EventType.FREEZE, "live_migration": True, "hosts": ("h1",)}
    if cold:
        move = {"event_type": EventType.REDEPLOY, "hosts": ("h1",)}
    assert play(connector.perform(task(**move, to_host="h2"))).hosts == {"web-0": "h2"}
    assert play(connector.perform(task(**move))).hosts == {"web-0": "h3"}
    closed = task(**move, closed_hosts=("h3",))
    assert play(connector.check(closed)) == Outcome(succeeded=True, hosts={"web-0": "h2"})


async def test_a_reboot_with_its_host_lasts_until_the_host_has_rebooted(room: Room) -> None:
    connector = room.connector()
    facts = (await connector.survey())["h1"]
    stop = task(hosts=("h1",), host_boot_id=facts.boot_id)
    work = asyncio.create_task(connector.perform(stop))
    room.clock.advance(timedelta(hours=1))
    assert not await room.done(work)
    off = (await connector.survey())["h1"].guests[0]
    assert (off.name, off.running) == ("web-0", False)
    assert await connector.check(stop) is Found.NOT_DONE
    await connector.reboot_host("h1")
    room.clock.advance(HOST_REBOOT - SECOND)
    assert not await room.done(work)
    room.clock.advance(2 * SECOND)
    assert await room.done(work)
    assert (await connector.survey())["h1"].guests[0].running
