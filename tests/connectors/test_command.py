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


def test_exit_status_0_is_success_and_its_standard_error_is_kept(shop: Workshop) -> None:
    connector = shop.connector("echo noise; echo rebooted web-0 >&2")
    assert play(connector.perform(task())) == Outcome(succeeded=True, message="rebooted web-0")


def test_any_other_exit_status_is_failure_and_says_so(shop: Workshop) -> None:
    connector = shop.connector("echo no such domain >&2; exit 3")
    outcome = play(connector.perform(task()))
    assert outcome == Outcome(succeeded=False, message="exit status 3: no such domain")


@pytest.mark.parametrize("signal", ["KILL", "TERM", "PIPE", "INT", "HUP", "SEGV"])
def test_a_signal_is_failure_and_named(shop: Workshop, signal: str) -> None:
    outcome = play(shop.connector(f"kill -s {signal} $$").perform(task()))
    assert outcome == Outcome(succeeded=False, message=f"killed by SIG{signal}")


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


def test_once_an_operation_there_is_one_run_for_all_machines(shop: Workshop) -> None:
    connector = shop.connector('echo "$FOREWARN_MACHINES/$FOREWARN_HOSTS" >> log', per="operation")
    whole = task("web-0", "web-3", hosts=("h0", ""))
    assert play(connector.perform(whole)) == GO_ON
    assert shop.lines("log") == ["web-0 web-3/h0 -"]


def test_a_list_too_long_for_a_variable_is_on_standard_input_only(shop: Workshop) -> None:
    body = 'test -z "${FOREWARN_MACHINES+set}" && test "$FOREWARN_OPERATION" = 1.1 && wc -c > size'
    connector = shop.connector(body, per="operation")
    names = tuple(f"machine-with-a-long-name-{n}" for n in range(5000))
    assert play(connector.perform(task(*names))) == GO_ON
    assert int(shop.lines("size")[0]) > 150_000


def test_one_machine_that_fails_fails_the_operation_and_each_is_named(shop: Workshop) -> None:
    connector = shop.connector(
        'test "$FOREWARN_MACHINE" != web-3 || { echo broken >&2; exit 2; }\n'
        'echo "{\\"hosts\\": {\\"$FOREWARN_MACHINE\\": \\"h7\\"}}"'
    )
    outcome = play(connector.perform(task("web-0", "web-3", "web-6")))
    assert outcome == Outcome(
        succeeded=False,
        message="failed: web-3; succeeded: web-0, web-6\nweb-3: exit status 2: broken",
        hosts={"web-0": "h7", "web-6": "h7"},
    )


def test_of_a_thousand_machines_an_outcome_names_a_few(shop: Workshop) -> None:
    connector = shop.connector("exit 1", at_once=32)
    outcome = play(connector.perform(task(*(f"web-{n}" for n in range(40)))))
    assert isinstance(outcome, Outcome)
    assert "web-9 and 30 more; succeeded: none" in outcome.message
    assert len(outcome.message) < 2000


def test_the_last_line_of_output_may_name_new_hosts_and_say_something(shop: Workshop) -> None:
    connector = shop.connector(
        'echo moving; echo progress >&2; echo \'{"hosts": {"web-0": "h7"}, "message": "moved"}\''
    )
    outcome = play(connector.perform(task()))
    assert outcome == Outcome(succeeded=True, message="moved", hosts={"web-0": "h7"})


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"hosts": ["web-0"]}', "the last line"),
        ('{"hosts": {"web-0": 7}}', "the last line"),
        ('{"hosts": {"web-0": "h7"', "the last line"),
        ('{"hosts": {"web-0": "h\\u001b[2J"}}', "'web-0'"),
    ],
)
@pytest.mark.parametrize("status", [0, 4])
def test_output_that_is_not_understood_is_said_and_the_exit_status_decides(
    shop: Workshop, line: str, complaint: str, status: int
) -> None:
    shop.folder.joinpath("line").write_text(line + "\n", encoding="utf-8")
    outcome = play(shop.connector(f"cat line; exit {status}").perform(task()))
    assert isinstance(outcome, Outcome)
    assert outcome.succeeded == (status == 0)
    assert complaint in outcome.message
    assert outcome.hosts == {}


def test_what_is_no_utf_8_or_moves_a_cursor_is_made_harmless(shop: Workshop) -> None:
    connector = shop.connector(r"printf 'caf\351 \033[31mred\033[0m\n' >&2; exit 1")
    outcome = play(connector.perform(task()))
    assert outcome == Outcome(
        succeeded=False, message="exit status 1: caf\ufffd \ufffd[31mred\ufffd[0m"
    )


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


async def test_what_a_program_leaves_behind_is_not_waited_for(shop: Workshop) -> None:
    held = shop.pipe("held")
    connector = shop.connector("{ cat held; echo late > late; } & echo fine >&2")
    assert await connector.perform(task()) == Outcome(succeeded=True, message="fine")
    await tell(held)


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


def test_those_that_wait_come_in_order(shop: Workshop) -> None:
    connector = shop.connector('echo "$FOREWARN_MACHINE" >> log', at_once=1)
    names = [f"web-{n}" for n in range(10)]
    assert play(connector.perform(task(*names))) == GO_ON
    assert shop.lines("log") == names


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
