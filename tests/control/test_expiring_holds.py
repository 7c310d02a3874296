"""Holds with an end, as the ticker releases them: in the store, once, and after a restart too."""

import asyncio
from datetime import timedelta

import patience
from builders import MINUTE, NOW, SECOND
from control.conftest import House, done
from forewarn.control.plane import Retention
from forewarn.control.ticker import Ticker
from forewarn.maintenance.model import Hold, HoldKind


def holds(house: House) -> tuple[Hold, ...]:
    with house.store.read() as reading:
        return reading.holds()


def hold(house: House, name: str, span: timedelta) -> None:
    until = house.clock.now() + span
    done(house.plane.hold(HoldKind.SCOPE, name, reason="", by="ann", until=until))


async def tick(house: House, *spans: timedelta) -> list[int]:
    """How many holds there are after each span, while a ticker runs."""
    ticker = Ticker(house.plane, house.clock, Retention())
    house.feed.subscribe(ticker.learn)
    task = asyncio.create_task(ticker.run())
    await patience.settled()
    counts = []
    for span in spans:
        house.clock.advance(span)
        await patience.settled()
        counts.append(len(holds(house)))
    ticker.stop()
    await asyncio.wait_for(task, patience.SECONDS)
    return counts


def test_the_ticker_releases_a_hold_at_its_time(house: House) -> None:
    hold(house, "web", 10 * SECOND)
    hold(house, "batch", MINUTE)
    rests = (9 * SECOND, SECOND, 49 * SECOND, SECOND)
    assert asyncio.run(tick(house, *rests)) == [2, 1, 1, 0]
    assert [one.name for change in house.told for one in change.released] == ["web", "batch"]


def test_a_hold_that_ended_while_the_service_was_away_is_released_when_it_is_back(
    house: House,
) -> None:
    hold(house, "web", MINUTE)
    house.clock.advance(2 * MINUTE)
    house.restart()
    assert [one.until for one in holds(house)] == [NOW + MINUTE]
    assert asyncio.run(tick(house, timedelta(0))) == [0]
    house.restart()
    assert done(house.plane.expire_holds()) == 0


def test_a_ticker_that_rests_learns_of_an_earlier_end(house: House) -> None:
    async def story() -> int:
        ticker = Ticker(house.plane, house.clock, Retention())
        house.feed.subscribe(ticker.learn)
        task = asyncio.create_task(ticker.run())
        await patience.settled()
        hold(house, "web", SECOND)
        await patience.settled()
        house.clock.advance(SECOND)
        await patience.settled()
        left = len(holds(house))
        ticker.stop()
        await asyncio.wait_for(task, patience.SECONDS)
        return left

    assert asyncio.run(story()) == 0
