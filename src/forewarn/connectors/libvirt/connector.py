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
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from forewarn.connectors.command import (
    CommandConnector,
    CommandUnusable,
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

READ_BYTES: Final = 64 * 1024

MAX_SURVEY: Final = 64 * 1024 * 1024
"""The bytes kept of a survey: a thousand hosts with 300 guests each."""

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
                process = await asyncio.create_subprocess_exec(
                    *argv,
                    stdin=file,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env=self._environment,
                    start_new_session=True,
                )
        except OSError as error:
            return -1, b"", str(error).encode()
        assert process.stdout is not None
        assert process.stderr is not None
        ended = False
        try:
            async with asyncio.timeout(seconds):
                ends = (_end(process.stdout, kept), _end(process.stderr, MAX_KEPT))
                out, err = await asyncio.gather(*ends)
                await process.wait()
                ended = True
        except TimeoutError:
            return -1, b"", f"no answer in {seconds:g} s".encode()
        finally:
            if not ended:
                await kill(process)
        return process.returncode or 0, out, err

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


async def kill(process: asyncio.subprocess.Process) -> None:
    """End a program with all that it began, which could reboot the host later.

    An ssh to a host that hangs never ends by itself.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


async def _end(stream: asyncio.StreamReader, size: int) -> bytes:
    """Read a stream to its end; return its last bytes."""
    kept = bytearray()
    while data := await stream.read(READ_BYTES):
        kept += data
        del kept[:-size]
    return bytes(kept)
