"""A connector that does what a test tells it."""

import asyncio
from collections.abc import Collection
from typing import Any

from forewarn.connectors.port import Found, Outcome, Task
from forewarn.maintenance.model import HostFacts


class Scripted:
    """A connector that does what the test tells it, and writes down what it was asked."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []
        self.asked: list[tuple[str, str, int]] = []
        self.outcomes: dict[str, asyncio.Future[Any]] = {}
        self.earlier: Outcome | Found = Found.NOT_DONE
        self.swept: list[Collection[str]] = []
        self.at_once = 0
        """How many are being performed."""
        self.may_forget = asyncio.Event()
        self.may_forget.set()

    async def perform(self, act: Task) -> Any:
        self.tasks.append(act)
        self.asked.append(("perform", act.operation, act.attempt))
        self.outcomes[act.operation] = asyncio.get_running_loop().create_future()
        self.at_once += 1
        try:
            return await self.outcomes[act.operation]
        finally:
            self.at_once -= 1

    async def check(self, act: Task) -> Outcome | Found:
        self.asked.append(("check", act.operation, act.attempt))
        return self.earlier

    async def forget(self, act: Task) -> None:
        self.asked.append(("forget", act.operation, act.attempt))
        await self.may_forget.wait()

    async def sweep(self, live: Collection[str]) -> None:
        self.swept.append(live)

    async def survey(self) -> dict[str, HostFacts]:
        return {}

    async def reboot_host(self, host: str) -> Outcome:
        raise NotImplementedError
