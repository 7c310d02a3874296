"""The service's part: the program run for real, on libvirt's own driver for tests, or a stand-in.

The driver keeps its domain in the memory of the process, so each run finds it as it was at first.
"""

import asyncio
import os
import signal
import subprocess
import sys
import tracemalloc

import msgspec
import pytest

import forked
import patience
from connectors import hypervisor
from connectors.workshop import Workshop, play, task
from forewarn.connectors.command import CommandUnusable
from forewarn.connectors.libvirt import connector as libvirt
from forewarn.connectors.libvirt.connector import LibvirtConnector
from forewarn.connectors.port import Found, Outcome
from forewarn.connectors.settings import LibvirtHost, LibvirtSettings
from forewarn.vocabulary import EventType
from leftovers import open_files

PYTHON = hypervisor.PYTHON
DOMAIN = "6695eb01-f6a4-8304-79aa-97f2502e193f"
"""The one that `test:///default` has."""
HOST = LibvirtHost(name="h1", uri="test:///default")


ODD_DOMAIN = """
import importlib.util, os, sys, threading, types
spec = importlib.util.spec_from_file_location("program", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.main("probe")
import libvirt
from forewarn.connectors.libvirt import decide, facts, hypervisor

class OddDomain(libvirt.virDomain):
    def setTime(self, *_):
        threading.Event().wait()

    def state(self, *_):
        self.destroy()
        return super().state()

    def controlInfo(self, *_):
        self.destroy()
        self.destroy()  # refused, as questions are about one that is off

    def jobInfo(self, *_):
        try:
            return self.controlInfo()
        finally:
            self.create()

class OddHosts(hypervisor.Hypervisors):
    guest_seconds = 0.1

    def _domain(self, order, host):
        return odd

connection = libvirt.open("test:///default")
domain = connection.lookupByName("test")
odd = OddDomain(connection, domain._o)
where = facts.HostAddress(
    name="h1", uri="test:///default", migrate_uri="", targets=True, memory_mib=0, reboot=(),
    boot_id=("echo", "boot-1"),
)
vm_id = domain.UUIDString()
hosts = OddHosts([where])
order = types.SimpleNamespace(act=facts.Act.PAUSE, vm_id=vm_id, machine="test", host_boot_id="x")
"""
"""A domain that goes off when its QEMU is asked about, and whose agent never answers."""


with_libvirt = pytest.mark.skipif(
    not hypervisor.has_libvirt(), reason=f"{PYTHON} has no module libvirt"
)


def connector(shop: Workshop, *hosts: LibvirtHost) -> LibvirtConnector:
    settings = LibvirtSettings(python=PYTHON, host=hosts or (HOST,), freeze_seconds=0)
    return LibvirtConnector(settings, shop.state, os.environ)


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
@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("hypervisor.state_of(odd)[0]", "off"),
        ("hosts.look(order)[0].boot_id or 'unasked'", "unasked"),
        ("odd.destroy() or hosts.look(order)[0].boot_id", "boot-1"),
        ("hypervisor.hangs(odd)", "False"),
        ("hypervisor.has_job(odd)", "False"),
        ("hosts.do(order, decide.Step(do=decide.Do.SYNC_TIME))[0]", "0"),
        ("hosts.do(order, decide.Step(do=decide.Do.MARK, seen='another'))[0]", "0"),
    ],
)
def test_a_host_is_asked_once_for_what_matters_whatever_its_guest_does(
    asked: str, expected: str
) -> None:
    code = f"{ODD_DOMAIN}print({asked}, flush=True); os._exit(0)"
    argv = [PYTHON, "-I", "-c", code, libvirt.PROGRAM]
    ran = forked.completed(argv, timeout=patience.SECONDS)
    assert ran.stdout.split() == [expected], ran.stderr


@with_libvirt
def test_a_check_of_what_was_not_done_says_so(shop: Workshop) -> None:
    crashing = shop.libvirt("exit 3")
    assert play(crashing.perform(task(vm_ids=(DOMAIN,)))) is Found.UNKNOWN
    assert play(connector(shop).check(task(vm_ids=(DOMAIN,), attempt=2))) is Found.NOT_DONE


@with_libvirt
def test_a_program_whose_runner_is_gone_begins_nothing(shop: Workshop) -> None:
    """Another run goes on in its place, even if this one had hardly started."""
    hosts = connector(shop)
    order = hosts.planned(task(vm_ids=(DOMAIN,))).order | {"again": False, "stopping": False}
    told = msgspec.json.encode(order | {"libvirt": libvirt.told(hosts._hosts)})
    reading, writing = os.pipe()
    os.close(reading)
    argv = [PYTHON, "-I", libvirt.PROGRAM, "carry-out"]
    ran = subprocess.run(argv, input=told, stdout=writing, check=False, timeout=patience.SECONDS)
    os.close(writing)
    assert ran.returncode == libvirt.UNKNOWN


@with_libvirt
def test_a_survey_tells_of_every_host_and_guest(shop: Workshop) -> None:
    dark = LibvirtHost(name="h2", uri="qemu+unix:///session?socket=/nowhere", targets=False)
    rebooting = LibvirtHost(name="h3", uri="test:///default?h3", reboot=("true",))
    untold = msgspec.structs.replace(
        rebooting, name="h4", uri="test:///default?h4", boot_id=("false",)
    )
    facts = play(connector(shop, HOST, dark, rebooting, untold).survey())
    assert [*facts] == ["h1", "h2", "h3", "h4"]
    (guest,) = facts["h1"].guests
    assert (guest.vm_id, guest.running, guest.obstacles) == (DOMAIN, True, ())
    assert (facts["h1"].answers, facts["h1"].can_reboot, facts["h1"].target) == (True, False, True)
    assert facts["h1"].boot_id
    assert facts["h1"].free_memory_mib + guest.memory_mib >= 0
    assert (facts["h2"].answers, facts["h2"].target) == (False, False)
    assert facts["h2"].why
    assert facts["h3"].can_reboot
    assert (facts["h4"].can_reboot, facts["h4"].boot_id) == (True, "")  # at this moment


def test_a_survey_that_fails_says_why_for_every_host(shop: Workshop) -> None:
    facts = play(shop.libvirt("echo out of order >&2; exit 3").survey())
    found = [(each.answers, "out of order" in each.why) for each in facts.values()]
    assert found == [(False, True)] * 2


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


@pytest.mark.parametrize("then", ["", "&"])
async def test_a_reboot_command_that_is_given_up_ends_with_all_that_it_began(
    shop: Workshop, then: str
) -> None:
    """It must not reboot the host later, when machines run there again."""
    begun = shop.pipe("begun")
    slow = shop.program(f"sh -c 'exec 3> begun; echo begun >&3; sleep 600; true' {then}\ntrue")
    hosts = connector(shop, LibvirtHost(name="h1", uri="test:///1", reboot=(slow,)))
    rebooting = asyncio.create_task(hosts.reboot_host("h1"))
    holding = await asyncio.to_thread(begun.open)
    assert await asyncio.to_thread(holding.readline) == "begun\n"
    await patience.settled()  # asyncio's own loop goes on for some turns after the fork
    rebooting.cancel()
    await asyncio.wait({rebooting})
    assert await asyncio.to_thread(holding.read) == ""  # once nobody holds it any more
    holding.close()


async def test_a_command_that_is_given_up_leaves_no_pipe_open_to_what_it_left_behind(
    shop: Workshop,
) -> None:
    begun = shop.pipe("begun")
    left = shop.program("setsid sh -c 'echo $$ > begun; exec sleep 600' &\nwait")
    short = LibvirtHost(name="h2", uri="test:///2", reboot=("true",))
    hosts = connector(shop, LibvirtHost(name="h1", uri="test:///1", reboot=(left,)), short)
    await hosts.reboot_host("h2")  # the loop has opened what it keeps for programs
    before = open_files()
    rebooting = asyncio.create_task(hosts.reboot_host("h1"))
    survivor = int(await asyncio.to_thread(begun.read_text))
    await patience.settled()
    rebooting.cancel()
    await asyncio.wait({rebooting})
    os.kill(survivor, signal.SIGKILL)  # it was alive all the time
    assert open_files() <= before


async def test_a_flood_of_a_reboot_command_is_read_in_bounded_memory(shop: Workshop) -> None:
    flood = "yes | head -c 50000000; yes | head -c 50000000 >&2; echo no way >&2; exit 3"
    hosts = connector(shop, LibvirtHost(name="h1", uri="test:///1", reboot=("sh", "-c", flood)))
    tracemalloc.start()
    outcome = await hosts.reboot_host("h1")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert outcome.message == "exit status 3: no way"
    assert peak < 5_000_000


def test_the_program_leaves_no_ssh_to_a_host_that_hangs() -> None:
    code = (
        "import subprocess; from forewarn.connectors.libvirt import program; "
        "subprocess.Popen(['sleep', '600']); program.end_group(); print('ended')"
    )
    asked = [sys.executable, "-c", code]
    # It waits until nobody holds the program's output.
    ran = forked.completed(asked, start_new_session=True, timeout=patience.SECONDS)
    assert ran.stdout == "ended\n"


def test_settings_that_cannot_be_used_are_refused_in_one_line(shop: Workshop) -> None:
    with pytest.raises(CommandUnusable, match="POSIX"):
        LibvirtConnector(LibvirtSettings(host=(HOST,)), shop.state, os.environ, "nt")
    without = shop.program("echo No module named libvirt >&2; exit 12", "python3")
    for python in (without, "/nowhere/python"):
        with pytest.raises(CommandUnusable, match=r"^connector\.libvirt\.python: \S+ ") as refused:
            libvirt.require_libvirt(LibvirtSettings(host=(HOST,), python=python), os.environ)
        assert "\n" not in str(refused.value)


def test_the_program_starts_without_our_libraries(shop: Workshop) -> None:
    """Neither msgspec nor the package's own `__init__` is imported on the way in."""
    (shop.folder / "libvirt.py").write_text("raise ImportError('seen')", encoding="utf-8")
    ran = forked.completed([sys.executable, "-I", "-S", libvirt.PROGRAM, "probe"])
    assert ran.returncode == 12
    assert "libvirt" in ran.stderr
