"""A handler under test as a process: its place, its drain programs, and its traces.

Each has a folder of its own, and a file in which its drain and undrain programs leave marks: a line
`drain` when it begins, `drained` when it ended well, `undrain` when it puts the machine back to
work. The programs that come with it do that; a handler with programs of its own appends the lines
itself.
"""

import difflib
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from forewarn import clock
from forewarn.testing import namespace

if TYPE_CHECKING:
    from forewarn.testing.certify import Handler

STOP_SECONDS: Final = 10.0
"""The time for a handler to end after SIGTERM; systemd allows nine times as much."""

START_SECONDS: Final = 20.0
"""The time for a namespace to open: sudo may ask others."""

STOPPED: Final = frozenset({"", "T", "t", "Z", "X"})
"""The states, as proc(5) has them, in which a process starts no other; `""` is that of none."""

LOOKS: Final = 2
"""The number of looks in a row without a running process after which all count as stopped."""

TAIL: Final = 2000

_DRAIN: Final = """#!/bin/sh
log=$FOREWARN_DRAIN_LOG
echo "drain $*" >>"$log"
while [ -e "$log.wait" ]; do sleep 0.05; done
if [ -e "$log.fail" ]; then
    echo "drain-failed $*" >>"$log"
    exit 1
fi
echo "drained $*" >>"$log"
"""
_UNDRAIN: Final = """#!/bin/sh
echo "undrain $*" >>"$FOREWARN_DRAIN_LOG"
"""
_PROGRAMS: Final = {"drain": _DRAIN, "undrain": _UNDRAIN}

PLACEHOLDERS: Final = (*_PROGRAMS, "folder")

_PEER: Final = struct.Struct("3i")
"""The ids of a socket's other end (SO_PEERCRED): process, user, group."""


class CannotIsolate(OSError):  # noqa: N818 - a state of the machine
    """No network namespace can be made; the message says what to do."""


def isolation() -> tuple[str, ...]:
    """Return the first arguments of a command that makes a network namespace.

    Raises:
        CannotIsolate: Neither this user nor `sudo` may make one.
    """
    program = (sys.executable, "-I", namespace.__file__)
    ways: list[tuple[str, ...]] = [program]
    if os.geteuid() != 0 and shutil.which("sudo"):
        ways.append(("sudo", "-n", *program))
    for way in ways:
        tried = subprocess.run(  # noqa: S603 - our own program
            way, capture_output=True, check=False, stdin=subprocess.DEVNULL
        )
        if tried.returncode == 0:
            return way
    raise CannotIsolate(
        "cannot make a network namespace, which a handler that asks 169.254.169.254 needs: run "
        "this as root, let this user run sudo without a password, or, where AppArmor forbids it "
        "(Ubuntu), run 'sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0'"
    )


class HandlerProcess:
    """A handler that can be started more than once, one process at a time.

    Args:
        handler: In its command `{drain}`, `{undrain}` and `{folder}` stand for the programs that
            leave marks, and for the folder.
        folder: Exists, and is its own.
        environment: Variables beside this process's own.
    """

    def __init__(self, handler: "Handler", folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._log = folder / "drain.log"
        self._output = folder / "output.log"
        self._isolated, self.ports = handler.isolated, handler.ports
        places = {name: str(folder / name) for name in _PROGRAMS} | {"folder": str(folder)}
        for name, text in _PROGRAMS.items():
            program = folder / name
            program.write_text(text, encoding="utf-8")
            program.chmod(0o755)
        self._command = [_filled(argument, places) for argument in handler.command]
        self._environment = {
            **os.environ,
            **environment,
            "FOREWARN_DRAIN_LOG": str(self._log),
            "FOREWARN_DRAIN": places["drain"],
            "FOREWARN_UNDRAIN": places["undrain"],
            "FOREWARN_FOLDER": str(folder),
            "STATE_DIRECTORY": str(folder),  # where a handler keeps what outlives it
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._pid = 0
        """The handler's own: `_process` may be sudo, which waits for it."""

    def start(self) -> list[socket.socket]:
        """Start it; return the listening sockets of its namespace, the endpoint's first.

        Raises:
            OSError: The program is not there, or may not be run.
            CannotIsolate: Its namespace could not be made.
        """
        with self._output.open("ab") as output:
            if not self._isolated:
                self._process = self._popen(self._command, output.fileno())
                self._pid = self._process.pid
                return []
            path, variables = self._folder / "handed.sock", self._folder / "environment.json"
            variables.write_text(json.dumps(self._environment), encoding="utf-8")
            variables.chmod(0o600)
            if shutil.which(self._command[0], path=self._environment.get("PATH")) is None:
                raise FileNotFoundError(2, "no such program", self._command[0])
            with socket.socket(socket.AF_UNIX) as listening:
                path.unlink(missing_ok=True)
                listening.bind(str(path))
                listening.listen()
                listening.settimeout(START_SECONDS)
                ids = (str(os.getuid()), str(os.getgid()))
                ports = ",".join(map(str, self.ports))
                inside = [str(path), str(variables), *ids, ports, "--", *self._command]
                self._process = self._popen([*self._isolated, *inside], output.fileno())
                try:
                    handed, _ = listening.accept()
                except TimeoutError:
                    message = f"its network namespace was not made: {self.said()}"
                    raise CannotIsolate(message) from None
            with handed:
                peer = handed.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
                self._pid, _, _ = _PEER.unpack(peer)  # which then becomes the handler
                _, files, _, _ = socket.recv_fds(handed, 1, 1 + len(self.ports))
            return [socket.socket(fileno=file) for file in files]

    def _popen(self, command: Sequence[str], output: int) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(  # noqa: S603 - running the handler is the point
            command,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )

    @property
    def status(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        return None if self._process is None else self._process.poll()

    def said(self) -> str:
        """Return the end of its output."""
        if not self._output.exists():
            return ""
        with self._output.open("rb") as output:  # a handler may have written gigabytes
            output.seek(max(0, self._output.stat().st_size - TAIL))
            return output.read(TAIL).decode("utf-8", "replace").strip()

    def marks(self) -> tuple[str, ...]:
        """Return the first words of the lines that its programs left."""
        if not self._log.exists():
            return ()
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return tuple(line.split()[0] for line in lines if line.split())

    def order(self, word: str, *, on: bool) -> None:
        """Make its drain program `wait` or `fail`, or end that."""
        file = self._log.with_name(f"{self._log.name}.{word}")
        if on:
            file.touch()
        else:
            file.unlink(missing_ok=True)

    def kill(self) -> None:
        """Kill it and all that it began at once, as a crash of its service does."""
        process = self._process
        if process is None:
            return
        # All are stopped first: none sees another's end, and none begins another. Who was begun
        # during a look may be missing from it, so the last look comes after all were stopped.
        until = clock.monotonic() + STOP_SECONDS
        quiet, members = 0, tuple[int, ...]()
        while quiet < LOOKS and clock.monotonic() < until:
            members = tuple(pid for pid in (process.pid, *self.family()) if _is_ours(pid))
            running = [pid for pid in members if _state(pid) not in STOPPED]
            for pid in running:
                _signal(pid, signal.SIGSTOP)
            quiet = 0 if running else quiet + 1
        for pid in members:
            _signal(pid, signal.SIGKILL)
        process.wait()

    def terminate(self) -> None:
        """Ask it to end by SIGTERM."""
        if self._process is not None and self._process.poll() is None:
            _signal(self._pid, signal.SIGTERM)

    def family(self, state: str = "") -> list[int]:
        """Return the other processes of its session, and all that those and it began.

        With a state, such as `Z`, return those in it.
        """
        if self._process is None:
            return []
        found: dict[int, list[str]] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and (fields := _stat(int(entry.name))):
                found[int(entry.name)] = fields
        own = self._process.pid
        family, parents = set[int](), {own}
        while parents:
            children = {
                pid
                for pid, (_, parent, _, session, *_) in found.items()
                if int(session) == own or int(parent) in parents
            }
            parents = children - family
            family |= parents
        return [pid for pid in sorted(family - {own}) if state in {"", found[pid][0]}]


def unknown_placeholder(command: Sequence[str]) -> str:
    """Return the first word in braces that is a whole argument or nearly a placeholder, or `""`.

    Others are left alone: a shell's functions and awk's programs have braces, too.
    """
    for argument in command:
        for word in re.findall(r"(?<!\$)\{(\w+)\}", argument):
            is_meant = argument == f"{{{word}}}" or difflib.get_close_matches(word, PLACEHOLDERS)
            if is_meant and word not in PLACEHOLDERS:
                return str(word)
    return ""


def _filled(argument: str, places: Mapping[str, str]) -> str:
    for name, place in places.items():
        argument = argument.replace(f"{{{name}}}", place)
    return argument


def _is_ours(pid: int) -> bool:
    """Return False for another user's process, such as sudo: it ends with those that it began."""
    try:
        _signal(pid, 0)
    except PermissionError:
        return False
    return True


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:  # it has just ended
        return


def _stat(pid: int) -> list[str]:
    """Return a process's state, parent, group, session and more (proc(5)); none if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _state(pid: int) -> str:
    return "".join(_stat(pid)[:1])
