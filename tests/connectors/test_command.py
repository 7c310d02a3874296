"""The operator's program and its outcome: real programs, as an operator may write them."""

import asyncio
import json
import os
import re
import resource
import shutil
from pathlib import Path

import pytest
from structlog.testing import capture_logs

import patience
from connectors.workshop import Workshop, play, task, tell, told
from forewarn.connectors.command import CommandConnector, CommandConnectorSettings, CommandUnusable
from forewarn.connectors.port import Found, Outcome
from forewarn.vocabulary import EventType, TargetKind

GO_ON = Outcome(succeeded=True)


def test_a_program_reads_the_act_and_finds_it_in_its_variables(shop: Workshop) -> None:
    connector = shop.connector(
        "env > variables; cat > task",
        environment={
            "FOREWARN_SET_LOG__LEVEL": "debug",
            "FOREWARN_TOKEN": "secret",
            "CREDENTIALS_DIRECTORY": "/run/secret",
            "NOTIFY_SOCKET": "@x",
            "CLOUD_PROFILE": "prod",
        },
    )
    freeze = task(
        "web-0",
        attempt=2,
        event_type=EventType.FREEZE,
        hosts=("h1",),
        target=TargetKind.HOST,
        live_migration=True,
        description="Host server is undergoing maintenance.",
    )
    assert play(connector.perform(freeze)) == GO_ON
    assert json.loads((shop.folder / "task").read_text(encoding="utf-8")) == {
        "operation": "1.1",
        "attempt": 2,
        "event_type": "Freeze",
        "source": "User",
        "machines": ["web-0"],
        "hosts": ["h1"],
        "vm_ids": ["id-of-web-0"],
        "target": "host",
        "live_migration": True,
        "description": "Host server is undergoing maintenance.",
        "duration_seconds": -1,
        "started_at": "2026-03-02T12:00:00.250000Z",
        "unforeseen": False,
        "to_host": "",
        "closed_hosts": [],
        "host_boot_id": "",
        "machine": "web-0",
        "host": "h1",
        "vm_id": "id-of-web-0",
    }
    variables = dict(line.split("=", 1) for line in shop.lines("variables"))
    assert variables["CLOUD_PROFILE"] == "prod"
    assert not variables.keys() & {"CREDENTIALS_DIRECTORY", "NOTIFY_SOCKET"}
    assert {name: value for name, value in variables.items() if name.startswith("FOREWARN")} == {
        "FOREWARN_OPERATION": "1.1",
        "FOREWARN_ATTEMPT": "2",
        "FOREWARN_EVENT_TYPE": "Freeze",
        "FOREWARN_SOURCE": "User",
        "FOREWARN_MACHINES": "web-0",
        "FOREWARN_HOSTS": "h1",
        "FOREWARN_VM_IDS": "id-of-web-0",
        "FOREWARN_TARGET": "host",
        "FOREWARN_LIVE_MIGRATION": "true",
        "FOREWARN_DESCRIPTION": "Host server is undergoing maintenance.",
        "FOREWARN_DURATION_SECONDS": "-1",
        "FOREWARN_STARTED_AT": "2026-03-02T12:00:00.250000Z",
        "FOREWARN_UNFORESEEN": "false",
        "FOREWARN_TO_HOST": "",
        "FOREWARN_CLOSED_HOSTS": "",
        "FOREWARN_HOST_BOOT_ID": "",
        "FOREWARN_MACHINE": "web-0",
        "FOREWARN_HOST": "h1",
        "FOREWARN_VM_ID": "id-of-web-0",
    }


def test_a_list_too_long_for_a_variable_is_on_standard_input_only(shop: Workshop) -> None:
    body = 'test -z "${FOREWARN_MACHINES+set}" && test "$FOREWARN_OPERATION" = 1.1 && wc -c > size'
    connector = shop.connector(body, per="operation")
    names = tuple(f"machine-with-a-long-name-{n}" for n in range(5000))
    assert play(connector.perform(task(*names))) == GO_ON
    assert int(shop.lines("size")[0]) > 150_000


def test_of_a_thousand_machines_an_outcome_names_a_few(shop: Workshop) -> None:
    connector = shop.connector("exit 1", at_once=32)
    outcome = play(connector.perform(task(*(f"web-{n}" for n in range(40)))))
    assert isinstance(outcome, Outcome)
    assert "web-9 and 30 more; succeeded: none" in outcome.message
    assert len(outcome.message) < 2000


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
    await tell(go)
    outcome = await performing
    assert isinstance(outcome, Outcome)
    assert outcome.succeeded
    assert outcome.message.endswith("the end")
    assert len(outcome.message) <= 1500


@pytest.mark.parametrize(
    ("body", "ended"),
    [
        ("exec sleep 300", "SIGTERM"),
        ("trap 'exit 0' TERM; sleep 300 & wait", "SIGTERM"),
        ("trap '' TERM; while :; do sleep 1; done", "SIGKILL"),
    ],
    ids=["plain", "orderly", "stubborn"],
)
async def test_what_is_over_its_time_limit_is_ended_with_all_that_it_began(
    shop: Workshop, body: str, ended: str
) -> None:
    held = shop.pipe("held")
    connector = shop.connector(
        f"(trap '' TERM; exec sleep 300) > held &\n{body}",
        time_limit_seconds=0.3,
        grace_seconds=0.2,
    )
    gone = asyncio.create_task(told(held))
    outcome = await connector.perform(task())
    await gone  # the pipe is closed when the last process of the group has gone
    assert isinstance(outcome, Outcome)
    assert not outcome.succeeded
    assert ended in outcome.message


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("/nowhere/maintain", "/nowhere/maintain"),
        ("no-such-program", "no-such-program"),
        ("{folder}/plain", "/plain"),
        ("{folder}/empty", "Exec format error"),
        ("{folder}/strange", "No such file or directory"),
    ],
)
def test_a_program_that_cannot_be_run_is_a_failure_that_says_why(
    shop: Workshop, program: str, why: str
) -> None:
    for name, text, mode in (
        ("plain", "#!/bin/sh\n", 0o644),
        ("empty", "echo\n", 0o755),
        ("strange", "#!/nowhere/sh\n", 0o755),
    ):
        (shop.folder / name).write_text(text, encoding="ascii")
        (shop.folder / name).chmod(mode)
    settings = CommandConnectorSettings(program=(program.format(folder=shop.folder),))
    outcome = play(CommandConnector(settings, shop.state, os.environ).perform(task()))
    assert isinstance(outcome, Outcome)
    assert not outcome.succeeded
    assert why in outcome.message


def test_a_run_that_cannot_be_begun_is_a_failure_that_says_why(shop: Workshop) -> None:
    connector = shop.connector("echo ran > ran")
    shutil.rmtree(shop.state)
    shop.state.touch()
    outcome = play(connector.perform(task()))
    assert isinstance(outcome, Outcome)
    assert not outcome.succeeded
    assert outcome.message
    assert not shop.lines("ran")


async def test_a_state_folder_that_was_removed_is_made_again_and_what_it_had_is_unknown(
    shop: Workshop,
) -> None:
    begun, go = shop.pipe("begun"), shop.pipe("go")
    connector = shop.connector(
        f'test "$FOREWARN_OPERATION" = 2.1 || {{ echo > {begun}; read _ < {go}; }}; '
        'echo "$FOREWARN_OPERATION" >> ran'
    )
    first = asyncio.create_task(connector.perform(task()))
    await told(begun)
    shutil.rmtree(shop.state)
    assert await connector.perform(task(operation="2.1")) == Outcome(succeeded=True, message="")
    await tell(go)
    assert await first is Found.UNKNOWN
    again = shop.connector("echo repeated >> ran")  # after a restart
    assert await again.check(task(attempt=2)) is Found.UNKNOWN
    assert shop.lines("ran") == ["2.1", "1.1"]


async def test_an_end_that_cannot_be_looked_at_for_want_of_files_is_no_failure(
    shop: Workshop,
) -> None:
    begun, go = shop.pipe("begun"), shop.pipe("go")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    performing = asyncio.create_task(
        shop.connector(f"echo > {begun}; read _ < {go}").perform(task())
    )
    await told(begun)
    writing = os.open(go, os.O_RDWR)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        with capture_logs() as logs:
            os.write(writing, b"go\n")
            await patience.reached(lambda: logs or performing.done())
        assert not performing.done()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        os.close(writing)
    assert await performing == GO_ON


def test_machines_are_done_together_as_far_as_the_limit_allows(shop: Workshop) -> None:
    shop.pipe("web-0")
    shop.pipe("web-1")
    connector = shop.connector(
        'case "$FOREWARN_MACHINE" in\n'
        "web-0) echo here > web-1; read -r _ < web-0;;\n"
        "web-1) read -r _ < web-1; echo here > web-0;;\n"
        "esac",
        at_once=2,
        time_limit_seconds=patience.SECONDS,
    )
    assert play(connector.perform(task("web-0", "web-1"))) == GO_ON


async def test_no_more_are_under_way_than_the_limit(shop: Workshop) -> None:
    (shop.folder / "now").mkdir()
    connector = shop.connector(
        'mkdir "now/$FOREWARN_OPERATION"; ls now | wc -l >> log; rmdir "now/$FOREWARN_OPERATION"',
        at_once=2,
    )
    tasks = [connector.perform(task(operation=f"{n}.1")) for n in range(1, 21)]
    assert await asyncio.gather(*tasks) == [GO_ON] * 20
    counts = [int(line) for line in shop.lines("log")]
    assert len(counts) == 20
    assert max(counts) <= 2


def test_on_windows_it_refuses_in_one_line(shop: Workshop) -> None:
    settings = CommandConnectorSettings(program=("maintain",))
    with pytest.raises(CommandUnusable, match="needs a POSIX system"):
        CommandConnector(settings, shop.state, os.environ, os_name="nt")


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (CommandConnectorSettings(), "connector.command.program is empty"),
        (CommandConnectorSettings(program=("",)), "connector.command.program is empty"),
        (CommandConnectorSettings(program=("./maintain",)), "'./maintain'"),
        (CommandConnectorSettings(program=("a\0b",)), "NUL"),
        (CommandConnectorSettings(program=("a",), check_command=("b/c",)), "check_command.*'b/c'"),
    ],
)
def test_settings_that_cannot_work_are_refused(
    shop: Workshop, settings: CommandConnectorSettings, why: str
) -> None:
    with pytest.raises(CommandUnusable, match=why):
        CommandConnector(settings, shop.state, os.environ)


def test_a_state_folder_that_cannot_be_made_is_refused(shop: Workshop) -> None:
    shutil.rmtree(shop.state)
    shop.state.write_text("a file", encoding="ascii")
    with pytest.raises(CommandUnusable, match="state"):
        shop.connector("")
