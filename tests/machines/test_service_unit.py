"""packaging/forewarn.service and forewarn-relay.service under a real systemd: service.txt."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from machines.machine import Machine
from machines.story import MachineStory, text_of
from stories import Rows, stories_beside

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def story(shared_folder: Path) -> Iterator[MachineStory]:
    files = {
        "/etc/systemd/system/forewarn.service": text_of("forewarn.service"),
        "/etc/forewarn/fleet.toml": text_of("fleet.toml"),
    }
    made = Machine(shared_folder, files=files)
    try:
        made.run("systemctl", "enable", "--now", "forewarn")
        yield MachineStory(made)
    finally:
        made.close()


@pytest.mark.parametrize("rows", stories_beside(__file__, "service.txt"))
def test_the_units_of_service_and_relay_serve_as_they_say(story: MachineStory, rows: Rows) -> None:
    assert story.play("service.txt", rows)
