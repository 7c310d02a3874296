"""Whatever fails where a guest goes to, the guest is not left off, paused or doubled."""

import os
import signal
from collections.abc import Callable

import pytest

from hosts.guest import Guest
from hosts.host import until
from hosts.lab import Lab

SETTINGS = """\
shutdown_seconds = 5
[connector.libvirt.migration]
bandwidth_mib = 6
"""
"""A migration takes some seconds: time enough for faults."""
MEMORY = "memory_mib = 400"
"""Of each host."""


@pytest.fixture(scope="module")
def guests(lab: Lab) -> list[Guest]:
    """One guest that moves, and one that is too big to move and ignores its power button."""
    lab.serve(lab.libvirt(SETTINGS, h1=MEMORY, h2=MEMORY))
    made = [
        lab.guest("web-0", approve=True),
        lab.guest("big-0", approve=True, button=False, memory_mib=448),
    ]
    for guest in made:
        guest.start("h1")
    lab.fleet(made)
    return made


def refused(lab: Lab, *arguments: str) -> str:
    """Schedule maintenance that fails, and let it hold nothing up after it; return the outcome."""
    operation = lab.maintain(*arguments)
    assert operation["status"] == "Failed", operation
    lab.forewarn("acknowledge", "--even-if-down", operation["id"])
    return str(operation["outcome"])


def test_a_guest_that_ignores_its_button_is_powered_off_and_started(
    lab: Lab, guests: list[Guest]
) -> None:
    operation = lab.maintain("reboot", "big-0")
    assert operation["status"] == "Completed", operation
    assert len(guests[1].boots) == 2
    guests[1].assert_unharmed("h1")
    assert guests[0].host() == "h1"


def test_a_target_without_memory_takes_nobody_in(lab: Lab, guests: list[Guest]) -> None:
    guest = guests[1]
    boots = len(guest.boots)
    assert "MiB" in refused(lab, "redeploy", "big-0")
    guest.assert_unharmed("h1")
    assert len(guest.boots) == boots
    guest.destroy()
    lab.forewarn("fleet", "remove", guest.name)


def test_a_target_that_does_not_answer_takes_nobody_in(lab: Lab, guests: list[Guest]) -> None:
    daemon = lab.hosts["h2"].daemon()
    os.kill(daemon, signal.SIGSTOP)
    try:
        assert refused(lab, "redeploy", "web-0")
    finally:
        os.kill(daemon, signal.SIGCONT)
    guests[0].assert_unharmed("h1")


def _stopped(pid: int) -> Callable[[], None]:
    os.kill(pid, signal.SIGSTOP)
    return lambda: os.kill(pid, signal.SIGCONT)


def _cut(lab: Lab) -> Callable[[], None]:
    lab.hosts["h2"].link("down")
    return lambda: lab.hosts["h2"].link("up")


def _killed(pid: int) -> Callable[[], None]:
    os.kill(pid, signal.SIGKILL)
    return lambda: None


FAULTS: dict[str, Callable[[Lab], Callable[[], None]]] = {
    "frozen": lambda lab: _stopped(lab.hosts["h2"].daemon()),
    "cut": _cut,
    "qemu": lambda lab: _killed(lab.hosts["h2"].qemu("web-0")),
}
"""What happens to the target of a migration that is under way; each returns what mends it."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_target_that_fails_in_the_middle_of_a_migration_leaves_the_guest_at_its_source(
    lab: Lab, guests: list[Guest], fault: str
) -> None:
    guest = guests[0]
    boots = len(guest.boots)
    lab.begin("redeploy", "web-0")
    until(lambda: guest.name in lab.hosts["h2"].running(), lambda: lab.operations()[-1])
    mend = FAULTS[fault](lab)
    try:
        operation = lab.ended()[-1]
    finally:
        mend()
    until(lambda: len(guest.active_on()) == 1, lambda: (guest.active_on(), operation))
    assert operation["status"] == "Failed", operation
    print(operation["outcome"])  # noqa: T201 - which of several errors libvirt gave
    guest.assert_unharmed("h1")
    assert len(guest.boots) == boots
    lab.forewarn("acknowledge", "--even-if-down", operation["id"])


def test_a_stale_definition_on_the_target_keeps_the_guest_at_its_source(
    lab: Lab, guests: list[Guest]
) -> None:
    guest = guests[0]
    guest.define("h2")
    assert refused(lab, "redeploy", "web-0")
    lab.hosts["h2"].virsh("undefine", guest.name)
    guest.assert_unharmed("h1")
