"""The service's part: the program run for real, on libvirt's own driver for tests, or a stand-in.

The driver keeps its domain in the memory of the process, so each run finds it as it was at first.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import patience
from connectors import hypervisor
from connectors.workshop import Workshop, play, task, told
from forewarn.connectors.command import MAX_RUNS, CommandUnusable
from forewarn.connectors.libvirt import connector as libvirt
from forewarn.connectors.libvirt.connector import LibvirtConnector
from forewarn.connectors.port import Found, Outcome
from forewarn.connectors.settings import LibvirtHost, LibvirtSettings
from forewarn.vocabulary import EventType

PYTHON = hypervisor.PYTHON
DOMAIN = "6695eb01-f6a4-8304-79aa-97f2502e193f"
"""The one that `test:///default` has."""
HOST = LibvirtHost(name="h1", uri="test:///default")


with_libvirt = pytest.mark.skipif(
    not hypervisor.has_libvirt(), reason=f"{PYTHON} has no module libvirt"
)


def connector(shop: Workshop, *hosts: LibvirtHost, **settings: Any) -> LibvirtConnector:
    terms: dict[str, Any] = {"python": PYTHON, "host": hosts or (HOST,), "freeze_seconds": 0}
    return LibvirtConnector(LibvirtSettings(**(terms | settings)), shop.state, os.environ)


def acting(shop: Workshop, body: str, **settings: Any) -> LibvirtConnector:
    """Return a connector whose Python is a shell program: it gets `-I FILE VERB`."""
    return connector(shop, python=shop.program(body, "python"), **settings)


@with_libvirt
@pytest.mark.parametrize("event_type", [each for each in EventType if each != "Redeploy"])
def test_each_event_type_is_carried_out(shop: Workshop, event_type: EventType) -> None:
    libvirt.require_libvirt(LibvirtSettings(host=(HOST,), python=PYTHON), os.environ)
    outcome = play(connector(shop).perform(task(event_type=event_type, vm_ids=(DOMAIN,))))
    gone = event_type in {EventType.PREEMPT, EventType.TERMINATE}
    assert outcome == Outcome(
        succeeded=True,
        message=outcome.message if isinstance(outcome, Outcome) else "",
        hosts={} if gone else {"web-0": "h1"},
    )


@with_libvirt
def test_a_machine_without_another_host_stays_and_the_outcome_says_why(shop: Workshop) -> None:
    moving = task(event_type=EventType.REDEPLOY, vm_ids=(DOMAIN,))
    outcome = play(connector(shop).perform(moving))
    assert isinstance(outcome, Outcome)
    assert (outcome.succeeded, outcome.hosts) == (False, {"web-0": "h1"})
    assert "exit status" not in outcome.message


@with_libvirt
def test_a_check_of_what_was_not_done_says_so(shop: Workshop) -> None:
    crashing = acting(shop, "exit 3")
    assert play(crashing.perform(task(vm_ids=(DOMAIN,)))) is Found.UNKNOWN
    assert play(connector(shop).check(task(vm_ids=(DOMAIN,), attempt=2))) is Found.NOT_DONE


@with_libvirt
def test_a_survey_tells_of_every_host_and_guest(shop: Workshop) -> None:
    dark = LibvirtHost(name="h2", uri="qemu+unix:///session?socket=/nowhere", targets=False)
    rebooting = LibvirtHost(name="h3", uri="test:///default?h3", reboot=("true",))
    facts = play(connector(shop, HOST, dark, rebooting).survey())
    assert [*facts] == ["h1", "h2", "h3"]
    (guest,) = facts["h1"].guests
    assert (guest.vm_id, guest.running, guest.obstacles) == (DOMAIN, True, ())
    assert (facts["h1"].answers, facts["h1"].can_reboot, facts["h1"].target) == (True, False, True)
    assert facts["h1"].boot_id
    assert facts["h1"].free_memory_mib + guest.memory_mib >= 0
    assert (facts["h2"].answers, facts["h2"].target) == (False, False)
    assert facts["h2"].why
    assert facts["h3"].can_reboot


def test_a_survey_that_fails_says_why_for_every_host(shop: Workshop) -> None:
    facts = play(acting(shop, "echo out of order >&2; exit 3").survey())
    assert [(each.answers, "out of order" in each.why) for each in facts.values()] == [
        (False, True)
    ]


def test_a_host_is_rebooted_by_its_own_command(shop: Workshop) -> None:
    fine = LibvirtHost(name="h1", uri="test:///1", reboot=(shop.program("echo $1 > said"), "now"))
    bad = LibvirtHost(name="h2", uri="test:///2", reboot=("sh", "-c", "echo no way >&2; exit 3"))
    gone = LibvirtHost(name="h3", uri="test:///3", reboot=("/nowhere/reboot",))
    goes = "echo Connection to h6 closed by remote host. >&2; exit 255"
    cut_off = LibvirtHost(name="h6", uri="test:///6", reboot=("sh", "-c", goes))
    away = LibvirtHost(name="h7", uri="test:///7", reboot=("sh", "-c", "exit 255"))
    without = LibvirtHost(name="h4", uri="test:///4")
    hosts = connector(shop, fine, bad, gone, without, cut_off, away)
    assert play(hosts.reboot_host("h6")).succeeded
    assert play(hosts.reboot_host("h1")).succeeded
    assert shop.lines("said") == ["now"]
    refused = play(hosts.reboot_host("h2"))
    assert not refused.succeeded
    assert "no way" in refused.message
    assert not any(play(hosts.reboot_host(name)).succeeded for name in ("h3", "h4", "h5", "h7"))


def test_a_reboot_command_that_ends_at_once_has_succeeded(shop: Workshop) -> None:
    """By the loop of production too, which fails where a pipe's reader has ended."""
    uvloop = pytest.importorskip("uvloop", reason="uvloop is not for this platform")
    hosts = connector(shop, LibvirtHost(name="h1", uri="test:///1", reboot=("true",)))

    async def story() -> list[Outcome]:
        return await asyncio.gather(*(hosts.reboot_host("h1") for _ in range(20)))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert all(outcome.succeeded for outcome in runner.run(story()))


async def test_a_reboot_command_that_is_given_up_ends_with_all_that_it_began(
    shop: Workshop,
) -> None:
    """It must not reboot the host later, when machines run there again."""
    begun = shop.pipe("begun")
    slow = shop.program("sh -c 'echo begun > begun; sleep 600; true'; true")
    hosts = connector(shop, LibvirtHost(name="h1", uri="test:///1", reboot=(slow,)))
    rebooting = asyncio.create_task(hosts.reboot_host("h1"))
    assert await asyncio.to_thread(begun.read_text) == "begun\n"
    await patience.settled()  # asyncio's own loop goes on for some turns after the fork
    rebooting.cancel()
    await asyncio.wait({rebooting})  # it waits until nobody holds the command's output


def test_the_program_leaves_no_ssh_to_a_host_that_hangs() -> None:
    code = (
        "import subprocess; from forewarn.connectors.libvirt import program; "
        "subprocess.Popen(['sleep', '600']); program.end_group(); print('ended')"
    )
    asked = [sys.executable, "-c", code]
    ran = subprocess.run(  # it waits until nobody holds the program's output
        asked, capture_output=True, check=True, start_new_session=True, timeout=patience.SECONDS
    )
    assert ran.stdout == b"ended\n"


# What becomes of a run.

ENDS = {
    "done": (0, Outcome(succeeded=True, message="it is", hosts={"web-0": "h2"})),
    "failed": (libvirt.FAILED, Outcome(succeeded=False, message="it is", hosts={"web-0": "h2"})),
}
SAYS = """echo '{"hosts": {"web-0": "h2"}, "message": "it is"}'; exit """


def test_a_run_that_was_lost_is_unknown_where_no_other_can_be_started(shop: Workshop) -> None:
    """As on a full disk: the lost run may have done its work."""
    hosts = acting(shop, "echo ran >> log; chmod -x python; kill -9 $$")
    assert play(hosts.perform(task())) is Found.UNKNOWN
    assert shop.lines("log") == ["ran"]


@pytest.mark.parametrize("name", ENDS)
def test_a_run_that_comes_to_an_end_is_run_once(shop: Workshop, name: str) -> None:
    status, outcome = ENDS[name]
    hosts = acting(shop, f"echo ran >> log; {SAYS}{status}")
    assert play(hosts.perform(task())) == outcome
    assert shop.lines("log") == ["ran"]
    assert play(hosts.check(task(attempt=2))) == outcome


@pytest.mark.parametrize("lost", ["exit 1", "kill -KILL $$"])
def test_a_run_that_is_lost_is_followed_by_one_that_goes_on(shop: Workshop, lost: str) -> None:
    body = f"cat >> told; echo >> told; echo ran >> log; [ -e lost ] || {{ : > lost; {lost}; }}; "
    assert play(acting(shop, f"{body}{SAYS}0").perform(task())) == ENDS["done"][1]
    assert len(shop.lines("log")) == 2
    assert [json.loads(line)["again"] for line in shop.lines("told")] == [False, True]


async def test_a_run_whose_runner_is_lost_is_followed_by_one_that_goes_on(shop: Workshop) -> None:
    began, held = shop.pipe("began"), shop.pipe("held")
    hosts = acting(
        shop, f"echo ran >> log; [ -e lost ] || {{ : > lost; echo > began; cat held; }}; {SAYS}0"
    )
    performing = asyncio.create_task(hosts.perform(task()))
    await told(began)
    os.kill(shop.runner(), signal.SIGKILL)
    assert await performing == ENDS["done"][1]
    assert len(shop.lines("log")) == 2
    held.write_text("")  # the first one ends, too


def test_a_run_that_cannot_tell_is_not_followed_by_another(shop: Workshop) -> None:
    hosts = acting(shop, f"echo ran >> log; exit {libvirt.UNKNOWN}")
    assert play(hosts.perform(task())) is Found.UNKNOWN
    assert shop.lines("log") == ["ran"]


def test_runs_that_are_all_lost_leave_it_unknown(shop: Workshop) -> None:
    hosts = acting(shop, "echo ran >> log; exit 1")
    assert play(hosts.perform(task())) is Found.UNKNOWN
    assert len(shop.lines("log")) == MAX_RUNS


def test_a_run_that_was_killed_at_its_time_limit_is_followed_by_one_that_only_mends(
    shop: Workshop,
) -> None:
    shop.pipe("never")
    waits = "trap 'exit 1' TERM; : > late; cat never & wait"
    body = f"cat >> told; echo >> told; [ -e late ] || {{ {waits}; }}; "
    hosts = acting(shop, f"{body}{SAYS}{libvirt.FAILED}", time_limit_seconds=1)
    assert play(hosts.perform(task())) == ENDS["failed"][1]
    assert [json.loads(line)["stopping"] for line in shop.lines("told")] == [False, True]


# How many at once.


async def test_no_more_machines_of_a_host_are_worked_on_than_the_settings_allow(
    shop: Workshop,
) -> None:
    hosts = acting(
        shop,
        f"echo began >> log; until [ -e go ]; do sleep 0.05; done; {SAYS}0",
        at_once=3,
        at_once_per_host=1,
        host=(HOST, LibvirtHost(name="h2", uri="test:///2")),
    )

    async def began(count: int) -> None:
        while len(shop.lines("log")) < count:
            await asyncio.to_thread(shop.folder.exists)

    one = asyncio.create_task(hosts.perform(task("web-0", "web-1", hosts=("h1", "h1"))))
    two = asyncio.create_task(hosts.perform(task("web-2", operation="2.1", hosts=("h2",))))
    await began(2)
    staying = task("web-3", operation="3.1", hosts=("h1",), host_boot_id="boot-1")
    three = asyncio.create_task(hosts.perform(staying))
    await began(3)
    seen = shop.lines("log")
    (shop.folder / "go").touch()
    await asyncio.gather(one, two, three)
    assert len(seen) == 3
    assert len(shop.lines("log")) == 4


# Settings that cannot be used.


def test_settings_that_cannot_be_used_are_refused_in_one_line(shop: Workshop) -> None:
    with pytest.raises(CommandUnusable, match="host"):
        LibvirtConnector(LibvirtSettings(), shop.state, os.environ)
    with pytest.raises(CommandUnusable, match="POSIX"):
        LibvirtConnector(LibvirtSettings(host=(HOST,)), shop.state, os.environ, "nt")
    without = shop.program("echo No module named libvirt >&2; exit 12", "python3")
    for python in (without, "/nowhere/python"):
        with pytest.raises(CommandUnusable, match=r"^connector\.libvirt\.python: \S+ ") as refused:
            libvirt.require_libvirt(LibvirtSettings(host=(HOST,), python=python), os.environ)
        assert "\n" not in str(refused.value)


def test_the_program_and_the_connector_agree_on_exit_statuses() -> None:
    source = Path(libvirt.PROGRAM).with_name("program.py").read_text(encoding="utf-8")
    assert f"FAILED: Final = {libvirt.FAILED}\n" in source
    assert f"UNKNOWN: Final = {libvirt.UNKNOWN}\n" in source


def test_the_program_starts_without_our_libraries(shop: Workshop) -> None:
    """Neither msgspec nor the package's own `__init__` is imported on the way in."""
    (shop.folder / "libvirt.py").write_text("raise ImportError('seen')", encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "-I", "-S", libvirt.PROGRAM, "probe"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 12
    assert "libvirt" in ran.stderr
