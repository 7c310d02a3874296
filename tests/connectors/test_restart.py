"""What the next process finds: tasks that went on, that ended meanwhile, that were lost."""

import asyncio
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import forked
import patience
from connectors.workshop import STARTED, Workshop, play, task, tell, told
from forewarn.connectors.command import CommandConnector, CommandConnectorSettings
from forewarn.connectors.port import Found, Outcome

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

SLOW = "echo $$ > began; echo began >> log; cat go; echo done >> log; echo fine >&2"


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


def test_what_was_never_begun_is_not_done(shop: Workshop) -> None:
    connector = shop.connector("echo ran >> log")
    assert play(connector.check(task(attempt=2))) is Found.NOT_DONE
    shop.run_folder().mkdir(parents=True)
    os.mkfifo(shop.run_folder() / "alive")
    assert play(connector.check(task(attempt=2))) is Found.NOT_DONE
    assert play(connector.perform(task(attempt=2))) == Outcome(succeeded=True)
    assert shop.lines("log") == ["ran"]


async def lose(shop: Workshop) -> None:
    """Let the runner of attempt 1 be killed while its program runs."""
    began, go = shop.pipe("began"), shop.pipe("go")
    performing = asyncio.create_task(shop.connector(SLOW).perform(task()))
    await told(began)
    os.kill(shop.runner(), signal.SIGKILL)
    assert await performing is Found.UNKNOWN
    await tell(go)
    assert not (shop.run_folder() / "result").exists()


async def test_what_was_lost_between_its_beginning_and_its_result_nobody_knows(
    shop: Workshop,
) -> None:
    await lose(shop)
    again = shop.connector("echo again >> log")
    assert await again.check(task(attempt=2)) is Found.UNKNOWN
    assert "again" not in shop.lines("log")


def test_a_process_number_that_is_used_again_deceives_nobody(shop: Workshop) -> None:
    connector = shop.connector("")
    shop.run_folder().mkdir(parents=True)
    os.mkfifo(shop.run_folder() / "alive")
    (shop.run_folder() / "begun").write_text(f"{os.getpid()}\n", encoding="ascii")
    assert play(connector.check(task(attempt=2))) is Found.UNKNOWN


async def test_what_an_operator_said_to_repeat_is_done_again(shop: Workshop) -> None:
    await lose(shop)
    connector = shop.connector("echo again >> log")
    assert await connector.check(task(attempt=3, repeat_after=2)) is Found.NOT_DONE
    assert await connector.perform(task(attempt=3, repeat_after=2)) == Outcome(succeeded=True)
    assert "again" in shop.lines("log")


def test_what_was_claimed_before_the_folder_was_lost_is_not_repeated_unasked(
    shop: Workshop,
) -> None:
    play(shop.connector("echo done >> log").perform(task()))
    shutil.rmtree(shop.state)
    connector = shop.connector("echo again >> log")
    assert play(connector.check(task(attempt=2))) is Found.UNKNOWN
    assert play(connector.check(task(attempt=4, repeat_after=3))) is Found.NOT_DONE
    assert play(connector.check(task("2.1", attempt=2))) is Found.UNKNOWN
    play(connector.forget(task("2.1", attempt=2)))
    # Once it is there again, a claim without a run has begun nothing.
    assert play(shop.connector("").check(task(attempt=2))) is Found.NOT_DONE
    assert shop.lines("log") == ["done"]


def test_an_earlier_attempts_doubt_is_no_longer_asked_about_but_a_later_ones_is(
    shop: Workshop,
) -> None:
    connector = shop.connector("")
    shop.run_folder(run="3.0.web-0").mkdir(parents=True)
    (shop.run_folder(run="3.0.web-0") / "begun").touch()
    assert play(connector.check(task(attempt=4, repeat_after=2))) is Found.UNKNOWN
    assert play(connector.check(task(attempt=4, repeat_after=3))) is Found.NOT_DONE


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ('echo \'{"hosts": {"web-0": "h7"}}\'', Outcome(succeeded=True, hosts={"web-0": "h7"})),
        ("echo '{\"done\": false}'", Found.NOT_DONE),
        ("echo '{\"done\": false}'; exit 1", Found.UNKNOWN),
        ("echo '{\"done\": false'", Found.UNKNOWN),
        ("exit 1", Found.UNKNOWN),
        ("kill -9 $$", Found.UNKNOWN),
    ],
)
async def test_the_check_command_decides_what_nobody_knows(
    shop: Workshop, body: str, found: Outcome | Found
) -> None:
    await lose(shop)
    check = shop.program(f'test "$FOREWARN_MACHINE" = web-0 || exit 9\n{body}', "check")
    connector = shop.connector("echo again >> log", check_command=(check,))
    assert await connector.check(task(attempt=2)) == found
    if isinstance(found, Outcome):
        assert await connector.check(task(attempt=3)) == found  # without asking again
        assert await connector.perform(task(attempt=3)) == found
        assert "again" not in shop.lines("log")


async def test_a_check_command_that_cannot_be_run_knows_nothing(shop: Workshop) -> None:
    await lose(shop)
    connector = shop.connector("", check_command=("/nowhere/check",))
    assert await connector.check(task(attempt=2)) is Found.UNKNOWN


def test_only_machines_without_a_result_are_done_by_the_next_attempt(shop: Workshop) -> None:
    connector = shop.connector('echo "$FOREWARN_ATTEMPT $FOREWARN_MACHINE" >> log')
    play(connector.perform(task("web-0")))
    both = task("web-0", "web-1", attempt=2)
    assert play(connector.check(both)) is Found.NOT_DONE
    assert play(connector.perform(both)) == Outcome(succeeded=True)
    assert shop.lines("log") == ["1 web-0", "2 web-1"]


def test_what_was_begun_for_a_whole_operation_is_ended_so(shop: Workshop) -> None:
    whole = shop.connector("echo once >> log", per="operation")
    play(whole.perform(task("web-0", "web-1")))
    each = shop.connector("echo each >> log", per="machine")
    found = play(each.check(task("web-0", "web-1", attempt=2)))
    assert found == Outcome(succeeded=True)
    assert shop.lines("log") == ["once"]


def test_a_result_belongs_to_the_operation_that_started_then(shop: Workshop) -> None:
    connector = shop.connector("")
    play(connector.perform(task()))
    later = task(attempt=2, started_at=STARTED.replace(hour=13))
    assert play(connector.check(later)) is Found.NOT_DONE


@pytest.mark.parametrize("result", ["", "exit 0 0 5 0\n", "exit x 0 0 0\n", "maybe 0 0 0 0\n"])
def test_a_result_that_is_none_is_not_believed(shop: Workshop, result: str) -> None:
    connector = shop.connector("")
    play(connector.perform(task()))
    (shop.run_folder() / "result").write_text(result, encoding="ascii")
    assert play(connector.check(task(attempt=2))) is Found.UNKNOWN


async def test_an_attempt_that_another_has_taken_over_begins_nothing_more(shop: Workshop) -> None:
    began, go = shop.pipe("began"), shop.pipe("go")
    connector = shop.connector(
        'echo "$FOREWARN_OPERATION" >> log; test $FOREWARN_OPERATION = 2.1 || exit 0\n'
        "echo began > began; cat go",
        at_once=1,
    )
    first = asyncio.create_task(connector.perform(task(operation="2.1")))
    await told(began)
    stale = asyncio.create_task(connector.perform(task(attempt=1)))
    await patience.reached(lambda: connector._slots._waiters)  # it waits for its turn
    assert await connector.check(task(attempt=2)) is Found.NOT_DONE
    await tell(go)
    await first
    outcome = await stale
    assert isinstance(outcome, Outcome)
    assert "attempt 2 " in outcome.message
    assert shop.lines("log") == ["2.1"]


def test_what_is_recorded_is_forgotten(shop: Workshop) -> None:
    connector = shop.connector("")
    play(connector.perform(task()))
    play(connector.perform(task(operation="2.1")))
    play(connector.forget(task()))
    assert [place.name.split("@")[0] for place in shop.runs()] == ["2.1"]
    play(connector.forget(task()))


async def test_at_start_what_is_over_is_swept_but_for_what_is_under_way(shop: Workshop) -> None:
    began, go = shop.pipe("began"), shop.pipe("go")
    connector = shop.connector("test $FOREWARN_OPERATION != 3.1 || { echo > began; cat go; }")
    for name in ("1.1", "2.1"):
        await connector.perform(task(operation=name))
    under_way = asyncio.create_task(connector.perform(task(operation="3.1")))
    await told(began)
    (shop.state / "mine.txt").touch()
    restarted = CommandConnector(
        CommandConnectorSettings(program=("true",)), shop.state, os.environ
    )
    await restarted.sweep({"2.1"})
    left = {place.name.split("@")[0] for place in shop.runs()}
    assert left == {"2.1", "3.1", "mine.txt"}
    await tell(go)
    await under_way
    await restarted.sweep(())
    assert [place.name for place in shop.runs()] == ["mine.txt"]


def test_the_state_folder_is_its_owners_alone(shop: Workshop) -> None:
    play(shop.connector("").perform(task()))
    folders = [shop.state, shop.run_folder().parent, shop.run_folder()]
    assert {Path(folder).stat().st_mode & 0o777 for folder in folders} == {0o700}
