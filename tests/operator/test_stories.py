"""The stories of this folder, each told by a service of its own."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from forewarn.clock import ManualClock
from forewarn.server.settings import MaintenanceSettings, UnitCheck
from forewarn.store.sqlite import InMemoryStore
from server.exchange import Exchanges
from server.running import Cli, Running, settings_in
from stories import stories_beside

FILES = sorted(Path(__file__).with_name("stories").glob("*.txt"))
STORIES = [
    pytest.param(path.name, *each.values, id=f"{path.stem} {each.id}")
    for path in FILES
    for each in stories_beside(str(path), path.name)
]


@pytest.fixture
def service(tmp_path: Path, clock: ManualClock) -> Iterator[Running]:
    """A service on TCP too, with a check that passes once there is a file."""
    check = UnitCheck(name="file", program=("test", "-e", str(tmp_path / "good")))
    wanted = msgspec.structs.replace(
        settings_in(tmp_path, listen="127.0.0.1:0"), maintenance=MaintenanceSettings(check=(check,))
    )
    with Running(wanted, InMemoryStore(), clock) as running:
        yield running


@pytest.mark.parametrize(("name", "rows"), STORIES)
def test_the_story_holds(
    service: Running, clock: ManualClock, cli: Cli, name: str, rows: list[tuple[int, str]]
) -> None:
    assert Exchanges(service, clock, cli).play(name, rows)
