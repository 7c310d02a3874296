"""The switch by which the service really stops machines and starts them again.

The service's own `command` connector runs the program below, which asks this process to throw the
switch and waits until it has.
"""

import contextlib
import socket
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import patience
from end_to_end.agents import until
from end_to_end.running import Running

PROGRAM = """#!{python}
import os, socket, sys
with socket.socket(socket.AF_UNIX) as switch:
    switch.settimeout({seconds})
    switch.connect({path!r})
    event = os.environ["FOREWARN_EVENT_TYPE"]
    switch.sendall((event + " " + os.environ["FOREWARN_MACHINE"] + "\\n").encode())
    said = switch.makefile().read()
sys.exit(0 if said == "done" else said or "the switch is gone")
"""


class Power:
    """Carries a service's acts out upon machines, each of which may last so many seconds."""

    def __init__(self, folder: Path, seconds: float = patience.SECONDS) -> None:
        self.machines: Mapping[str, Any] = {}
        """Each can `stop`, without being asked, and `start` what a boot starts."""
        self.acts: list[str] = []
        """What was carried out, as `Reboot db-0`."""
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(folder / "power.sock"))
        self._socket.listen()
        self._program = folder / "power"
        self._program.write_text(
            PROGRAM.format(python=sys.executable, seconds=seconds, path=str(folder / "power.sock"))
        )
        self._program.chmod(0o755)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    @property
    def settings(self) -> str:
        """The connector's, to follow those of the simulated one."""
        program = f'program = ["{self._program}"]'
        return f'[connector]\nkind = "command"\n[connector.command]\n{program}'

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                event, name = connection.makefile().readline().split()
                try:
                    self._act(event, name)
                    said = "done"
                except Exception as error:  # noqa: BLE001 - it is the operation's outcome
                    said = f"{type(error).__name__}: {error}"
                connection.sendall(said.encode())

    def _act(self, event: str, name: str) -> None:
        machine = self.machines[name]
        machine.stop()
        if event not in {"Preempt", "Terminate"}:
            machine.start()
        self.acts.append(f"{event} {name}")


def completed(service: Running, maintenance: int) -> Any:
    """Return a maintenance's one operation once it has succeeded."""

    def found() -> list[Any]:
        kept = service.operator.get("/v1/history")["operations"]
        return [each for each in kept if each["maintenance"] == maintenance]

    until(lambda: [each["status"] for each in found()] == ["Completed"], found)
    return found()[0]
