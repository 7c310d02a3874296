"""Each event type on real guests, by the libvirt connector; their own polls are the judges."""

import itertools
import json
import time

import pytest

from hosts.guest import Guest
from hosts.lab import Lab


@pytest.fixture(scope="module")
def guests(lab: Lab) -> list[Guest]:
    lab.serve(lab.libvirt("freeze_seconds = 5"))
    made = lab.start({"web-0": "h1", "web-1": "h1", "web-2": "h2"}, approve=True)
    lab.fleet(made)
    return made


def test_a_freeze_pauses_a_guest_and_lets_it_go_on(lab: Lab, guests: list[Guest]) -> None:
    guest, start = guests[0], time.monotonic()
    guest.wait_for_polls()
    operation = lab.maintain("freeze", "web-0")
    assert operation["status"] == "Completed", operation
    guest.wait_for_polls(2)
    assert (guest.state(), guest.host(), len(guest.boots)) == ("running", "h1", 1)
    paused, resumed = longest_pause(guest, start)
    assert resumed - paused >= 3  # polls are noted when they are read, which may be late
    assert any(paused < poll.at < resumed for other in guests[1:] for poll in other.polls)


def longest_pause(guest: Guest, since: float) -> tuple[float, float]:
    """Return from when to when a guest did not poll, where that was longest."""
    times = [poll.at for poll in guest.polls if poll.at >= since]
    return max(itertools.pairwise(times), key=lambda pair: pair[1] - pair[0])


def test_a_redeploy_to_the_only_other_host_goes_there_and_no_poll_is_refused(
    lab: Lab, guests: list[Guest]
) -> None:
    guest, start = guests[0], time.monotonic()
    for here, there in (("h1", "h2"), ("h2", "h1")):
        operation = lab.maintain("redeploy", "web-0")
        assert operation["status"] == "Completed", operation
        guest.wait_for_polls(2)
        assert (guest.state(), guest.host(), len(guest.boots)) == ("running", there, 1)
        assert guest.name not in lab.hosts[here].defined()
    assert not guest.refused_polls(start)


def test_a_reboot_of_a_scope_never_has_two_domains_down_together(
    lab: Lab, guests: list[Guest]
) -> None:
    start, before = time.monotonic(), len(lab.operations())
    lab.forewarn("schedule", "reboot", "--scope", "web")
    operations = lab.ended()[before:]
    for guest in guests:
        assert guest.polls[-1].boot == guest.boots[-1], (
            "a reboot is over when the guest polls again"
        )
        assert len(guest.boots) == 2

    assert [each["status"] for each in operations] == ["Completed"] * 3
    assert {each["start_cause"] for each in operations} == {"approved"}
    assert [guest.host() for guest in guests] == ["h1", "h1", "h2"]
    times = sorted(map(down, guests))
    assert all(up < next_down for (_, up), (next_down, _) in itertools.pairwise(times)), times
    read = [poll.events for guest in guests for poll in guest.polls if poll.at >= start]
    assert max(map(len, read)) == 1, "what would take a second domain is not even announced"


def down(guest: Guest) -> tuple[float, float]:
    """Return from when to when it was down, which it was once: until it polled in its next boot."""
    (pressed,) = guest.presses
    return pressed, min(p.at for p in guest.polls if p.boot == guest.boots[1] and not p.error)


def test_a_preemption_leaves_nothing_of_a_guest(lab: Lab, guests: list[Guest]) -> None:
    doomed, *others = guests  # it becomes a machine of another scope
    lab.forewarn("fleet", "remove", doomed.name)
    machine = {"index": 0, "host": "h1", "address": doomed.address, "vm_id": doomed.vm_id}
    scale_set = {"name": "batch", "priority": "low", "machines": [machine]}
    fleet = lab.folder / "scale-set.json"
    fleet.write_text(json.dumps({"scale_set": [scale_set]}))
    lab.forewarn("fleet", "apply", str(fleet))
    doomed.wait_for_polls()
    operation = lab.maintain("preempt", "batch_0")
    assert operation["status"] == "Completed", operation
    assert doomed.active_on() == []
    assert not any(doomed.name in host.defined() for host in lab.hosts.values())
    assert [guest.state() for guest in others] == ["running", "running"]
