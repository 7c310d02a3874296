"""Windows that ask for the same get one answer."""

import asyncio

import pytest

from forewarn.server.page.live import MAX_KEPT, SharedAnswers


class Counted:
    def __init__(self) -> None:
        self.times = 0
        self.fails = False

    async def __call__(self) -> int:
        self.times += 1
        await asyncio.sleep(0)
        if self.fails:
            raise LookupError
        return self.times


def test_windows_that_ask_together_cost_one_answer() -> None:
    async def ask() -> None:
        shared, make = SharedAnswers(), Counted()
        assert await asyncio.gather(*(shared.get("list", 1, make) for _ in range(20))) == [1] * 20
        assert await shared.get("list", 1, make) == 1

    asyncio.run(ask())


def test_a_change_and_another_question_make_another_answer() -> None:
    async def ask() -> None:
        shared, make = SharedAnswers(), Counted()
        asked = (("list", 1), ("list", 2), ("other", 2), ("list", 1))
        assert [await shared.get(key, state, make) for key, state in asked] == [1, 2, 3, 4]

    asyncio.run(ask())


def test_what_failed_is_tried_again() -> None:
    async def ask() -> None:
        shared, make = SharedAnswers(), Counted()
        make.fails = True
        with pytest.raises(LookupError):
            await shared.get("list", 1, make)
        make.fails = False
        assert await shared.get("list", 1, make) == 2

    asyncio.run(ask())


def test_a_window_that_is_closed_takes_nobodys_answer() -> None:
    async def ask() -> None:
        shared, make = SharedAnswers(), Counted()
        closed = asyncio.ensure_future(shared.get("list", 1, make))
        await asyncio.sleep(0)
        closed.cancel()
        assert await shared.get("list", 1, make) == 1

    asyncio.run(ask())


def test_only_so_many_are_kept() -> None:
    async def ask() -> None:
        shared, make = SharedAnswers(), Counted()
        for number in range(MAX_KEPT + 5):
            await shared.get(number, 1, make)
        assert len(shared._made) == MAX_KEPT

    asyncio.run(ask())
