"""The power is cut again and again, at any instant from an event's announcement to its end.

A cut loses what the machine had not written to its disk, its memory and every process at once. The
judge is the actions' own log, which they sync line by line. The seed is printed; VM_CUTS and
SEED in the environment give another number of cuts and another seed.
"""

import os
import random
import sys
import threading

import pytest

from end_to_end.interrupted import judge
from machines.site import LOG, STATUS, Site, command
from seeds import SEED

CUTS = int(os.environ.get("VM_CUTS", "10"))
LINES = 4
"""So many more lines of the log are waited for at most before a cut: two actions leave them."""
LIFE_SECONDS = 15
"""How long at most: an event that is held leaves none."""
CUTS_AT_ONCE = ((1, 2), (0, 1), (1, 2))
"""How often the power is cut at least and at most while an event is Scheduled, while it is
Started, and when it is over."""
STUCK = """'"stuck":true'"""

RULES = f"""
[[rule]]
name = "three"
match = {{ types = ["Reboot"] }}
approve = "when-prepared"
prepare = [
  {command("a")},
  {command("b", repeatable=True)},
  {command("c")},
]
"""

pytestmark = pytest.mark.timeout(300 * (CUTS + 5))


class Lives:
    """One machine, whose power is cut many times.

    Args:
        site: Where it stands.
        chance: What decides when.
    """

    def __init__(self, site: Site, chance: random.Random) -> None:
        self.site = site
        self.chance = chance
        self.cuts = 0
        self.words = 0
        """How often somebody has said that what was cut may be done again."""

    def answers(self) -> None:
        self.site.machine.until(f"{STATUS}/healthz | grep -q ok")

    def live(self, times: tuple[int, int]) -> None:
        """Live for random times, each of which a cut ends."""
        for _ in range(self.chance.randint(*times)):
            if self.chance.random() < 0.75:
                self.answers()
            machine = self.site.machine
            lines = len(self.site.done()) + self.chance.randint(0, LINES)
            waits = f"until test $(wc -l <{LOG}) -ge {lines}; do sleep 0.1; done"
            machine.call("timeout", str(LIFE_SECONDS), "sh", "-c", waits)
            threading.Event().wait(self.chance.uniform(0, 1))
            machine.cut()
            self.cuts += 1

    def prepare(self) -> None:
        """Live on until it is approved: by an operator where it is held, as what was cut failed."""
        operation = self.site.operation()
        if operation["status"] != "Scheduled":
            return
        self.site.machine.until(f"""{STATUS}/status | grep -qE '"phase":"(Held|Approved)"'""")
        approved = self.site.service.call("approve", operation["id"])
        assert approved.returncode == 0, approved.stderr

    def settle(self) -> None:
        """Live on until nothing is in hand and nothing stands; say the word where it waits."""
        machine = self.site.machine
        while True:
            nothing = """grep -q '"events":\\[\\]'"""
            machine.until(f"{STATUS}/status | {nothing}")
            machine.until(f"""{STATUS}/status | grep -qE '"standing":\\[\\]|"stuck":true'""")
            if machine.call("sh", "-c", f"{STATUS}/status | grep -q {STUCK}").returncode:
                return
            self.words += 1
            machine.run("systemctl", "reload", "forewarn-agent")
            machine.until(f"! {STATUS}/status | grep -q {STUCK}")


def test_power_cuts_at_any_instant_leave_the_machine_as_it_should_be(site: Site) -> None:
    sys.stdout.write(f"SEED={SEED} VM_CUTS={CUTS} repeats the choices\n")
    lives = Lives(site, random.Random(SEED))
    scheduled, started, over = CUTS_AT_ONCE
    while lives.cuts < CUTS:
        before, words = len(site.done()), lives.words
        lives.answers()
        site.announce("Reboot")
        lives.live(scheduled)
        if site.operation()["status"] == "Started":
            lives.live(started)
        site.let_end()
        lives.prepare()
        site.status_is("Completed")
        lives.live(over)
        lives.settle()
        done = [line.rpartition(" ")[0] for line in site.done()[before:]]
        sys.stdout.write(f"{lives.cuts} cuts: {', '.join(done)}\n")
        judge(done, lives.words - words)
        assert site.machine.run("systemctl", "show", "-P", "NRestarts", "forewarn-agent") == "0\n"
