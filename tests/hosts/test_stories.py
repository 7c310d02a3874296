"""The stories of the text that HOSTS_STORIES names, which `python -m hosts` runs one after another.

Each text has a lab of its own, in namespaces of its own.
"""

import os
from pathlib import Path

import pytest

from hosts.lab import Lab
from hosts.story import HostStory
from stories import Rows, stories_beside

TEXT = os.environ.get("HOSTS_STORIES", "event_types.txt")


@pytest.fixture(scope="module")
def story(lab: Lab) -> HostStory:
    return HostStory(lab)


@pytest.mark.parametrize("rows", stories_beside(__file__, Path(TEXT).name))
def test_guests_live_through_it_as_the_story_says(story: HostStory, rows: Rows) -> None:
    assert story.play(TEXT, rows)
