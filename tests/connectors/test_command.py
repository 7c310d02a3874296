"""The operator's program and its outcome: real programs, as an operator may write them."""

import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

import patience
from client.scripted import without_files, without_threads
from connectors.workshop import Workshop, play, task, tell, told
from forewarn.connectors import runner
from forewarn.connectors.command import CommandConnector, CommandConnectorSettings, CommandUnusable
from forewarn.connectors.port import Outcome

GO_ON = Outcome(succeeded=True)


async def test_a_flood_is_read_to_its_end_in_bounded_memory(shop: Workshop) -> None:
    flooded, go = shop.pipe("flooded"), shop.pipe("go")
    connector = shop.connector(
        "yes | head -c 50000000; yes | head -c 50000000 >&2; echo the end >&2\n"
        "echo done > flooded; cat go"
    )
    performing = asyncio.create_task(connector.perform(task()))
    await told(flooded)
    status = await told(Path(f"/proc/{shop.runner()}/status"))
    peak = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert peak
    assert int(peak[1]) < 32 * 1024
    assert "Threads:\t1\n" in status  # another may not be had, and the program would run on alone
    await tell(go)
    outcome = await performing
    assert isinstance(outcome, Outcome)
    assert outcome.succeeded
    assert outcome.message.endswith("the end")
    assert len(outcome.message) <= 1500


@pytest.mark.parametrize("without", [without_files, without_threads])
async def test_an_end_that_cannot_be_looked_at_is_no_failure(
    shop: Workshop, without: Callable[[], AbstractContextManager[None]]
) -> None:
    begun, go = shop.pipe("begun"), shop.pipe("go")
    performing = asyncio.create_task(
        shop.connector(f"echo > {begun}; read _ < {go}").perform(task())
    )
    await told(begun)
    writing = os.open(go, os.O_RDWR)
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor())
    with without(), capture_logs() as logs:
        os.write(writing, b"go\n")
        await patience.reached(lambda: logs or performing.done())
        assert not performing.done()
    os.close(writing)
    assert await performing == GO_ON


def test_a_program_for_which_the_system_gives_no_more_files_has_not_begun(shop: Workshop) -> None:
    folder = shop.run_folder()
    folder.mkdir(parents=True)
    (folder / "task.json").touch()
    run = (runner.__file__, "0", str(folder), "60", "10", shop.program("echo ran >> log"))
    limited = ("/bin/sh", "-c", 'ulimit -n 8; exec "$@"', "sh", sys.executable, "-I", "-S", *run)
    subprocess.run(limited, check=True)
    outcome = play(shop.connector("true").check(task(attempt=2)))
    assert isinstance(outcome, Outcome)
    assert not outcome.succeeded
    assert shop.lines("log") == []


def test_the_state_folder_is_its_owners_alone(shop: Workshop) -> None:
    play(shop.connector("").perform(task()))
    folders = [shop.state, shop.run_folder().parent, shop.run_folder()]
    assert {Path(folder).stat().st_mode & 0o777 for folder in folders} == {0o700}


def test_settings_that_cannot_work_are_refused_in_one_line(shop: Workshop) -> None:
    def refused(why: str, program: str, os_name: str = "posix") -> None:
        settings = CommandConnectorSettings(program=(program,))
        with pytest.raises(CommandUnusable, match=why) as unusable:
            CommandConnector(settings, shop.state, os.environ, os_name=os_name)
        assert "\n" not in str(unusable.value)

    refused("needs a POSIX system", "maintain", os_name="nt")
    shutil.rmtree(shop.state)
    shop.state.write_text("a file", encoding="ascii")
    refused("state", "a")
