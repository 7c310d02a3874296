"""A demonstration under way: what it writes, how it ends, and what it leaves."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import leftovers
import patience

COLOURS = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Playing:
    """A demo under way, and all that it has written."""

    def __init__(
        self, command: list[str], folder: Path, environment: dict[str, str], *, terminal: bool
    ) -> None:
        self.folder = folder
        self.text = ""
        self.raw = ""
        """The same with the terminal's colours and movements."""
        self.status: int | None = None
        if terminal:
            self._source, written = pty.openpty()
            fcntl.ioctl(written, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))
        else:
            self._source, written = os.pipe()
        environment = {**environment, "TMPDIR": str(folder), "TERM": "xterm"}
        environment.pop("COLUMNS", None)  # which would be believed before the terminal itself
        self.process = subprocess.Popen(
            command,
            stdout=written,
            stderr=written,
            env=environment,
        )
        os.close(written)

    def read_until(self, there: Callable[[str], object]) -> str:
        """Read on until the text is as wanted, or it is over."""
        while not there(self.text):
            assert select.select([self._source], [], [], patience.SECONDS)[0], self.text
            try:
                part = os.read(self._source, 65536)
            except OSError:
                part = b""  # so a terminal tells that nobody writes to it any more
            if not part:
                break
            self.raw += part.decode(errors="replace")
            self.text = COLOURS.sub("", self.text + part.decode(errors="replace"))
        return self.text

    def read_to_the_end(self) -> str:
        self.read_until(lambda _: False)
        self.status = self.process.wait(patience.SECONDS)
        return self.text

    def interrupt(self, number: int) -> None:
        self.process.send_signal(number)
        self.read_to_the_end()

    def children(self, words: bytes) -> list[int]:
        """Return the processes that it has started with such words in their command."""
        started = leftovers.children(self.process.pid)
        return [n for n in started if words in Path(f"/proc/{n}/cmdline").read_bytes()]

    def leftovers(self) -> list[str]:
        """What is left of it: its files, and processes that know its folder."""
        left = [str(path) for path in self.folder.iterdir()]
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                environment = (entry / "environ").read_bytes().decode(errors="replace")
            except OSError:
                continue  # it has ended meanwhile, or is another user's
            if f"TMPDIR={self.folder}" in environment.split("\0"):
                left.append(command)
        return left

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(patience.SECONDS)
        os.close(self._source)


@contextmanager
def playing(
    folder: Path,
    *arguments: str,
    environment: dict[str, str] | None = None,
    terminal: bool = False,
) -> Generator[Playing]:
    command = [sys.executable, "-m", "forewarn", "demo", *arguments]
    demo = Playing(command, folder, environment or dict(os.environ), terminal=terminal)
    try:
        yield demo
    finally:
        demo.close()
