"""The page's templates, and its thread."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

import patience
from forewarn.clock import ManualClock
from forewarn.server.page import rendering
from forewarn.server.page.rendering import Renderer
from forewarn.store.sqlite import InMemoryStore
from server.running import NOON, Running, settings_in


@pytest.fixture
def renderer() -> Iterator[Renderer]:
    made = Renderer()
    yield made
    made.close()


def test_every_template_is_compiled(renderer: Renderer) -> None:
    templates = rendering.environment()
    assert templates.cache is not None
    templates.cache.clear()
    real = ManualClock(NOON)

    async def play() -> None:
        compiling = asyncio.create_task(renderer.compile(real))

        def done() -> bool:
            real.advance(timedelta(seconds=rendering.COMPILE_GAP_SECONDS))
            return compiling.done()

        await patience.reached(done)
        await compiling

    asyncio.run(play())
    assert {name for _, name in templates.cache} == set(templates.list_templates())


def test_a_service_compiles_them_before_anybody_asks(tmp_path: Path) -> None:
    templates = rendering.environment()
    assert templates.cache is not None
    templates.cache.clear()
    wanted = settings_in(tmp_path, listen="127.0.0.1:0")
    with Running(wanted, InMemoryStore()) as running:
        assert running.client().ask("GET", "/healthz").status == 200
        patience.until(lambda: templates.cache)
