"""The pytest plugin: a fixture for tests of handlers, and nothing for other runs."""

import os
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import forked
import patience
from forewarn.testing import plugin

ROOT = Path(__file__).parents[2]

HEAVY = ("forewarn.server", "forewarn.control", "forewarn.testing.emulator", "structlog", "msgspec")

UNRELATED = f"""
import sys

def test_nothing_of_the_service_is_loaded():
    assert "forewarn.testing.plugin" in sys.modules
    assert [name for name in {HEAVY!r} if name in sys.modules] == []
"""

HANDLER = """
import forewarn

def test_a_handler_approves(forewarn_emulator):
    machine = forewarn_emulator.machine("web-0")
    event = forewarn_emulator.schedule("Reboot", "web-0")
    assert event in forewarn_emulator.events()
    with forewarn.Client(machine.endpoint) as client:
        client.approve(client.events()[0])
    assert event.status == "Started"
"""


FROZEN = """
import threading
import time

import forewarn
import pytest
from forewarn import clock
from forewarn.testing import NotIdle

def handle(client):
    for change in client.watch():
        if change.appeared:
            client.approve(change.event)

@pytest.fixture
def frozen():
    real = time.monotonic
    of = [module for module in (time, clock) if vars(module).get("monotonic") is real]
    for module in of:  # as freezegun does, wherever a module has the function
        module.monotonic = lambda: 1.0
    yield
    for module in of:
        module.monotonic = real

def test_time_is_frozen(forewarn_emulator, frozen):
    machine = forewarn_emulator.machine("web-0")
    client = forewarn.Client(machine.endpoint, pace=forewarn.Pace(poll_seconds=0.05))
    handler = threading.Thread(target=handle, args=(client,), daemon=True)
    handler.start()
    forewarn_emulator.until_asked("web-0")
    forewarn_emulator.schedule("Reboot", "web-0")
    forewarn_emulator.until_idle()
    client.close()
    handler.join()
    forewarn_emulator.schedule("Reboot", "web-0")
    with pytest.raises(NotIdle):
        forewarn_emulator.until_idle(0.2)
"""


FROZEN_DAY = """
import datetime
import sys

import pytest

class FrozenDatetime(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2026, 3, 1, tzinfo=tz)

@pytest.fixture(autouse=True)
def frozen():
    real = datetime.datetime
    of = [each for each in [*sys.modules.values()] if vars(each).get("datetime") is real]
    for module in of:  # as freezegun does, and before the emulator begins
        module.datetime = FrozenDatetime
    yield
    for module in of:
        module.datetime = real

def test_the_day_is_frozen(forewarn_emulator):
    machine = forewarn_emulator.machine("web-0")
    event = forewarn_emulator.schedule("Reboot", "web-0")
    assert (forewarn_emulator.now.month, event.not_before.month) == (3, 3)
"""


GUIDE = ROOT / "docs" / "guides" / "testing.md"


def run(folder: Path, *options: str) -> str:
    """Run the tests of a folder; return what pytest printed."""
    return forked.completed(
        [sys.executable, "-m", "pytest", "-p", plugin.__name__, "-p", "no:cacheprovider", *options],
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""},
        timeout=patience.SECONDS,
    ).stdout


def test_pytest_finds_the_plugin() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"forewarn": plugin.__name__}


def test_a_run_that_does_not_use_it_loads_nothing_of_the_service(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(UNRELATED, encoding="utf-8")
    assert "1 passed" in run(tmp_path)


STOPPED = """
import forewarn
import pytest

def test_a_handler_outlives_its_endpoint(forewarn_emulator):
    endpoint = forewarn_emulator.machine("web-0").endpoint
    with forewarn.Client(endpoint, pace=forewarn.Pace(backoff_seconds=0.01)) as client:
        client.document()
        forewarn_emulator.stop()
        with pytest.raises(forewarn.Unreachable):
            client.document()
    assert forewarn_emulator.requests
"""


CAPITAL = """
import urllib.request

def test_a_handler_asks(forewarn_emulator):
    url = forewarn_emulator.machine("web-0").endpoint
    url += "/metadata/scheduledevents?api-version=2020-07-01"
    for value in VALUES:
        request = urllib.request.Request(url, headers={"Metadata": value})
        assert urllib.request.urlopen(request).status == 200
"""


def guide(broken: str = "") -> str:
    """Return the guide's own tests, with the handler's decision to approve broken so."""
    _, _, rest = GUIDE.read_text(encoding="utf-8").partition("```python\n")
    text = rest.partition("```")[0]
    assert text.count("if self.drain():") == 1
    return text.replace("if self.drain():", broken or "if self.drain():")


TESTS = {
    "approves": HANDLER,
    "frozen": FROZEN,
    "frozen_day": FROZEN_DAY,
    "stopped": STOPPED,
    "small": CAPITAL.replace("VALUES", '("true", " true")'),
    "capital": CAPITAL.replace("VALUES", '("True", "true", "True", "TRUE")'),
    "guide": guide(),
    "never": guide("if False:").replace("until_idle()", "until_idle(0.5)"),
}


def test_tests_that_use_the_plugin_end_as_they_should(tmp_path: Path) -> None:
    for name, text in TESTS.items():
        (tmp_path / f"test_{name}.py").write_text(text, encoding="utf-8")
    printed = run(tmp_path, "-v")
    found = sorted(re.findall(r"^test_(\w+)\.py::\w+ ([A-Z]+)", printed, re.MULTILINE))
    well = (
        "approves",
        "capital",
        "frozen",
        "frozen_day",
        "guide",
        "guide",
        "never",
        "small",
        "stopped",
    )
    assert found == sorted([("never", "FAILED"), *((name, "PASSED") for name in well)]), printed
    assert "waits for an approval" in printed, "why a handler never approves"
    assert printed.count("UserWarning") == 1, "of a header that Azure may refuse"
    _, warned = printed.split("warnings summary")
    assert "test_capital.py" in warned.split("UserWarning")[0]


LOADED = """
import sys
from forewarn.testing import Emulator
with Emulator() as emulator:
    emulator.machine("web-0")
print(*{name.partition(".")[0] for name in sys.modules})
"""
EXTRA = {"httptools", "prometheus_client", "structlog"}
"""What the extra `testing` brings."""
OURS = {"forewarn", "click", "h11", "msgspec", "rich"}
BESIDE = {
    *("markdown_it", "mdurl", "pygments", "typing_extensions"),  # come with rich
    "greenlet",  # used by structlog where it is, as the tests' browser brings it
    *("sitecustomize", "distutils_precedence"),  # what a Python may load at its start
}


def test_the_extra_has_all_that_an_emulator_loads() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = project["optional-dependencies"]["testing"]
    assert {re.split("[>=]", each)[0].replace("-", "_") for each in named} == EXTRA
    loaded = forked.completed([sys.executable, "-c", LOADED], timeout=patience.SECONDS).stdout
    installed = {name for name, found in metadata.packages_distributions().items() if found}
    used = {name for name in loaded.split() if name in installed and not name.startswith("_")}
    assert EXTRA <= used <= EXTRA | OURS | BESIDE


MISSING = 'import sys; sys.modules["httptools"] = None\n'


def test_what_is_missing_is_said_in_one_line(tmp_path: Path) -> None:
    program = f"{MISSING}from forewarn.testing import Emulator"
    failed = forked.completed([sys.executable, "-c", program], timeout=patience.SECONDS)
    last = failed.stderr.splitlines()[-1]
    assert last.startswith("ImportError")
    assert "httptools" in last
    assert "pip install '.[testing]'" in last
    (tmp_path / "test_it.py").write_text(MISSING + HANDLER, encoding="utf-8")
    printed = run(tmp_path)
    assert last in printed
    assert "1 error" in printed
