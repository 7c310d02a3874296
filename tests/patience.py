"""How long tests wait for what another process, thread or task does.

A wait ends as soon as it holds. `SECONDS` only keeps a broken test from hanging: it is generous,
the same for all, and never part of what a test asserts. Speed is a benchmark's business, and notice
passes by a stepped clock. `tests/house` keeps numbers of seconds out of all other tests but labs.
"""

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

T = TypeVar("T")

SECONDS: Final = 120.0 * float(os.environ.get("PATIENCE", "1"))
"""For a machine that does much else. Pytest ends a test after longer: see pyproject.toml."""

TURNS: Final = 100
"""Turns of a loop before a wait pauses: enough for what its own tasks do without a thread."""

PAUSE_SECONDS: Final = 0.002
"""A wait that never pauses takes the processor from those that it waits for."""


def until(
    holds: Callable[[], T | None],
    why: Callable[[], object] = lambda: "",
    *,
    seconds: float = SECONDS,
    every: float = 0.02,
) -> T:
    """Return what is asked for once it is true; say `why` it should be where it never is.

    What takes seconds is asked for less often: a question costs its own service a few milliseconds.
    """
    began = time.monotonic()
    while not (found := holds()):
        waited = time.monotonic() - began
        assert waited < seconds, why()
        threading.Event().wait(max(every, min(0.1, waited / 20)))
    return found


async def reached(
    holds: Callable[[], T | None],
    why: Callable[[], object] = lambda: "",
    *,
    seconds: float = SECONDS,
) -> T:
    """Let the loop go on until what is asked for is true, and return it."""
    deadline = time.monotonic() + seconds
    turns = 0
    while not (found := holds()):
        assert time.monotonic() < deadline, why()
        await asyncio.sleep(0 if turns < TURNS else PAUSE_SECONDS)
        turns += 1
    return found


async def met(attempt: Callable[[], Awaitable[None]]) -> None:
    """Let the loop go on until what is asserted holds."""
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            return await attempt()
        except AssertionError:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(PAUSE_SECONDS)


async def settled() -> None:
    """Let the loop go on until all of its tasks wait, whether for an event, a clock or a socket.

    For a loop that does all the work: nobody knows when a thread or a program will be through.
    """
    await asyncio.sleep(0)
    ready = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]
    await reached(lambda: not ready, lambda: ready)


@contextlib.contextmanager
def meanwhile(*acts: Callable[[], object], every: float = PAUSE_SECONDS) -> Iterator[list[str]]:
    """Do things again and again, each in a thread of its own; yield what failed of them so far."""
    over = threading.Event()
    faults: list[str] = []

    def go_on(act: Callable[[], object]) -> None:
        while not over.wait(every):
            try:
                act()
            except Exception as error:  # noqa: BLE001 - whatever it is, the test tells it
                faults.append(f"{act}: {error!r}")

    with ThreadPoolExecutor(len(acts)) as threads:
        for act in acts:
            threads.submit(go_on, act)
        try:
            yield faults
        finally:
            over.set()


def eventually(question: Callable[[], Any], wanted: Any) -> None:
    """Ask until the answer is as wanted."""
    until(lambda: question() == wanted, question)
