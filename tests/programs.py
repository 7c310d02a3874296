"""Programs of this Python, each in one process after another, whose output goes to a log."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import pytest

import forked
import patience

NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


BRIDGE: Final = """
import subprocess

AT = "fe80::a9fe:a9fe%br-green"


def ip(words):
    subprocess.run(["ip", *words.split()], check=True)


def make_bridge():
    ip("link add br-green type bridge")
    ip("link set br-green up")
    ip("address add fe80::a9fe:a9fe/64 dev br-green nodad")


def delete_bridge():
    ip("link delete br-green")


ip("link set lo up")
"""
"""For scripts in a network of their own: a bridge, which each time has another index."""


def run_in_a_network(script: str) -> int:
    """Run a script in a network of its own, and return its status.

    Its test is skipped where no network can be made.
    """
    network = ["unshare", "--map-root-user", "--net"]
    tools = all(map(shutil.which, ("unshare", "ip")))
    if not tools or subprocess.run([*network, "true"], check=False).returncode:
        pytest.skip("a network of its own is made with unshare and ip")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    command = [*network, sys.executable, "-c", script]
    return subprocess.run(command, check=False, env=environment).returncode


class Program:
    """A program that a test starts, and ends by signals.

    Args:
        log: Where its output goes.
        environment: Variables beside the test's own.
    """

    def __init__(self, log: Path, environment: Mapping[str, str] = NOTHING) -> None:
        self.log = log
        self.environment = environment
        self.process: forked.Process | None = None
        self._from = 0

    def begin(
        self, arguments: Sequence[str], within: Sequence[str] | None = None, **terms: Any
    ) -> None:
        """Begin to run what `python ARGUMENTS` runs.

        Args:
            arguments: Those of `Forked`.
            within: The command that runs a Python of its own, `()` for none; it is forked if left
                out.
            terms: Further ones of a process.
        """
        with self.log.open("ab") as log:
            self._from = log.tell()
            given = {"stdout": log, "stderr": log, "env": {**os.environ, **self.environment}}
            given |= terms
            if within is None:
                self.process = forked.Forked(arguments, **given)
            else:
                self.process = subprocess.Popen([*within, sys.executable, *arguments], **given)

    def wait_for(self, *words: bytes) -> None:
        """Return when a line that it has logged since its start has these words."""

        def logged() -> bool:
            assert self.runs, self.tail()
            lines = self.log.read_bytes()[self._from :].splitlines()
            return any(all(word in line for word in words) for line in lines)

        patience.until(logged, self.tail, every=0.001)

    def tail(self) -> str:
        """Return the end of its log."""
        return self.log.read_text()[-4000:] if self.log.exists() else ""

    @property
    def pid(self) -> int:
        """The number of its process; 0 where there is none."""
        return 0 if self.process is None else self.process.pid

    @property
    def runs(self) -> bool:
        """Whether its process is there."""
        return self.process is not None and self.process.poll() is None

    def send(self, number: int) -> None:
        """Send it a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def ended(self) -> int:
        """Wait for its end; return its status."""
        assert self.process is not None
        process, self.process = self.process, None
        try:
            return process.wait(patience.SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End it by a signal; return its status, 0 where it did not run."""
        if self.process is None:
            return 0
        self.send(number)
        return self.ended()

    def kill(self) -> int:
        """End it without a word, as a lost power supply does."""
        return self.stop(signal.SIGKILL)


class Printing(Program):
    """A command that prints lines as it goes on, and its complaints beside them.

    Args:
        folder: Where both go.
        arguments: Of `forewarn`.
        environment: Variables beside the test's own.
    """

    def __init__(
        self, folder: Path, *arguments: str, environment: Mapping[str, str] = NOTHING
    ) -> None:
        super().__init__(folder / f"{arguments[0]}.out", environment)
        self.log.unlink(missing_ok=True)
        self._errors = folder / f"{arguments[0]}.err"
        self._taken = 0
        with self._errors.open("wb") as errors:
            self.begin(["-m", "forewarn", *arguments], stderr=errors)

    def lines(self) -> list[Any]:
        """Return the JSON that it has printed so far."""
        whole, _, _ = self.log.read_text().rpartition("\n")
        return [json.loads(line) for line in whole.splitlines()]

    def line(self) -> Any:
        """Return the next line, once it is there."""
        self._taken += 1
        return patience.until(lambda: self.lines()[self._taken - 1 :], self.errors)[0]

    def errors(self) -> str:
        """Return its complaints."""
        return self._errors.read_text()
