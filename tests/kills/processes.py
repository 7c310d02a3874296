"""The processes of a run: the service, fresh or forked, and its clients."""

import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import forewarn
import patience
import web
from ports import free_port
from programs import Program
from server.running import Client

TESTS = Path(__file__).resolve().parents[1]
POLL_SECONDS = 0.001


def environment(**more: str) -> dict[str, str]:
    """Return the variables that our processes get: they import the very code that we do."""
    given = {name: value for name, value in os.environ.items() if not name.startswith("FOREWARN_")}
    path = os.pathsep.join([str(TESTS), *filter(None, [given.get("PYTHONPATH")])])
    return {**given, "PYTHONPATH": path, **more}


def release(folder: Path, edits: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Make another release of the package, with edits, in a folder; return what has it run."""
    package = folder / "forewarn"
    shutil.copytree(Path(forewarn.__file__).parent, package)
    for edit in edits:
        file = package / edit["file"]
        whole = file.read_text(encoding="utf-8")
        assert edit["text"] in whole, f"{file} has no {edit['text']!r} any more"
        file.write_text(whole.replace(edit["text"], edit["instead"]), encoding="utf-8")
    return {"PYTHONPATH": f"{folder}:{TESTS}"}


class Told(Program):
    """A process that takes orders on its standard input and answers each with a line."""

    def __init__(self, log: Path, module: str, *arguments: str) -> None:
        super().__init__(log)
        pipes = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
        self.begin(["-m", module, *arguments], env=environment(), **pipes)
        self._orders, self._answers = self.process.stdin, self.process.stdout
        self._rest = b""

    def tell(self, **order: Any) -> None:
        self._orders.write(json.dumps(order).encode() + b"\n")
        self._orders.flush()

    def hear(self, seconds: float = patience.SECONDS) -> Any:
        """Return its next line, None if there is none in that time."""
        source = self._answers.fileno()
        until = time.monotonic() + seconds
        while b"\n" not in self._rest:
            ready, _, _ = select.select([source], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                return None
            data = os.read(source, 65536)
            assert data, f"a process of the run ended by itself: {self.tail()}"
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)

    def end(self) -> None:
        """Let it end; kill it if it does not."""
        with contextlib.suppress(OSError):
            self._orders.close()
        try:
            self.ended()
        finally:
            self._answers.close()


LEAST_BACK_SECONDS = 30


def back_seconds(scale: float) -> int:
    """Return how long a machine may stay away: two seconds of ours, or so.

    A guest asks as a machine that chance chooses, on a machine that is busy.
    """
    return max(LEAST_BACK_SECONDS, int(2 * scale))


AT_ONCE = 8
"""The programs that run at once: enough that acts of every phase meet, on two processors."""


class Service(Program):
    """One service process after another, over one folder.

    Args:
        folder: Of its own.
        scale: Of its clock.
        program: What carries maintenance out.
        settings: Those of its store, and further ones.
        check: What is asked what became of a run that was lost; empty for nothing.
        variables: Further ones of its environment.
    """

    def __init__(
        self,
        folder: Path,
        scale: float,
        program: list[str],
        settings: str,
        check: Sequence[str],
        variables: Mapping[str, str],
    ) -> None:
        folder.mkdir(exist_ok=True)
        given = {"STATE_DIRECTORY": str(folder), **variables}
        super().__init__(folder / "service.log", given)
        self.fresh = "PYTHONPATH" in given  # which comes too late for one that is forked
        """Whether it is a process of its own from the first import on, not forked."""
        self.folder = folder
        self.socket = folder / "operator.sock"
        self.port = free_port()
        self._config = folder / "forewarn.toml"
        self._config.write_text(settings + _settings(self.port, scale, program, check))

    def start(self) -> None:
        """Begin to start; `wait_until_ready` returns when it serves."""
        command = ["-m", "forewarn", "serve", "--config", str(self._config)]
        self.begin(command, () if self.fresh else None, env=environment(**self.environment))

    def wait_until_ready(self) -> None:
        """Return when its log says that it serves.

        That its sockets take connections would say less: a program that the killed one was just
        about to run holds that one's sockets, as it holds its lock, until it runs.

        Raises:
            AssertionError: It does not serve in time; the log says why.
        """
        self.wait_for(b'"event": "ready"', f'"pid": {self.pid},'.encode())

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Ask the operator plane, and return what it answers with 200 or 201."""
        status, text = self.answer(method, path, body)
        assert status in {200, 201}, f"{method} {path}: {status} {text[:500]!r}"
        return json.loads(text)

    def answer(self, method: str, path: str, body: Any = None) -> tuple[int, str]:
        """Ask the operator plane, and return the status and the text of its answer."""
        answer = Client(self.socket).ask(method, path, body)
        return answer.status, answer.body.decode()

    def document(self, machine: str) -> Any:
        """Return what a machine reads at the guest endpoint."""
        told = web.ask(self.port, _endpoint(machine))
        assert told.status == 200, told
        return json.loads(told.body)

    def approve(self, machine: str, *events: str) -> int:
        """Approve events as a guest, and return the status."""
        body = json.dumps({"StartRequests": [{"EventId": event} for event in events]})
        return web.ask(self.port, _endpoint(machine), "POST", body).status


def _endpoint(machine: str) -> str:
    return f"/vm/{machine}/metadata/scheduledevents?api-version=2020-07-01"


def let_pass(seconds: float) -> None:
    """Let real time pass: what a kill comes in the midst of is real."""
    select.select([], [], [], seconds)


def _settings(port: int, scale: float, program: list[str], check: Sequence[str]) -> str:
    """Return the settings; the guest plane's times are scaled too, so they are made as long.

    Guests read again and again without a pause here, so no rate limits them.
    """
    times = ("head", "body", "idle", "write", "approval", "linger")
    limits = "".join(f"{name}_seconds = {60 * scale}\n" for name in times)
    return (
        f"[guest]\n{limits}sweep_seconds = {scale}\n"
        f'[[guest.listener]]\naddress = "127.0.0.1"\nport = {port}\n'
        f"[rules]\nrate_per_second = 0\nback_seconds = {back_seconds(scale)}\n"
        f'[connector]\nkind = "command"\n'
        f"[connector.command]\nprogram = {json.dumps(program)}\nat_once = {AT_ONCE}\n"
        f"check_command = {json.dumps([*check])}\n"
        f"[clock]\nscale = {scale}\n"
        '[log]\nformat = "json"\n'
    )
