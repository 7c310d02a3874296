"""Each event loop that the guest plane may run on."""

import pytest

from guest import served


@pytest.fixture(params=[served.run_by_asyncio, served.run_by_uvloop], ids=["asyncio", "uvloop"])
def play(request: pytest.FixtureRequest) -> served.Play:
    chosen: served.Play = request.param
    return chosen
