"""A task and a service that are killed at any moment: the guest comes to no harm, once or never.

FAULT_ROUNDS=40 kills the task so often (3 by default); SEED=N repeats a run.
"""

import contextlib
import os
import random
import signal
import sys
import threading
from pathlib import Path

import pytest

from hosts.guest import Guest
from hosts.lab import Lab
from seeds import SEED

ROUNDS = int(os.environ.get("FAULT_ROUNDS", "3"))
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
[connector.libvirt.migration]
bandwidth_mib = 6
"""
"""A migration takes some seconds: time enough for kills."""


@pytest.fixture(scope="module")
def guests(lab: Lab) -> list[Guest]:
    lab.serve(lab.libvirt(SETTINGS))
    made = lab.start({"web-0": "h1", "web-1": "h2"}, approve=True)
    lab.fleet(made)
    return made


@pytest.mark.timeout(60 * (ROUNDS + 12))
def test_a_task_that_is_killed_at_any_moment_is_carried_out(lab: Lab, guests: list[Guest]) -> None:
    chance = random.Random(SEED)
    guest = guests[0]
    for number in range(ROUNDS):
        arguments = TYPES[number % len(TYPES)]
        delay, victim = chance.uniform(0, LATEST_KILL_SECONDS), chance.choice(("program", "runner"))
        boots, host = len(guest.boots), guest.host()
        lab.begin(*arguments)
        threading.Event().wait(delay)
        for pid in victims(lab, victim):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        operation = lab.ended()[-1]
        round_ = (SEED, number, arguments, delay, victim, operation)
        moves = arguments[0] == "redeploy" or "--live-migration" in arguments
        sys.stdout.write(f"{round_} {guest.said()[-9000:]} {lab.report()}")  # where it fails
        assert operation["status"] == "Completed"
        guest.assert_unharmed({"h1": "h2", "h2": "h1"}[host] if moves else host)
        assert len(guest.boots) == boots + (arguments[0] == "reboot"), guest.boots
    assert len(guests[1].boots) == 1


def victims(lab: Lab, victim: str) -> list[int]:
    """Return the runners of tasks, or the programs that they watch."""
    found = []
    for begun in lab.runners():
        with contextlib.suppress(OSError, ValueError):
            runner = int(begun.read_text())
            children = Path(f"/proc/{runner}/task/{runner}/children").read_text()
            found += [runner] if victim == "runner" else map(int, children.split())
    return found
