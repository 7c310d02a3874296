"""The route that Prometheus scrapes."""

import asyncio
from typing import Final

from litestar import Response, get

from forewarn.server.operator import metrics, steering_routes
from forewarn.server.operator.desk import AtDesk
from forewarn.store.port import StoreError

STORE_SECONDS: Final = 2.0
"""How long a scrape waits for the store: scrapers wait ten for all of it."""


@get("/metrics", tags=["service"], include_in_schema=False)
async def scrape(desk: AtDesk) -> Response[bytes]:
    """Tell every figure of the service, as text for Prometheus."""
    now = desk.now()
    measured = desk.measured
    try:
        async with asyncio.timeout(STORE_SECONDS):
            needs = await steering_routes.needs(desk, now)
    except (StoreError, TimeoutError):
        needs = None
    told = metrics.Scrape(
        now=now,
        figures=measured.figures(),
        machines=len(desk.roster.machines),
        scopes=tuple(desk.roster.scopes.values()),
        operations=tuple(desk.roster.operations.values()),
        policy=measured.policy,
        course=measured.course,
        writer=measured.writer,
        acts=measured.acts(),
        reasons=await desk.ready(),
        doubt=desk.time.doubt(),
        needs=needs,
    )
    # As a header: the framework would add a second charset to a media type.
    return Response(await metrics.render(told), headers={"content-type": metrics.CONTENT_TYPE})
