"""Whatever fails in the middle, no guest is left off, paused or doubled.

FAULT_ROUNDS=40 kills the task so often (3 by default); FAULT_SEED=N repeats a run.
"""

import contextlib
import os
import random
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hosts.guest import Guest
from hosts.host import until
from hosts.lab import Lab

ROUNDS = int(os.environ.get("FAULT_ROUNDS", "3"))
SEED = int(os.environ.get("FAULT_SEED", "12"))
TYPES = (
    ("freeze", "web-0"),
    ("reboot", "web-0"),
    ("redeploy", "web-0"),
    ("freeze", "web-0", "--live-migration"),
)
LATEST_KILL_SECONDS = 4.0
"""How long after its start a task is killed at the latest: none takes much longer."""
SETTINGS = """\
freeze_seconds = 2
shutdown_seconds = 12
time_limit_seconds = 30
[connector.libvirt.migration]
bandwidth_mib = 6
"""
"""A migration takes some seconds: time enough for faults."""
MEMORY = "memory_mib = 400"
"""Of each host."""


@pytest.fixture(scope="module")
def guests(lab: Lab) -> list[Guest]:
    lab.serve(lab.libvirt(SETTINGS, h1=MEMORY, h2=MEMORY))
    made = lab.start({"web-0": "h1", "web-1": "h2"}, approve=True)
    lab.fleet(made)
    for guest in made:
        guest.wait_for_polls()
    return made


def begin(lab: Lab, *arguments: str) -> None:
    """Schedule maintenance, and return when its task has begun."""
    before = set(runners(lab))
    lab.forewarn("schedule", *arguments)
    until(
        lambda: set(runners(lab)) - before,
        lambda: (lab.operations()[-1], lab.service and lab.service.log.read_text()[-2000:]),
    )


def ended(lab: Lab) -> dict[str, Any]:
    return lab.ended()[-1]


def runners(lab: Lab) -> list[Path]:
    """Return the files in which the runs of tasks that are not over name their runners."""
    return sorted((lab.folder / "service").glob("commands/*/[0-9]*/begun"))


def programs(lab: Lab) -> list[int]:
    """Return the processes of the programs that runners watch."""
    found = []
    for begun in runners(lab):
        with contextlib.suppress(OSError, ValueError):
            runner = int(begun.read_text())
            children = Path(f"/proc/{runner}/task/{runner}/children").read_text()
            found += [int(child) for child in children.split()]
    return found


def judge(lab: Lab, guest: Guest, host: str = "") -> None:
    """Refuse a guest that is off, paused, doubled, or defined where it is not."""
    active = guest.active_on()
    assert len(active) == 1, (active, lab.operations()[-1])
    assert guest.state() == "running", lab.operations()[-1]
    assert [name for name, each in guest.hosts.items() if guest.name in each.defined()] == active
    assert host in {"", active[0]}
    guest.wait_for_polls()


def other(host: str) -> str:
    return {"h1": "h2", "h2": "h1"}[host]


@pytest.mark.timeout(60 * (ROUNDS + 5))
def test_a_task_that_is_killed_at_any_moment_is_carried_out(lab: Lab, guests: list[Guest]) -> None:
    chance = random.Random(SEED)
    guest = guests[0]
    for number in range(ROUNDS):
        arguments = TYPES[number % len(TYPES)]
        delay, victim = chance.uniform(0, LATEST_KILL_SECONDS), chance.choice(("program", "runner"))
        boots, host = len(guest.boots), guest.host()
        begin(lab, *arguments)
        threading.Event().wait(delay)
        for pid in _victims(lab, victim):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        operation = ended(lab)
        round_ = (SEED, number, arguments, delay, victim, operation)
        moves = arguments[0] == "redeploy" or "--live-migration" in arguments
        sys.stdout.write(f"{round_} {guest.said()[-9000:]} {lab.report()}")  # where it fails
        assert operation["status"] == "Completed"
        judge(lab, guest, other(host) if moves else host)
        assert len(guest.boots) == boots + (arguments[0] == "reboot"), guest.boots
    assert len(guests[1].boots) == 1


def _victims(lab: Lab, victim: str) -> list[int]:
    if victim == "program":
        return programs(lab)
    return [int(begun.read_text()) for begun in runners(lab) if _alive(begun)]


def _alive(begun: Path) -> bool:
    with contextlib.suppress(OSError):
        return (Path("/proc") / begun.read_text().strip()).exists()
    return False


def test_a_service_that_is_killed_finishes_the_task_after_its_restart(
    lab: Lab, guests: list[Guest]
) -> None:
    assert lab.service is not None
    boots, host = len(guests[0].boots), guests[0].host()
    begin(lab, "reboot", "web-0")
    lab.service.kill()
    for pid in programs(lab):
        os.kill(pid, signal.SIGKILL)
    lab.service.start()
    operation = ended(lab)
    assert operation["status"] == "Completed", operation
    judge(lab, guests[0], host)
    assert len(guests[0].boots) == boots + 1


def test_a_target_that_does_not_answer_takes_nobody_in(lab: Lab, guests: list[Guest]) -> None:
    host = guests[0].host()
    daemon = lab.hosts[other(host)].daemon()
    os.kill(daemon, signal.SIGSTOP)
    try:
        operation = maintain(lab, "redeploy", "web-0")
    finally:
        os.kill(daemon, signal.SIGCONT)
    assert operation["status"] == "Failed", operation
    judge(lab, guests[0], host)
    acknowledge(lab)


def maintain(lab: Lab, *arguments: str) -> dict[str, Any]:
    lab.forewarn("schedule", *arguments)
    return ended(lab)


def acknowledge(lab: Lab) -> None:
    """Let the failure hold nothing up that comes after it."""
    lab.forewarn("acknowledge", lab.operations()[-1]["id"])


def _stopped(pid: int) -> Callable[[], None]:
    os.kill(pid, signal.SIGSTOP)
    return lambda: os.kill(pid, signal.SIGCONT)


def _cut(lab: Lab, target: str) -> Callable[[], None]:
    lab.hosts[target].link("down")
    return lambda: lab.hosts[target].link("up")


def _killed(pid: int) -> Callable[[], None]:
    os.kill(pid, signal.SIGKILL)
    return lambda: None


FAULTS: dict[str, Callable[[Lab, str], Callable[[], None]]] = {
    "frozen": lambda lab, target: _stopped(lab.hosts[target].daemon()),
    "cut": _cut,
    "qemu": lambda lab, target: _killed(lab.hosts[target].qemu("web-0")),
}
"""What happens to the target of a migration that is under way; each returns what mends it."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_target_that_fails_in_the_middle_of_a_migration_leaves_the_guest_at_its_source(
    lab: Lab, guests: list[Guest], fault: str
) -> None:
    guest, host = guests[0], guests[0].host()
    target, boots = other(host), len(guest.boots)
    begin(lab, "redeploy", "web-0")
    until(lambda: guest.name in lab.hosts[target].running(), lambda: lab.operations()[-1])
    mend = FAULTS[fault](lab, target)
    try:
        operation = ended(lab)
    finally:
        mend()
    until(lambda: len(guest.active_on()) == 1, lambda: (guest.active_on(), operation))
    assert operation["status"] == "Failed", operation
    judge(lab, guest, host)
    assert len(guest.boots) == boots
    acknowledge(lab)


def test_a_guest_that_ignores_its_button_is_powered_off_and_started(
    lab: Lab, guests: list[Guest]
) -> None:
    (deaf,) = lab.start({"deaf-0": "h1"}, approve=True, button=False)
    lab.fleet([deaf], scope="deaf")
    deaf.wait_for_polls()
    operation = maintain(lab, "reboot", "deaf-0")
    assert operation["status"] == "Completed", operation
    assert len(deaf.boots) == 2
    judge(lab, deaf, "h1")
    deaf.destroy()
    assert len(guests[0].active_on()) == 1


def test_a_target_without_memory_takes_nobody_in(lab: Lab, guests: list[Guest]) -> None:
    host = guests[0].host()
    (big,) = lab.start({"big-0": host}, approve=True, memory_mib=448)
    lab.fleet([big], scope="big")
    big.wait_for_polls()
    operation = maintain(lab, "redeploy", "big-0")
    assert operation["status"] == "Failed", operation
    assert "MiB" in operation["outcome"]
    judge(lab, big, host)
    assert len(big.boots) == 1
    acknowledge(lab)
    big.destroy()


def test_a_stale_definition_on_the_target_keeps_the_guest_at_its_source(
    lab: Lab, guests: list[Guest]
) -> None:
    guest, host = guests[0], guests[0].host()
    target = other(host)
    guest.define(target)
    operation = maintain(lab, "redeploy", "web-0")
    assert operation["status"] == "Failed", operation
    lab.hosts[target].virsh("undefine", guest.name)
    judge(lab, guest, host)
