"""The checkpoint page: a computation that is asked to write down where it is, and is killed."""

import configparser
import contextlib
import json
import os
import random
import re
import runpy
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import patience
from agent.workplace import Units
from end_to_end.agents import Agent, Endpoint, event, until
from house.tree import ROOT
from recipes import pages
from seeds import SEED

PAGE = "checkpoint"
PROGRAM = ROOT / "docs" / "examples" / "computation.py"
UNIT = "computation.service"
ENDLESS = 10**9
"""Steps that no test sees the end of."""

pytestmark = pytest.mark.skipif(
    not hasattr(signal, "pidfd_send_signal"), reason="signals go by pidfds, which Linux has"
)


class Machine:
    """A machine with the page's unit, started by a boot."""

    def __init__(self, folder: Path, units: Units) -> None:
        self.folder, self.units = folder, units
        self.checkpoint = folder / "checkpoint.json"
        self.further = ENDLESS
        """How many steps are left after a checkpoint, for boots from now on."""
        self.boots = 0
        self.process: subprocess.Popen[bytes] | None = None

    def argv(self, steps: int) -> list[str]:
        unit = configparser.ConfigParser()
        unit.optionxform = str  # type: ignore[assignment] # systemd's names keep their case
        unit.read_string(pages.block(PAGE, "ini"))
        line = pages.placed(
            unit["Service"]["ExecStart"],
            {
                "/usr/bin/python3": sys.executable,
                "/usr/local/lib/computation/computation.py": str(PROGRAM),
                "/srv/computation/checkpoint.json": str(self.checkpoint),
                "1000000": str(steps),
            },
        )
        return shlex.split(line)

    def start(self) -> None:
        """Boot: the unit is enabled."""
        self.boots += 1
        with self._log(self.boots).open("wb") as said:
            argv = self.argv(self.kept + self.further)
            self.process = subprocess.Popen(argv, stdout=said, stderr=said)
        self.units.put(UNIT, f"active {self.process.pid}")
        until(lambda: self.told("step", self.boots), self._log(self.boots).read_text)

    def stop(self) -> None:
        """Kill whatever runs on it, as the loss of its power does."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    @property
    def kept(self) -> int:
        """The step of the checkpoint; 0 where there is none."""
        if not self.checkpoint.exists():
            return 0
        return int(json.loads(self.checkpoint.read_text())["step"])

    def _log(self, boot: int) -> Path:
        return self.folder / f"boot-{boot}"

    def told(self, words: str, boot: int) -> list[int]:
        """Return the steps that the program told of by these words in a boot."""
        text = self._log(boot).read_text()
        return [int(step) for step in re.findall(rf"(?m)^{words} (\d+)$", text)]

    def ends_well(self) -> bool:
        """Tell whether its result is what as many steps come to where nothing interrupts them."""
        assert self.process is not None
        assert self.process.wait(patience.SECONDS) == 0
        whole = runpy.run_path(str(PROGRAM))["Computation"](self.folder / "none")
        while whole.step < self.told("step", self.boots)[-1]:
            whole.advance()
        return f"\nresult {whole.value}\n" in self._log(self.boots).read_text()


@pytest.fixture
def machine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    units = Units(folder)
    monkeypatch.setenv("PATH", f"{units.bin}{os.pathsep}{os.environ['PATH']}")
    made = Machine(folder, units)
    yield made
    made.stop()


def test_an_event_is_approved_once_the_computation_has_a_checkpoint(
    machine: Machine, cloud: Endpoint
) -> None:
    machine.start()
    places = {"/srv/computation/checkpoint.json": str(machine.checkpoint)}
    rules = pages.placed(pages.block(PAGE, "toml"), places)
    agent = Agent(machine.folder / "agent", cloud.url, rules, machine="batch")
    saved: list[int] = []
    cloud.at_approval = lambda: saved.append(machine.kept)
    try:
        cloud.show(event(Resources=["batch"]))
        agent.start().until(lambda: agent.phase() == "Approved")
    finally:
        agent.kill()
    assert saved == [machine.kept]
    assert 0 < machine.kept <= machine.told("step", 1)[-1]


def test_a_checkpoint_that_cannot_be_read_is_no_new_beginning(machine: Machine) -> None:
    machine.checkpoint.write_text('{"step": 7, "val')
    ran = subprocess.run(machine.argv(ENDLESS), capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "JSONDecodeError" in ran.stderr
    assert "from step" not in ran.stdout


def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(machine: Machine) -> None:
    chance = random.Random(SEED)
    done: list[int] = []
    for boot in range(1, 11):
        machine.start()
        assert machine.process is not None
        storm = chance.uniform(0.0, 0.2)
        with contextlib.suppress(subprocess.TimeoutExpired):
            machine.process.send_signal(signal.SIGUSR1)
            machine.process.wait(storm)
        for _ in range(chance.randrange(50)):
            machine.process.send_signal(signal.SIGUSR1)
        machine.stop()
        first = machine.told("step", boot)[0]
        assert first == (done[-1] if done else 0) + 1, f"SEED={SEED}"
        done.append(machine.kept)
    assert done == sorted(done), f"SEED={SEED}"
    machine.further = 10
    machine.start()
    assert machine.ends_well(), f"SEED={SEED}"
