"""Runs the program that reads libvirt's domains, beside libvirt's own driver for tests."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import patience
from forewarn.connectors import libvirt_domains

PYTHON = "/usr/bin/python3"
"""The Python that has Debian's python3-libvirt."""

PROGRAM = Path(libvirt_domains.__file__)
DRIVEN = Path(__file__).with_name("driven.py")


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


class Watched:
    """A `watch` of `test:///default`, and the hand that does things to its domain."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def does(self, statement: str) -> None:
        """Run a statement on another thread of the program; `domain` is the one domain."""
        self._send(f"do {statement}")

    def looks(self, uuid: str) -> None:
        self._send(f"look {uuid}")

    def next(self) -> dict[str, Any]:
        """Return the next line that tells something."""
        assert self._process.stdout is not None
        while line := self._process.stdout.readline():
            told: dict[str, Any] = json.loads(line)
            if "alive" not in told:
                return told
        return {}

    def hangs_up(self) -> int:
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._process.wait(patience.SECONDS)

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()


@contextmanager
def watching(uri: str = "test:///default") -> Iterator[Watched]:
    process = subprocess.Popen(
        [PYTHON, "-I", str(DRIVEN), str(PROGRAM), uri],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield Watched(process)
        finally:
            process.kill()
