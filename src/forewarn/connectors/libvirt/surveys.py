"""Surveys of domains: a program for each host, kept open from one survey to the next.

The service never loads the C library, and a host that hangs is a process that is killed, with its
connection, and started again for the next survey.
"""

import sys
from collections.abc import Iterable, Mapping
from subprocess import DEVNULL, PIPE
from typing import Final

import msgspec

from forewarn.clock import Clock
from forewarn.connectors.libvirt.connector import PROGRAM, Child
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
        self._running: dict[str, Child] = {}

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names of the hosts."""
        return tuple(self._uris)

    async def survey(self, host: str, tags_of: Iterable[str] = ()) -> tuple[Domain, ...]:
        """Ask a host for all its domains, as the port says."""
        child = self._running.get(host) or await self._start(host)
        kept = False
        try:
            data = await self._ask(child, " ".join(("states", *tags_of)))
            answer = msgspec.json.decode(data, type=_SurveyAnswer)
            kept = True
        except (msgspec.DecodeError, ValueError) as error:
            message = f"an invalid answer of the program that surveys it: {error}"
            raise Unanswered(message) from error
        finally:
            if not kept:
                self._running.pop(host, None)
                await child.end()
        if answer.error:
            raise Unanswered(answer.error)
        return answer.domains

    async def close(self) -> None:
        """End all programs, and with them the surveys that are under way."""
        running, self._running = [*self._running.values()], {}
        for child in running:
            await child.end()

    async def _start(self, host: str) -> Child:
        argv = (self._python, "-I", PROGRAM, "states", self._uris[host])
        try:
            child = await Child.begun(argv, self._environment, MAX_LINE, stdin=PIPE, stderr=DEVNULL)
        except OSError as error:
            raise Unanswered(f"cannot run {self._python}: {error.strerror}") from error
        self._running[host] = child
        return child

    async def _ask(self, child: Child, request: str) -> bytes:
        child.said[1].clear()
        child.write(f"{request}\n".encode())
        until = self._clock.monotonic() + ANSWER_SECONDS
        while not child.said[1].endswith(b"\n"):
            if child.over.is_set():
                raise Unanswered(self._ended(child))
            if (left := until - self._clock.monotonic()) <= 0:
                raise Unanswered(f"no answer in {ANSWER_SECONDS:.0f} s")
            child.heard.clear()
            await self._clock.wait(left, child.heard)
        return bytes(child.said[1])

    def _ended(self, child: Child) -> str:
        if child.status == NO_LIBVIRT:
            return f"{self._python} has no module libvirt"
        return f"the program that surveys it has ended: exit status {child.status}"
