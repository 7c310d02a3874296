"""The page's templates, and its thread: it gives way to the guests' while it renders."""

import asyncio
import sys
from collections.abc import Iterator

import pytest

from forewarn.server.page import rendering
from forewarn.server.page.rendering import Renderer


@pytest.fixture
def renderer() -> Iterator[Renderer]:
    made = Renderer()
    yield made
    made.close()


def test_other_threads_wait_for_the_interpreter_briefly_while_a_page_is_made(
    renderer: Renderer,
) -> None:
    usual = sys.getswitchinterval()
    meanwhile = asyncio.run(renderer.on_thread(sys.getswitchinterval))
    assert meanwhile == pytest.approx(rendering.SWITCH_SECONDS)
    assert sys.getswitchinterval() == usual


def test_they_wait_as_usual_after_a_page_that_could_not_be_made(renderer: Renderer) -> None:
    usual = sys.getswitchinterval()
    with pytest.raises(ZeroDivisionError):
        asyncio.run(renderer.on_thread(lambda: 1 / 0))
    assert sys.getswitchinterval() == usual


def test_every_template_compiles() -> None:
    templates = rendering.environment()
    assert [name for name in templates.list_templates() if not templates.get_template(name)] == []
