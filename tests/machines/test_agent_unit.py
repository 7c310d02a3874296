"""packaging/forewarn-agent.service under a real systemd, with a real journald: agent.txt."""

import pytest

from machines.site import Site
from machines.story import MachineStory, text_of
from stories import Rows, stories_beside

RULES = text_of("agent.toml")

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def story(site: Site) -> MachineStory:
    return MachineStory(site.machine, site)


@pytest.mark.parametrize("rows", stories_beside(__file__, "agent.txt"))
def test_the_unit_of_the_agent_serves_as_it_says(story: MachineStory, rows: Rows) -> None:
    assert story.play("agent.txt", rows)
