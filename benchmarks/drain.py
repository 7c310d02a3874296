"""Two hosts drained, rebooted and refilled one after the other, beside a plain loop over virsh.

Real guests of QEMU on two libvirtds, as tests/hosts has them. What a guest lived through is told by
its own polls. The plain loop moves the same guests by the same live migration, and asks nobody.
"""

import argparse
import collections
import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import machine
from tables import Row, show, spread

TESTS: Final = Path(__file__).resolve().parents[1] / "tests"
sys.path.append(str(TESTS))  # behind our own names, some of which are the tests' too

from hosts import lab as labs  # noqa: E402 - it is there only now
from hosts import namespace  # noqa: E402
from hosts.guest import Guest  # noqa: E402
from hosts.lab import Lab  # noqa: E402

ROUNDS: Final = 3
PLACES: Final = {"web-0": "h1", "web-1": "h1", "web-2": "h2"}
QUICK: Final = {"web-0": "h1"}
LIMIT_SECONDS: Final = 1200


def forewarn(lab: Lab, guests: Sequence[Guest], hosts: Sequence[str]) -> None:
    """Drain, reboot and refill hosts with notice to the guests, who approve."""
    lab.forewarn("host", "drain", *hosts, "--reboot", "--wait")
    assert {guest.name: guest.host() for guest in guests}.items() <= PLACES.items()


def plain(lab: Lab, guests: Sequence[Guest], hosts: Sequence[str]) -> None:
    """Do the same as a shell script does it."""
    for name in hosts:
        (other,) = set(lab.hosts) - {name}
        moved = [guest for guest in guests if guest.host() == name]
        for guest in moved:
            guest.migrate(other)
        lab.hosts[name].reboot()
        for guest in moved:
            guest.migrate(name)


CONTESTANTS: Final = {"forewarn host drain": forewarn, "virsh in a loop": plain}


def moves(guests: Sequence[Guest], before: int) -> tuple[int, int]:
    """Return how many moves guests read of, and how many of those before the move began."""
    read = collections.defaultdict(set)
    for guest in guests:
        for event in itertools.chain.from_iterable(poll.events for poll in guest.polls[before:]):
            read[event["EventId"]].add(event["EventStatus"])
    return len(read), sum("Scheduled" in statuses for statuses in read.values())


def longest_gap(guest: Guest, since: float) -> float:
    """Return the seconds of the longest pause between two of a guest's polls."""
    asked = [poll.at for poll in guest.polls if poll.at >= since]
    return max((after - before for before, after in itertools.pairwise(asked)), default=0.0)


def measured(lab: Lab, guests: Sequence[Guest], name: str, hosts: Sequence[str]) -> Row:
    """Let one contestant do it."""
    for guest in guests:
        guest.wait_for_polls()
    start, before = time.monotonic(), min(len(guest.polls) for guest in guests)
    CONTESTANTS[name](lab, guests, hosts)
    took = time.monotonic() - start
    for guest in guests:
        guest.wait_for_polls()
    announced, in_time = moves(guests, before)
    return {
        "seconds": took,
        "announced": announced,
        "in time": in_time,
        "failed polls": sum(len(guest.failed_polls(start)) for guest in guests),
        "longest gap": max(longest_gap(guest, start) for guest in guests),
        "boots": sum(len(guest.boots) for guest in guests) - len(guests),
    }


def inside(places: dict[str, str], hosts: Sequence[str], rounds: int) -> dict[str, list[Row]]:
    """Measure in the namespaces; contestants take turns."""
    with tempfile.TemporaryDirectory(prefix="fw-", ignore_cleanup_errors=True) as folder:
        lab = Lab(Path(folder))
        try:
            for name in ("h1", "h2"):
                lab.host(name)
            lab.serve(lab.libvirt())
            guests = lab.start(places, approve=True)
            lab.fleet(guests)
            found: dict[str, list[Row]] = {name: [] for name in CONTESTANTS}
            for _ in range(rounds):
                for name, rows in found.items():
                    rows.append(measured(lab, guests, name, hosts))
            return found
        finally:
            lab.close()


@contextlib.contextmanager
def on_every_core() -> Iterator[None]:
    """Start processes that use every core: guests are processes, and the service is one of many."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, machine.CORES)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def missing() -> list[str]:
    return [why for why in (namespace.refused() or labs.missing(),) if why]


def run(*, quick: bool) -> dict[str, Any]:
    reaper = [sys.executable, str(TESTS / "hosts" / "reaper.py")]
    program = [sys.executable, __file__, *(["--quick"] if quick else [])]
    command = [*namespace.UNSHARE, "--kill-child", *reaper, *program]
    with on_every_core():
        ran = subprocess.run(command, stdout=subprocess.PIPE, timeout=LIMIT_SECONDS, check=True)
    found: dict[str, list[Row]] = json.loads(ran.stdout)
    rows = [
        {
            "by": name,
            "s": spread([row["seconds"] for row in figures], 1),
            "moves announced": spread([row["announced"] for row in figures]),
            "read in time": spread([row["in time"] for row in figures]),
            "polls failed": sum(row["failed polls"] for row in figures),
            "longest gap s": spread([row["longest gap"] for row in figures], 1),
            "boots": sum(row["boots"] for row in figures),
        }
        for name, figures in found.items()
    ]
    show("two hosts drained, rebooted and refilled; aim: no poll fails, no guest boots", rows)
    for row in rows[:1]:
        assert row["polls failed"] == row["boots"] == 0, row
    return {"drains": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    hosts = ["h1"] if quick else ["h1", "h2"]
    found = inside(QUICK if quick else PLACES, hosts, 1 if quick else ROUNDS)
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
