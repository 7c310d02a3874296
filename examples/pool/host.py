"""The host of the machines: starts, restarts and stops machines, as libvirt does on a real one.

A machine is its processes: the web server, and the agent where there are agents. A restart is like
the power switch: all of them get SIGKILL, and start again after the time of a boot. The disk of the
machine, with the journal of its agent, stays. The request for a restart is answered when the web
server answers again. The kernel stays the same, and so does the boot id, by which an agent tells a
boot from its own restart.

Its argument is a file of settings, JSON:

    {"socket": PATH, "boot_seconds": 2, "machines":
        {NAME: {"address": A, "port": P, "log": PATH, "programs": [[PROGRAM, ARGUMENT, ...]]}}}

It prints what happens as JSON, one object per line. Everything ends when its stdin does.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

BOOT_LIMIT_SECONDS = 30.0
"""For a machine to boot until its web server answers; it takes a fraction of a second."""

LOOK_SECONDS = 0.02
"""Between two tries to reach a web server that is starting."""


class Machine:
    """One machine, by its part of the settings; a restart takes it off for `boot_seconds`."""

    def __init__(self, name: str, given: dict[str, Any], boot_seconds: float) -> None:
        self._name = name
        self._given = given
        self._boot_seconds = boot_seconds
        self._processes: list[subprocess.Popen[bytes]] = []
        self._turn = asyncio.Lock()

    async def boot(self) -> None:
        """Start it, and return when its web server answers."""
        self._start()
        async with asyncio.timeout(BOOT_LIMIT_SECONDS):
            while not await self._answers():  # noqa: ASYNC110 - a process elsewhere sets no Event
                await asyncio.sleep(LOOK_SECONDS)
        self._tell("on", [process.pid for process in self._processes])

    async def restart(self) -> None:
        """Cut its power, and start it again."""
        async with self._turn:
            self.cut()
            await asyncio.sleep(self._boot_seconds)  # the time of a boot
            await self.boot()

    def cut(self) -> None:
        """Kill its processes, and return when all are gone."""
        self._tell("off", [])
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
            if process.stdin is not None:
                process.stdin.close()
        self._processes.clear()

    def _start(self) -> None:
        """Start its processes, in one go: none may run without being known."""
        with Path(self._given["log"]).open("ab") as log:
            for program in self._given["programs"]:
                process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=log, stderr=log)
                self._processes.append(process)

    async def _answers(self) -> bool:
        try:
            _, writer = await asyncio.open_connection(self._given["address"], self._given["port"])
        except OSError:
            return False
        writer.close()
        return True

    def _tell(self, what: str, pids: list[int]) -> None:
        now = asyncio.get_running_loop().time()
        told = {"at": now, "machine": self._name, "power": what, "pids": pids}
        print(json.dumps(told), flush=True)


class Host:
    """All machines, and the socket that takes requests for restarts."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._socket = settings["socket"]
        self._machines = {
            name: Machine(name, given, settings["boot_seconds"])
            for name, given in settings["machines"].items()
        }

    async def run(self) -> None:
        """Start every machine, and serve until stdin ends or SIGTERM comes; then end them all."""
        over = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(sys.stdin.fileno(), over.set)
        loop.add_signal_handler(signal.SIGTERM, over.set)
        try:
            booting = asyncio.gather(*(machine.boot() for machine in self._machines.values()))
            ending = asyncio.ensure_future(over.wait())
            await asyncio.wait((booting, ending), return_when=asyncio.FIRST_COMPLETED)
            if booting.done():
                await booting  # and its error, if there was one
                server = await asyncio.start_unix_server(self._serve, self._socket)
                await over.wait()
                server.close()
            booting.cancel()
        finally:
            for machine in self._machines.values():
                machine.cut()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, _, name = (await reader.readline()).decode().strip().partition(" ")
        machine = self._machines.get(name)
        if machine is None:
            answer = f"there is no machine {name!r} here"
        else:
            try:
                await machine.restart()
                answer = "done"
            except TimeoutError:
                answer = f"{name} did not come back in {BOOT_LIMIT_SECONDS:g} s"
        with contextlib.suppress(OSError):
            writer.write(f"{answer}\n".encode())
            await writer.drain()
            writer.close()


if __name__ == "__main__":
    os.chdir("/")
    asyncio.run(Host(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))).run())
