"""A form that is sent twice is carried out once."""

import asyncio

import pytest

from forewarn.control.accounts import OperatorRequest
from forewarn.server.page.sent_forms import MAX_REMEMBERED, SentForms
from forewarn.vocabulary import AccessRole


def caller(by: str = "ann") -> OperatorRequest:
    return OperatorRequest(by=by, role=AccessRole.OPERATOR, address="", action="", request="")


class Counted:
    def __init__(self) -> None:
        self.times = 0

    async def __call__(self) -> str:
        self.times += 1
        await asyncio.sleep(0)
        return f"/maintenance/{self.times}"


def test_a_second_click_leads_where_the_first_one_led() -> None:
    async def click() -> None:
        forms, act, second = SentForms(), Counted(), caller()
        led = await asyncio.gather(
            forms.once(caller(), "k", act),
            forms.once(second, "k", act),
            forms.once(caller(), "k", act),
        )
        assert led == ["/maintenance/1"] * 3
        assert await forms.once(caller(), "k", act) == "/maintenance/1"
        assert act.times == 1
        assert second.recorded  # the audit log has the first one

    asyncio.run(click())


def test_other_keys_other_people_and_no_key_are_other_forms() -> None:
    async def click() -> None:
        forms, act = SentForms(), Counted()
        for by, key in (("ann", "k"), ("ann", "l"), ("bob", "k"), ("ann", ""), ("ann", "")):
            await forms.once(caller(by), key, act)
        assert act.times == 5

    asyncio.run(click())


def test_what_was_refused_may_be_sent_again_with_its_key() -> None:
    async def click() -> None:
        forms, act = SentForms(), Counted()

        async def refuse() -> str:
            raise LookupError

        with pytest.raises(LookupError):
            await forms.once(caller(), "k", refuse)
        assert await forms.once(caller(), "k", act) == "/maintenance/1"

    asyncio.run(click())


def test_a_click_that_is_given_up_is_carried_out_all_the_same() -> None:
    async def click() -> None:
        forms, act = SentForms(), Counted()
        gone = asyncio.ensure_future(forms.once(caller(), "k", act))
        await asyncio.sleep(0)
        gone.cancel()
        assert await forms.once(caller(), "k", act) == "/maintenance/1"
        assert act.times == 1

    asyncio.run(click())


def test_only_so_many_are_remembered() -> None:
    async def click() -> None:
        forms, act = SentForms(), Counted()
        for number in range(MAX_REMEMBERED + 1):
            await forms.once(caller(), str(number), act)
        assert len(forms._answers) == MAX_REMEMBERED

    asyncio.run(click())
