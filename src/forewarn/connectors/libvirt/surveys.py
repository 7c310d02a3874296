"""Surveys of domains: a program for each host, kept open from one survey to the next.

The service never loads the C library, and a host that hangs is a process that is killed, with its
connection, and started again for the next survey.
"""

import asyncio
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from forewarn.clock import Clock
from forewarn.connectors.libvirt.connector import PROGRAM, kill
from forewarn.connectors.libvirt.program import NO_LIBVIRT
from forewarn.connectors.port import Unanswered
from forewarn.maintenance.fleet_import import Domain

ANSWER_SECONDS: Final = 20.0
"""The time limit of a host's answer, the connection included: SSH to a slow host, but not for ever.
"""

MAX_LINE: Final = 16 * 1024 * 1024
"""The most bytes of an answer: 100,000 domains."""


class _SurveyAnswer(msgspec.Struct, frozen=True):
    domains: tuple[Domain, ...] = ()
    error: str = ""


class LibvirtSurveys:
    """Surveys libvirt hosts, by the names that the fleet has for them.

    Args:
        uris: Each host's libvirt URI.
        python: The Python with the module `libvirt`; `""` is this process's.
        environment: That of the programs.
        clock: The machine's time, which the programs live in.
    """

    def __init__(
        self,
        uris: Mapping[str, str],
        python: str,
        environment: Mapping[str, str],
        clock: Clock,
    ) -> None:
        self._uris = uris
        self._python = python or sys.executable
        self._environment = environment
        self._clock = clock
        self._running: dict[str, Process] = {}

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names of the hosts."""
        return tuple(self._uris)

    async def survey(self, host: str, tags_of: Iterable[str] = ()) -> tuple[Domain, ...]:
        """Ask a host for all its domains, as the port says."""
        process = self._running.get(host) or await self._start(host)
        kept = False
        try:
            data = await self._ask(process, " ".join(("states", *tags_of)))
            if not data:
                await process.wait()
                raise Unanswered(self._ended(process))
            answer = msgspec.json.decode(data, type=_SurveyAnswer)
            kept = True
        except (msgspec.DecodeError, ValueError) as error:
            message = f"an invalid answer of the program that surveys it: {error}"
            raise Unanswered(message) from error
        finally:
            if not kept:
                self._running.pop(host, None)
                await kill(process)
        if answer.error:
            raise Unanswered(answer.error)
        return answer.domains

    async def close(self) -> None:
        """End all programs, and with them the surveys that are under way."""
        running, self._running = [*self._running.values()], {}
        for process in running:
            await kill(process)

    async def _start(self, host: str) -> Process:
        try:
            process = await asyncio.create_subprocess_exec(
                *(self._python, "-I", PROGRAM, "states", self._uris[host]),
                stdin=PIPE,
                stdout=PIPE,
                stderr=DEVNULL,
                limit=MAX_LINE,
                env=dict(self._environment),
                start_new_session=True,  # Ctrl-C is for the service, which ends it
            )
        except OSError as error:
            raise Unanswered(f"cannot run {self._python}: {error.strerror}") from error
        self._running[host] = process
        return process

    async def _ask(self, process: Process, request: str) -> bytes:
        assert process.stdin is not None
        assert process.stdout is not None
        if not process.stdin.is_closing():
            process.stdin.write(f"{request}\n".encode())
        reading = asyncio.create_task(process.stdout.readline())
        late = asyncio.create_task(self._clock.wait(ANSWER_SECONDS, asyncio.Event()))
        try:
            await asyncio.wait({reading, late}, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                raise Unanswered(f"no answer in {ANSWER_SECONDS:.0f} s")
            return reading.result()
        finally:
            reading.cancel()
            late.cancel()

    def _ended(self, process: Process) -> str:
        if process.returncode == NO_LIBVIRT:
            return f"{self._python} has no module libvirt"
        return f"the program that surveys it has ended: exit status {process.returncode}"
