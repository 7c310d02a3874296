"""Runs this folder's program for each machine, as `command` runs the operator's.

The program goes on from whatever state it finds, and fences itself by a marker in the machine's
metadata. So one that was killed or has crashed is run again at once, and a check is exact.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, cast

import msgspec

from forewarn.connectors.command import (
    CommandConnector,
    CommandUnusable,
    RunLimits,
    RunResult,
    RunTrace,
    TaskRun,
    last_line,
)
from forewarn.connectors.libvirt.program import FAILED, UNKNOWN
from forewarn.connectors.port import Outcome, Task
from forewarn.connectors.settings import CommandConnectorSettings, LibvirtSettings
from forewarn.maintenance.model import HostFacts

PROGRAM: Final = str(Path(__file__).parent / "__main__.py")

GRACE_SECONDS: Final = 60.0
"""The time for the program to cancel a migration and to leave the machine running, after its time
limit."""

SURVEY_SECONDS: Final = 30.0
"""The time limit of a survey: more than the program gives the slowest host."""

SSH_FAILED: Final = 255
"""The exit status of ssh when it has no connection, or loses it."""

PROBE_SECONDS: Final = 60.0
"""The time for a Python to import libvirt: a tenth of a second, and more on a busy machine."""

MAX_SURVEY: Final = 64 * 1024 * 1024
"""The bytes kept of a survey: a thousand hosts with 300 guests each."""

HOST_SECONDS: Final = 366 * 86_400.0
"""The time limit of a task that waits for its host's reboot: an operator may take days over it, and
until then the machine is to stay off. Its active part has limits of its own."""

MAX_KEPT: Final = 4 * 1024
"""The bytes kept of other output: more than is quoted of it."""

MAX_SAID: Final = 300
"""The most characters that are quoted of a command's last words."""


class LibvirtConnector(CommandConnector):
    """Carries maintenance out on hosts under libvirt.

    Raises:
        CommandUnusable: This system is not POSIX, or has no folder for the results.
    """

    def __init__(
        self,
        settings: LibvirtSettings,
        state: Path,
        environment: Mapping[str, str],
        os_name: str = os.name,
    ) -> None:
        python = settings.python or sys.executable
        program = (python, "-I", PROGRAM)
        command = CommandConnectorSettings(
            program=(*program, "carry-out"),
            check_command=(*program, "check"),
            time_limit_seconds=settings.time_limit_seconds,
            grace_seconds=GRACE_SECONDS,
            at_once=settings.at_once,
        )
        super().__init__(command, state, environment, os_name)
        self._python = program
        self._hosts = settings
        self._told = told(settings)
        self._free = {host.name: settings.at_once_per_host for host in settings.host}
        self._freed = {host.name: asyncio.Event() for host in settings.host}
        """Set, and replaced, whenever a task leaves the host."""

    async def survey(self) -> dict[str, HostFacts]:
        """Ask all hosts for their state; all say why where the program itself fails."""
        order = msgspec.json.encode(self._told)
        survey = (*self._python, "survey")
        status, out, err = await self._call(survey, SURVEY_SECONDS, order, MAX_SURVEY)
        if status == 0:
            return msgspec.json.decode(out, type=dict[str, HostFacts])
        why = f"the survey failed: {last_line(err)[-MAX_SAID:] or f'exit status {status}'}"
        return {
            host.name: HostFacts(
                answers=False,
                why=why,
                target=host.targets,
                can_reboot=bool(host.reboot and host.boot_id_command),
            )
            for host in self._hosts.host
        }

    async def reboot_host(self, host: str) -> Outcome:
        """Run the host's own reboot command; the caller limits its time."""
        known = next((each for each in self._hosts.host if each.name == host), None)
        if known is None or not known.reboot:
            message = f"no command to reboot {host}: set reboot in its [[connector.libvirt.host]]"
            return Outcome(succeeded=False, message=message)
        status, _, err = await self._call(known.reboot, None)
        said = last_line(err)[-MAX_SAID:]
        cut_off = status == SSH_FAILED and "closed by remote host" in said  # by the reboot itself
        if status != 0 and not cut_off:
            return Outcome(succeeded=False, message=f"exit status {status}: {said}".strip(": "))
        return Outcome(succeeded=True, message=said)

    async def _call(
        self, argv: tuple[str, ...], seconds: float | None, stdin: bytes = b"", kept: int = MAX_KEPT
    ) -> tuple[int, bytes, bytes]:
        """Run a command; return its exit status, -1 if it could not be run or took too long.

        The output and the errors are the last bytes; of the output so many are `kept`.

        It reads a file and no pipe: uvloop fails where a command ends before its pipe is written.
        """
        try:
            with tempfile.TemporaryFile() as file:
                file.write(stdin)
                file.seek(0)
                child = await Child.begun(argv, self._environment, kept, stdin=file)
        except OSError as error:
            return -1, b"", str(error).encode()
        try:
            async with asyncio.timeout(seconds):
                await child.over.wait()
        except TimeoutError:
            return -1, b"", f"no answer in {seconds:g} s".encode()
        finally:
            await child.end()
        return child.status or 0, bytes(child.said[1]), bytes(child.said[2])

    def _goes_on(self, left: RunResult | RunTrace) -> bool:
        """Return True if the program was killed or has crashed, so that another run continues."""
        if isinstance(left, RunResult):
            known = left.kind == "exit" and left.number == UNKNOWN and left.stage == 0
            return not known and not self._is_final(left)
        return left is RunTrace.BEGUN

    def _is_final(self, left: RunResult | RunTrace) -> bool:
        """Return True if the program ended by itself and knew the result."""
        return isinstance(left, RunResult) and (
            left.kind == "refused" or (left.kind == "exit" and left.number in {0, FAILED})
        )

    def _outcome(self, ended: RunResult) -> Outcome:
        """Return the program's own words: it knows what it has done, also by its time limit."""
        failed = ended.kind == "exit" and ended.number == FAILED
        ended = msgspec.structs.replace(ended, stage=0, number=0 if failed else ended.number)
        outcome = super()._outcome(ended)
        return msgspec.structs.replace(outcome, succeeded=outcome.succeeded and not failed)

    async def _more(self, task: Task, earlier: TaskRun | None) -> dict[str, Any]:
        """Add the settings, and an earlier run's state: it may have begun, or used its time up."""
        left = None if earlier is None else await self._runs.end(earlier)
        stopping = isinstance(left, RunResult) and left.stage > 0
        again = earlier is not None or bool(task.claimed_elsewhere) or self._may_miss(task)
        return {"libvirt": self._told, "again": again, "stopping": stopping}

    def _limits_of(self, task: Task) -> RunLimits:
        return (
            self._limits._replace(time_seconds=HOST_SECONDS) if task.host_boot_id else self._limits
        )

    @contextlib.asynccontextmanager
    async def _room(self, task: Task, subject: str) -> AsyncIterator[None]:
        if task.host_boot_id:
            # It waits for its host, which waits for the others: a place would never be free.
            yield
            return
        host = task.hosts[task.machines.index(subject)] if subject in task.machines else ""
        names = sorted({host, task.to_host} & self._free.keys())
        # Both places at once: one that waits for a host holds up nobody on the other.
        while (full := next((name for name in names if not self._free[name]), None)) is not None:
            await self._freed[full].wait()
        for name in names:
            self._free[name] -= 1
        try:
            async with self._slots:
                yield
        finally:
            for name in names:
                self._free[name] += 1
                self._freed[name].set()
                self._freed[name] = asyncio.Event()


def told(settings: LibvirtSettings) -> dict[str, Any]:
    """Return the settings in the form that the program reads."""
    builtins: dict[str, Any] = msgspec.to_builtins(settings)
    builtins["hosts"] = [
        {**each, "boot_id": host.boot_id_command}
        for each, host in zip(builtins.pop("host"), settings.host, strict=True)
    ]
    return builtins


def require_libvirt(settings: LibvirtSettings, environment: Mapping[str, str]) -> None:
    """Refuse a Python without libvirt, before the first machine waits for it.

    Raises:
        CommandUnusable: It cannot be run, or has no module `libvirt`; one line says what to do.
    """
    python = settings.python or sys.executable
    hint = "pip install '.[libvirt]' in a clone of Forewarn, or set python to one that has it"
    where = f"connector.libvirt.python: {python}"
    try:
        probed = subprocess.run(  # noqa: S603 - from the settings, without a shell
            (python, "-I", PROGRAM, "probe"),
            capture_output=True,
            check=False,
            env=environment,
            timeout=PROBE_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CommandUnusable(f"{where} cannot be run: {error}") from error
    if probed.returncode != 0:
        raise CommandUnusable(
            f"{where} has no module libvirt ({last_line(probed.stderr)[-MAX_SAID:]}): {hint}"
        )


class Child(asyncio.SubprocessProtocol):
    """A program, the last bytes that it said, and its end with all that it began.

    `end` closes its pipes too: another program that it began may hold them open for ever.
    """

    def __init__(self, kept: int) -> None:
        self._kept = {1: kept, 2: MAX_KEPT}
        self.said = {1: bytearray(), 2: bytearray()}
        """By the descriptor: of the output as many bytes as are `kept`, and of the errors."""
        self.heard = asyncio.Event()
        """Set when it has said more, or is over."""
        self.over = asyncio.Event()
        """Set when it has ended, and its pipes with it."""
        self._gone = asyncio.Event()

    @classmethod
    async def begun(
        cls,
        argv: Sequence[str],
        environment: Mapping[str, str],
        kept: int,
        *,
        stdin: IO[bytes] | int,
        stderr: int = subprocess.PIPE,
    ) -> "Child":
        """Begin a program in a session of its own: Ctrl-C is for the service, which ends it.

        Raises:
            OSError: It cannot be run.
        """
        loop = asyncio.get_running_loop()
        _, child = await loop.subprocess_exec(
            lambda: cls(kept),
            *argv,
            stdin=stdin,
            stderr=stderr,
            env=dict(environment),
            start_new_session=True,
        )
        return child

    @property
    def status(self) -> int | None:
        """Its exit status, once it has ended."""
        return self._transport.get_returncode()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep what reaches it, as asyncio says."""
        self._transport = cast("asyncio.SubprocessTransport", transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Keep the last of what it says, as asyncio says."""
        self.said[fd] += data
        del self.said[fd][: -self._kept[fd]]
        self.heard.set()

    def process_exited(self) -> None:
        """Note its end, as asyncio says: others may hold its pipes still."""
        self._gone.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell who waits, as asyncio says."""
        self.over.set()
        self.heard.set()

    def write(self, data: bytes) -> None:
        """Write to its standard input, if that is a pipe and it still reads."""
        pipe = cast("asyncio.WriteTransport", self._transport.get_pipe_transport(0))
        if not pipe.is_closing():
            pipe.write(data)

    async def end(self) -> None:
        """End it, if it runs, with all that it began, which could reboot the host later.

        An ssh to a host that hangs never ends by itself.
        """
        if not self.over.is_set():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._transport.get_pid(), signal.SIGKILL)
        await self._gone.wait()  # to close while it runs would take its status from the loop
        self._transport.close()
        await self.over.wait()
