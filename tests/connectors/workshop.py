"""Little programs and tasks, and connectors that run them: real processes, awaited by pipes."""

import asyncio
import os
from collections.abc import Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec

import patience
from forewarn.connectors.command import KEPT, CommandConnector, CommandConnectorSettings, TaskRuns
from forewarn.connectors.libvirt.connector import LibvirtConnector
from forewarn.connectors.port import Task
from forewarn.connectors.settings import LibvirtHost, LibvirtSettings
from forewarn.vocabulary import EventSource, EventType, TargetKind

STARTED = datetime(2026, 3, 2, 12, 0, 0, 250_000, tzinfo=UTC)

SLOW = "echo $$ > began; echo began >> log; cat go; echo done >> log; echo fine >&2"
"""A program that says that it began, and goes on when it is told."""

T = TypeVar("T")


def play(story: Coroutine[Any, Any, T]) -> T:
    """Run a story to its end."""

    async def run() -> T:
        return await asyncio.wait_for(story, patience.SECONDS)

    return asyncio.run(run())


def task(*machines: str, operation: str = "1.1", attempt: int = 1, **more: Any) -> Task:
    names = machines or ("web-0",)
    usual = Task(
        operation=operation,
        attempt=attempt,
        event_type=EventType.REBOOT,
        source=EventSource.USER,
        machines=names,
        hosts=tuple("h0" for _ in names),
        vm_ids=tuple(f"id-of-{name}" for name in names),
        target=TargetKind.MACHINES,
        live_migration=False,
        description="",
        duration_seconds=-1,
        started_at=STARTED,
    )
    return msgspec.structs.replace(usual, **more)


class Workshop:
    """A folder for programs, what they leave, and the connector's state."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        TaskRuns(self.state).sweep(())  # as an earlier service left it

    def program(self, body: str, name: str = "program") -> str:
        """Write a shell program; its working folder is this one."""
        place = self.folder / name
        place.write_text(f"#!/bin/sh\ncd {self.folder} || exit 99\n{body}\n", encoding="utf-8")
        place.chmod(0o755)
        return str(place)

    def pipe(self, name: str) -> Path:
        place = self.folder / name
        os.mkfifo(place)
        return place

    def connector(self, body: str, **settings: Any) -> CommandConnector:
        environment = {**os.environ, **settings.pop("environment", {})}
        shape = CommandConnectorSettings(program=(self.program(body),), **settings)
        return CommandConnector(shape, self.state, environment)

    def libvirt(self, body: str, **settings: Any) -> LibvirtConnector:
        """Return a connector whose Python is a shell program: it gets `-I FILE VERB`."""
        hosts = tuple(LibvirtHost(name=f"h{n}", uri=f"test:///{n}") for n in (1, 2))
        terms = {"python": self.program(body, "python"), "host": hosts, **settings}
        return LibvirtConnector(LibvirtSettings(**terms), self.state, os.environ)

    def lines(self, name: str) -> list[str]:
        place = self.folder / name
        return place.read_text(encoding="utf-8").splitlines() if place.exists() else []

    def runs(self) -> list[Path]:
        return [place for place in self.state.iterdir() if place.name != KEPT]

    def run_folder(self, operation: str = "1.1", run: str = "1.0.web-0") -> Path:
        return self.state / f"{operation}@20260302T120000.250000Z" / run

    def runner(self, operation: str = "1.1", run: str = "1.0.web-0") -> int:
        """Return the process that a run that has begun is watched by."""
        return int((self.run_folder(operation, run) / "begun").read_text(encoding="ascii"))


async def told(pipe: Path) -> str:
    """Return what somebody writes into a pipe, once everybody has closed it."""
    return await asyncio.to_thread(pipe.read_text, encoding="utf-8")


async def tell(pipe: Path) -> None:
    """Let whoever reads from a pipe go on."""
    await asyncio.to_thread(pipe.write_text, "go\n", encoding="utf-8")
