"""The agent itself in a guest: through a live move and through a reboot."""

import time

import pytest

from hosts import agent_image
from hosts.guest import Guest
from hosts.host import until
from hosts.lab import Lab


@pytest.fixture(scope="module")
def guest(lab: Lab) -> Guest:
    """A guest whose agent is up; its own poll only looks."""
    disks = agent_image.disks(agent_image.make(lab.folder), agent_image.state(lab.folder, "web-0"))
    lab.serve(lab.libvirt("migration = { unsafe = true }"))  # both hosts see the same files
    (made,) = lab.start(
        {"web-0": "h1"}, memory_mib=agent_image.MEMORY_MIB, devices=disks, arguments="fw.agent=yes"
    )
    lab.fleet([made])
    says(made, "the agent is up", 1)
    return made


def says(guest: Guest, text: str, times: int) -> None:
    until(lambda: guest.said().count(text) >= times, guest.said)


def test_an_agent_drains_for_a_live_move_and_undoes_after_it(lab: Lab, guest: Guest) -> None:
    start = time.monotonic()
    (boot,) = guest.boots
    lab.forewarn("schedule", "freeze", "web-0", "--live-migration")
    operation = lab.ended()[-1]
    assert (operation["status"], operation["start_cause"]) == ("Completed", "approved")
    says(guest, f"UNDO {boot}", 1)
    assert guest.host() == "h2"
    assert guest.boots == [boot]
    assert not guest.refused_polls(start)
    assert guest.said().count(f"DRAIN {boot}") == 1


def test_an_agent_drains_for_a_reboot_and_undoes_in_the_next_boot(lab: Lab, guest: Guest) -> None:
    before = guest.boots[-1]
    lab.forewarn("schedule", "reboot", "web-0")
    operation = lab.ended()[-1]
    assert (operation["status"], operation["start_cause"]) == ("Completed", "approved")
    guest.wait_for_boots(2)
    after = guest.boots[-1]
    says(guest, f"UNDO {after}", 1)
    said = guest.said()
    assert said.count(f"DRAIN {before}") == 2, "for the move, and now"
    assert f"DRAIN {after}" not in said
    assert said.count(f"UNDO {after}") == 1
    assert said.count(f"UNDO {before}") == 1, "of the move before"
