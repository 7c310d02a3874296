"""What the next process finds: tasks that went on, that ended meanwhile, that were lost."""

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import forked
import patience
from connectors.workshop import SLOW, STARTED, Workshop, play, task, tell, told
from forewarn.connectors.libvirt.connector import LibvirtConnector
from forewarn.connectors.port import Found, Outcome
from forewarn.connectors.settings import LibvirtHost, LibvirtSettings

SERVICE = """
import asyncio, os, sys
from datetime import datetime
from pathlib import Path
from forewarn.connectors.command import CommandConnector, CommandConnectorSettings
from forewarn.connectors.port import Task
from forewarn.vocabulary import EventSource, EventType, TargetKind

state, program, started = sys.argv[1:]
task = Task(
    operation="1.1", attempt=1, event_type=EventType.REBOOT, source=EventSource.USER,
    machines=("web-0",), hosts=("h0",), vm_ids=("id-of-web-0",), target=TargetKind.MACHINES,
    live_migration=False, description="", duration_seconds=-1,
    started_at=datetime.fromisoformat(started),
)
connector = CommandConnector(CommandConnectorSettings(program=(program,)), Path(state), os.environ)
asyncio.run(connector.perform(task))
"""
"""A service that does nothing but carry one task out."""


def serve(shop: Workshop) -> forked.Forked:
    arguments = (str(shop.state), shop.program(SLOW), STARTED.isoformat())
    return forked.Forked(
        ["-c", SERVICE, *arguments],
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
async def test_the_end_of_the_service_neither_ends_nor_repeats_a_program(
    shop: Workshop, number: signal.Signals
) -> None:
    began, go = shop.pipe("began"), shop.pipe("go")
    service = serve(shop)
    await told(began)
    os.killpg(service.pid, number)
    await asyncio.to_thread(service.wait)
    checking = asyncio.create_task(shop.connector(SLOW).check(task(attempt=2)))
    await tell(go)
    assert await checking == Outcome(succeeded=True, message="fine")
    assert shop.lines("log") == ["began", "done"]


async def test_what_ended_while_no_service_was_there_is_found(shop: Workshop) -> None:
    began, go = shop.pipe("began"), shop.pipe("go")
    service = serve(shop)
    await told(began)
    service.kill()
    await asyncio.to_thread(service.wait)
    # Opened while the runner still holds it: afterwards opening would wait for ever.
    alive = os.open(shop.run_folder() / "alive", os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(alive, True)
    await tell(go)
    assert await asyncio.to_thread(os.read, alive, 1) == b""  # the runner has ended
    os.close(alive)
    connector = shop.connector("echo again >> log")
    assert await connector.check(task(attempt=2)) == Outcome(succeeded=True, message="fine")
    assert await connector.perform(task(attempt=3)) == Outcome(succeeded=True, message="fine")
    assert shop.lines("log") == ["began", "done"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits another process")
async def test_a_result_waits_for_room_on_a_full_disk(shop: Workshop) -> None:
    """A limit on the size of files stands for the full disk, with EFBIG in the place of ENOSPC."""
    began, go = shop.pipe("began"), shop.pipe("go")
    performing = asyncio.create_task(shop.connector(SLOW).perform(task()))
    await told(began)
    runner = shop.runner()
    _, hard = resource.prlimit(runner, resource.RLIMIT_FSIZE)
    resource.prlimit(runner, resource.RLIMIT_FSIZE, (0, hard))
    await tell(go)
    await asyncio.to_thread(patience.until, (shop.run_folder() / "result.new").exists)
    resource.prlimit(runner, resource.RLIMIT_FSIZE, (hard, hard))
    assert await performing == Outcome(succeeded=True, message="fine")
    assert shop.lines("log") == ["began", "done"]


def test_the_state_folder_is_its_owners_alone(shop: Workshop) -> None:
    play(shop.connector("").perform(task()))
    folders = [shop.state, shop.run_folder().parent, shop.run_folder()]
    assert {Path(folder).stat().st_mode & 0o777 for folder in folders} == {0o700}


@pytest.mark.parametrize(("others", "again"), [((), False), (("there",), True)])
def test_libvirts_program_asks_the_hosts_and_knows_that_it_may_have_begun(
    shop: Workshop, others: tuple[str, ...], again: bool
) -> None:
    """Its marker is in the machine, so its check is exact from any host."""
    body = """cat > told; echo $3 >> verbs; echo '{"done": false}'"""
    settings = LibvirtSettings(
        python=shop.program(body, "python"), host=(LibvirtHost(name="h1", uri="test:///default"),)
    )
    own = LibvirtConnector(settings, shop.state, os.environ)
    second = task(attempt=2, claimed_elsewhere=others)
    assert play(own.check(second)) is Found.NOT_DONE
    assert shop.lines("verbs") == (["check"] if others else [])
    play(own.perform(second))
    assert json.loads((shop.folder / "told").read_text("utf-8"))["again"] is again
