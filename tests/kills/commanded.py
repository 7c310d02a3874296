"""The service with the `command` connector, as long as no setting asks for it."""

import os
from pathlib import Path
from typing import Any

from forewarn.connectors.command import Command, CommandSettings
from forewarn.control.executor import Executor
from forewarn.server import run, service

AT_ONCE = 8


def install(program: tuple[str, ...]) -> None:
    """Let `run.serve` build services whose connector runs this program."""

    class Commanded(service.Service):
        def __init__(self, **parts: Any) -> None:
            super().__init__(**parts)
            folder = Path(parts["settings"].store.path).parent / "commands"
            settings = CommandSettings(program=program, at_once=AT_ONCE)
            connector = Command(settings, folder, os.environ)
            self._executor = Executor(self._plane, connector, parts["clock"], "command")

    run.Service = Commanded  # type: ignore[misc]  # the seam: run.py builds what it finds here
