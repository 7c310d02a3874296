"""Runs the program for libvirt's hosts, beside libvirt's own driver for tests."""

import functools
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import patience
from forewarn.connectors.libvirt.connector import PROGRAM

PYTHON = "/usr/bin/python3"
"""The Python that has Debian's python3-libvirt."""

DRIVEN = Path(__file__).with_name("driven.py")


@functools.cache
def has_libvirt() -> bool:
    """Tell whether the system's Python has the library."""
    if not Path(PYTHON).exists():
        return False
    return (
        subprocess.run(
            [PYTHON, "-Ic", "import libvirt"], check=False, capture_output=True
        ).returncode
        == 0
    )


class Surveyed:
    """The program's `states`, and the hand that does things to the domain of `test:///default`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def does(self, statement: str) -> str:
        """Run a statement in the program; `domain` is the one domain. Return what it answers."""
        self._send(f"do {statement}; answer('')")
        return self._next()

    def states(self, *tags_of: str) -> list[dict[str, Any]]:
        """Return what the program has of all domains."""
        found: list[dict[str, Any]] = self.says(*tags_of)["domains"]
        return found

    def says(self, *tags_of: str) -> dict[str, Any]:
        self._send(" ".join(("states", *tags_of)))
        told: dict[str, Any] = json.loads(self._next())
        return told

    def hangs_up(self) -> int:
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._process.wait(patience.SECONDS)

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def _next(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@contextmanager
def surveying(uri: str = "test:///default") -> Iterator[Surveyed]:
    process = subprocess.Popen(
        [PYTHON, "-I", str(DRIVEN), PROGRAM, uri],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield Surveyed(process)
        finally:
            process.kill()
