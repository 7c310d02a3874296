"""`forewarn emulator`: Scheduled Events for the tests of handlers in any language."""

import contextlib
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, cast

from forewarn.cli import fleet_file, output
from forewarn.cli.exits import OF_CODE, ExitStatus, Failed, handled, server_is_installed
from forewarn.cli.options import argument, option

if TYPE_CHECKING:
    from forewarn.testing import Emulator

SCENARIO_SCALE: Final = 60.0
"""How fast the clock runs for a scenario by default: fifteen minutes last fifteen seconds."""

EXPECTED_SECONDS: Final = 60.0
"""How long an expectation is waited for, in real time: some test runners take long to start."""

KILL_SECONDS: Final = 5.0
"""How long the program may take to end once it was told to."""


def emulator(
    command: Annotated[
        list[str] | None,
        argument("[-- CMD ...]", "Run this program, and end with its status."),
    ] = None,
    *,
    fleet: Annotated[
        Path | None, option("--fleet", "FILE", "The machines. Default: one, called vm-0.")
    ] = None,
    scenario: Annotated[
        Path | None, option("--scenario", "FILE", "Play this scenario; it brings its own fleet.")
    ] = None,
    faults: Annotated[
        str, option("--faults", "NAME", "A playbook of faults, such as azure-bad-day.")
    ] = "",
    port: Annotated[
        int, option("--port", "N", "The guests' port. Default: any free one.", min=0, max=65535)
    ] = 0,
    scale: Annotated[
        float | None,
        option(
            "--scale",
            "N",
            "Let the clock run N times as fast as real time. Default: it stands still until a "
            "test moves it; with --scenario, 60.",
        ),
    ] = None,
) -> None:
    """Emulate Scheduled Events for tests.

    It prints the addresses for guests and operators, and serves until Ctrl-C, or until CMD ends.
    """
    with server_is_installed("forewarn emulator"):
        import structlog

        from forewarn.server import logs
        from forewarn.testing import Emulator
        from forewarn.testing import operators as _  # noqa: F401 - an extra that is missing shows
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    for name, level in logs.LIBRARIES.items():
        logging.getLogger(name).setLevel(level)
    if scale is None and scenario is not None:
        scale = SCENARIO_SCALE
    over = threading.Event()
    with (
        _errors_told(port),
        Emulator(port=port, scale=scale) as started,
        handled(lambda *_: over.set(), "SIGINT", "SIGTERM"),
    ):
        if fleet is not None:
            definition = fleet_file.read(str(fleet)).tree
            started.fleet(cast("dict[str, object]", definition))
        elif scenario is None:
            started.machine("vm-0")
        if faults:
            started.faults(faults)
        run = _Run(started, over)
        status = run.until_over(command or [], scenario)
    if status:
        raise SystemExit(status)


@contextlib.contextmanager
def _errors_told(port: int) -> Iterator[None]:
    """End the command with what went wrong within, in a line."""
    from forewarn.server import sockets
    from forewarn.testing import Refused, ScenarioBroken, ScriptError

    try:
        yield
    except ScenarioBroken as error:
        message = f"the scenario does not hold: {error}"
        raise Failed(ExitStatus.SCENARIO_BROKEN, message) from error
    except Refused as refusal:
        raise Failed(OF_CODE[refusal.code], refusal.message) from refusal
    except OSError as error:
        if error.filename is not None:
            message = f"cannot read {error.filename}: {error.strerror}"
            raise Failed(ExitStatus.USAGE, message) from error
        why = sockets.obstacle(error, "127.0.0.1", port)
        message = f"cannot listen on 127.0.0.1:{port}: {why}"
        raise Failed(ExitStatus.SOCKET_UNUSABLE, message) from error
    except (ScriptError, ValueError) as error:
        raise Failed(ExitStatus.USAGE, str(error)) from error


class _Run:
    """An emulator that serves, a scenario that is played, and a program that runs meanwhile."""

    def __init__(self, started: "Emulator", over: threading.Event) -> None:
        self._started = started
        self._over = over
        self._broken: Exception | None = None

    def until_over(self, command: list[str], scenario: Path | None) -> int:
        """Serve until Ctrl-C, or until the program ends; return its status, 0 without one."""
        operators = self._started.open_operators()
        output.say(f"guests     {self._started.endpoint}")
        output.say(f"operators  {operators}")
        sys.stdout.flush()
        process = None
        if command:
            variables = {**self._started.environment, "FOREWARN_OPERATOR": operators}
            process = _started(command, {**os.environ, **variables})
            threading.Thread(target=self._wait_for, args=(process,), daemon=True).start()
        if scenario is not None:
            threading.Thread(target=self._play, args=(scenario,), daemon=True).start()
        self._over.wait()
        status = 0 if process is None else _end(process)
        if self._broken is not None:
            raise self._broken
        return status

    def _wait_for(self, process: "subprocess.Popen[bytes]") -> None:
        process.wait()
        self._over.set()

    def _play(self, scenario: Path) -> None:
        try:
            self._started.play(scenario, EXPECTED_SECONDS)
        except Exception as error:  # noqa: BLE001 - the command ends with it
            if not self._over.is_set():
                self._broken = error
                self._over.set()


def _started(command: list[str], environment: dict[str, str]) -> "subprocess.Popen[bytes]":
    try:
        return subprocess.Popen(command, env=environment)  # noqa: S603 - what the user asks for
    except OSError as error:
        message = f"cannot run {command[0]}: {error.strerror}"
        raise Failed(ExitStatus.USAGE, message) from error


def _end(process: "subprocess.Popen[bytes]") -> int:
    """End the program if it still runs; return its status as shells do."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(KILL_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    status = process.returncode
    return status if status >= 0 else 128 - status
