"""A walk over three real guests: no two of them are ever down together, by their own polls."""

import itertools

from hosts.guest import Guest
from hosts.lab import Lab


def down(guest: Guest) -> tuple[float, float]:
    """Return from when to when it was down, which it was once: until it polled in its next boot."""
    (pressed,) = guest.presses
    return pressed, min(p.at for p in guest.polls if p.boot == guest.boots[1] and not p.error)


def test_no_two_domains_of_a_walk_are_down_together(lab: Lab) -> None:
    lab.serve(lab.libvirt())
    guests = lab.start({"web-0": "h1", "web-1": "h1", "web-2": "h2"}, approve=True)
    lab.fleet(guests)
    for guest in guests:
        guest.wait_for_polls(2)

    lab.forewarn("schedule", "reboot", "--scope", "web")
    operations = lab.ended()
    for guest in guests:
        guest.wait_for_boots(2)

    assert [each["status"] for each in operations] == ["Completed"] * 3
    assert {each["start_cause"] for each in operations} == {"approved"}
    assert [len(guest.boots) for guest in guests] == [2, 2, 2]
    times = sorted(map(down, guests))
    assert all(up < next_down for (_, up), (next_down, _) in itertools.pairwise(times)), times
    read = [poll.events for guest in guests for poll in guest.polls]
    assert max(map(len, read)) == 1, "what would take a second domain is not even announced"
