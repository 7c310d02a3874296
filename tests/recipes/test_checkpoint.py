"""The checkpoint page: a computation that is asked to write down where it is, and is killed."""

import configparser
import contextlib
import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import patience
from agent.workplace import Units
from end_to_end.agents import Agent, until
from end_to_end.running import Running
from house.tree import ROOT
from recipes import pages
from recipes.power import Power, completed
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
    """A machine with the page's unit, started by a boot, and the page's agent once it has one.

    Args:
        folder: Its own.
        storage: Where the checkpoint lies.
        units: Its systemd.
    """

    def __init__(self, folder: Path, storage: Path, units: Units) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.units = folder, units
        self.checkpoint = storage / "checkpoint.json"
        self.steps = ENDLESS
        self.further: int | None = None
        """How many steps are left after a checkpoint, for boots from now on; None for endless."""
        self.boots = 0
        self.agent: Agent | None = None
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def argv(self) -> list[str]:
        unit = configparser.ConfigParser()
        unit.optionxform = str  # type: ignore[assignment] # systemd's names keep their case
        unit.read_string(pages.block(PAGE, "ini"))
        line = pages.placed(
            unit["Service"]["ExecStart"],
            {
                "/usr/bin/python3": sys.executable,
                "/usr/local/lib/computation/computation.py": str(PROGRAM),
                "/srv/computation/checkpoint.json": str(self.checkpoint),
                "1000000": str(self.steps),
            },
        )
        return shlex.split(line)

    def start(self) -> None:
        """Boot: the unit is enabled, and so is the agent's."""
        self.boots += 1
        if self.further is not None:
            self.steps = self.kept + self.further
        with (self.folder / f"boot-{self.boots}").open("wb") as said:
            self.process = subprocess.Popen(self.argv, stdout=said, stderr=said)
        self.units.put(UNIT, f"active {self.process.pid}")
        until(lambda: self.did(self.boots), lambda: self.said(self.boots))
        if self.agent is not None:
            self.agent.start()

    def stop(self) -> None:
        """Kill whatever runs on it, as the loss of its power does."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        if self.agent is not None:
            self.agent.close()

    def run(self, endpoint: str, name: str) -> Agent:
        """Have the page's agent from now on."""
        places = {"/srv/computation/checkpoint.json": str(self.checkpoint)}
        rules = pages.placed(pages.block(PAGE, "toml"), places)
        self.agent = Agent(self.folder / "agent", endpoint, rules, machine=name)
        self.agent.start().until(lambda: self.agent.page("/healthz")[0] == 200)
        return self.agent

    @property
    def kept(self) -> int:
        """The step of the checkpoint; 0 where there is none."""
        if not self.checkpoint.exists():
            return 0
        return int(json.loads(self.checkpoint.read_text())["step"])

    def said(self, boot: int) -> str:
        return (self.folder / f"boot-{boot}").read_text()

    def did(self, boot: int) -> list[int]:
        """Return the steps that were done between a boot and what ended it."""
        return [int(step) for step in re.findall(r"(?m)^step (\d+)$", self.said(boot))]

    def saved(self, boot: int) -> list[int]:
        return [
            int(step) for step in re.findall(r"(?m)^checkpoint at step (\d+)$", self.said(boot))
        ]

    def resumed(self, boot: int) -> int:
        """Return the step of the checkpoint that a boot has found."""
        (step,) = re.findall(r"(?m)^from step (\d+)$", self.said(boot))
        return int(step)

    def result_of(self, boot: int) -> str:
        assert self.process is not None
        assert self.process.wait(patience.SECONDS) == 0
        (value,) = re.findall(r"(?m)^result (\w+)$", self.said(boot))
        return str(value)


@pytest.fixture
def units(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Units:
    made = Units(folder)
    monkeypatch.setenv("PATH", f"{made.bin}{os.pathsep}{os.environ['PATH']}")
    return made


@pytest.fixture
def machines(folder: Path, units: Units) -> Iterator[Callable[[str], Machine]]:
    """Make machines that share a storage."""
    made: list[Machine] = []
    storage = folder / "storage"
    storage.mkdir()

    def make(name: str) -> Machine:
        made.append(Machine(folder / name, storage, units))
        return made[-1]

    yield make
    for machine in made:
        machine.stop()


def undisturbed(machine: Machine) -> str:
    """Return what as many steps come to where nothing interrupts them."""
    machine.start()
    return machine.result_of(1)


def judge_going_on(before: list[int], checkpoint: int, after: list[int], steps: int) -> None:
    """No step is missing, and none that the checkpoint covers is done twice."""
    assert before == list(range(1, len(before) + 1))
    assert checkpoint in before
    assert after == list(range(checkpoint + 1, steps + 1))


def test_the_page_shows_the_programs_own_lines() -> None:
    assert pages.block(PAGE, "python") in PROGRAM.read_text()


def test_after_a_reboot_the_computation_goes_on_from_its_checkpoint(
    machines: Callable[[str], Machine], service: Running, switch: Power
) -> None:
    machine = machines("batch")
    service.apply('[[machine]]\nname = "batch"')
    switch.machines = {"batch": machine}
    machine.start()
    machine.run(f"http://127.0.0.1:{service.guest_port}", "batch")
    until(lambda: len(machine.did(1)) > 100)
    machine.further = 500
    assert service.call("schedule", "reboot", "batch").returncode == 0
    assert completed(service, 1)["start_cause"] == "approved"
    assert machine.boots == 2
    checkpoint = machine.resumed(2)
    assert machine.saved(1) in ([checkpoint], [])  # the power may go before that is said
    result = machine.result_of(2)
    judge_going_on(machine.did(1), checkpoint, machine.did(2), machine.steps)
    assert machine.agent is not None
    machine.agent.until(lambda: machine.agent.status().get("events") == [])
    assert machine.saved(2) == []  # the agent asked once, and not again after the boot
    other = machines("undisturbed")
    other.checkpoint, other.steps = other.folder / "checkpoint.json", machine.steps
    assert undisturbed(other) == result


def test_a_checkpoint_that_cannot_be_read_is_no_new_beginning(
    machines: Callable[[str], Machine],
) -> None:
    machine = machines("batch")
    machine.checkpoint.write_text('{"step": 7, "val')
    ran = subprocess.run(machine.argv, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "JSONDecodeError" in ran.stderr
    assert "from step" not in ran.stdout


def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(
    machines: Callable[[str], Machine],
) -> None:
    chance = random.Random(SEED)
    machine = machines("batch")
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
        first = machine.did(boot)[0]
        assert first == (done[-1] if done else 0) + 1, f"SEED={SEED}"
        done.append(machine.kept)
    assert done == sorted(done), f"SEED={SEED}"
    machine.further = 10
    machine.start()
    result = machine.result_of(machine.boots)
    other = machines("undisturbed")
    other.checkpoint, other.steps = other.folder / "checkpoint.json", machine.steps
    assert undisturbed(other) == result, f"SEED={SEED}"
