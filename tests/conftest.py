"""What holds for every test: the slow ones come first, the gate skips none that it must run,
signals mean what they do, and a traceback is plain text.

With FOREWARN_GATE set, a skipped test of those that tests/gate.txt names is a failure. A shell's
background job and nohup hand down ignored signals, which processes that tests start would inherit
and ignore as well. And workers and the processes that tests start write bytecode, or each would
compile the package first.
"""

import asyncio
import functools
import gc
import inspect
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

import patience
import proofs
import seeds

GATE = "FOREWARN_GATE"
SLOWEST_FIRST = (
    "page/",
    "end_to_end/test_agent",
    "end_to_end/",
    "simulation/",
    "recipes/",
    "store/",
    "testing/",
    "operator/",
    "cli/",
)
"""What takes longest: how the paths in this folder begin. Workers take a file each: were these
last, most workers would wait for them."""

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

for number in ("SIGINT", "SIGHUP"):
    known = getattr(signal, number, None)
    if known is not None and signal.getsignal(known) is signal.SIG_IGN:
        usual = signal.default_int_handler if number == "SIGINT" else signal.SIG_DFL
        signal.signal(known, usual)

# On a busy machine examples are made slowly, and that says nothing about a test.
settings.register_profile(
    "house",
    deadline=None,
    print_blob=True,
    derandomize=bool(seeds.FIXED),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("house")

# Here, for tests of other folders import its modules too, and are collected first.
pytest.register_assert_rewrite("store")


# What is collected stays to the end: eight thousand tests, and what they import. Looking among them
# for garbage took two fifths of the collection, and more in each test that makes many objects.
gc.disable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files of which no test would run: each worker would import all of them."""
    wanted = config.option.markexpr
    if not collection_path.match("test_*.py") or wanted not in {"soak", "not soak"}:
        return None
    text = collection_path.read_text("utf-8")
    if wanted == "soak":
        return "mark.soak" not in text or None
    return "\npytestmark = pytest.mark.soak\n" in text or None


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


class FilesAndBrowsers(LoadFileScheduling):
    """Hands a worker one file at a time, and one worker all files that open a browser.

    Two browsers at once take both cores from the services that they ask.
    """

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return "browser" if _opens_a_browser(file) else file


@functools.cache
def _opens_a_browser(file: str) -> bool:
    return "playwright" in (proofs.ROOT / file).read_text("utf-8")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FilesAndBrowsers | None:
    return FilesAndBrowsers(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    _log_plainly()


def _log_plainly() -> None:
    """Log as structlog and logging do by default, but for exceptions.

    Commands and services that ran in this process silence or open the log of later tests. Rich
    would draw each exception with its local variables: seconds of processor time.
    """
    logging.root.setLevel(logging.WARNING)
    structlog.reset_defaults()
    *others, _ = structlog.get_config()["processors"]
    renderer = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*others, renderer])


_log_plainly()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    path = item.nodeid.removeprefix("tests/")
    places = (place for place, name in enumerate(SLOWEST_FIRST) if path.startswith(name))
    return next(places, len(SLOWEST_FIRST))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Play a test that is an `async def`: by the fixture that plays stories, if it has one."""
    story = pyfuncitem.obj
    if not inspect.iscoroutinefunction(story):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(story).parameters}
    stages = [one for one in pyfuncitem.funcargs.values() if hasattr(one, "play")]
    # Only the client's own threads talk to a loop; asyncio's checks of that cost a third of a test.
    debug = pyfuncitem.path.parent.name == "client"
    play = stages[0].play if stages else lambda told: asyncio.run(_in_time(told), debug=debug)
    play(lambda: story(**given))
    return True


async def _in_time(story: Callable[[], Awaitable[None]]) -> None:
    async with asyncio.timeout(2 * patience.SECONDS):
        await story()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and os.environ.get(GATE) and item.nodeid.startswith(proofs.MUST_RUN):
        report.outcome = "failed"
        report.longrepr = f"tests/gate.txt has {item.nodeid}, which was skipped: {report.longrepr}"
    return report
