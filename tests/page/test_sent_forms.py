"""A form that is sent twice is carried out once."""

import asyncio
import re
from pathlib import Path
from urllib.parse import urlencode

import pytest

from forewarn.control.accounts import OperatorRequest
from forewarn.server.page.forms import MAX_REMEMBERED, SentForms
from forewarn.store.sqlite import InMemoryStore
from forewarn.vocabulary import AccessRole
from server.running import Answer, Client, Running, fleet, settings_in


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


def test_a_form_that_was_changed_after_it_was_sent_is_another_one() -> None:
    async def click() -> None:
        forms, act = SentForms(), Counted()
        for name in ("web-0", "web-1", "web-0"):
            await forms.once(caller(), "k", act, [("machines", name)])
        assert act.times == 2

    asyncio.run(click())


def sent(client: Client, key: str, target: str, action: str = "start") -> Answer:
    named = {"action": action, "event_type": "Reboot", "machines": target}
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    return client.ask(
        "POST", "/page/maintenance", urlencode({**named, "key": key}).encode(), headers
    )


def key_of(answer: Answer) -> str:
    (found,) = set(re.findall(r'name="key" value="([^"]+)"', answer.body.decode()))
    return found


def test_a_form_that_was_started_and_then_changed_asks_for_what_it_says(tmp_path: Path) -> None:
    with Running(settings_in(tmp_path, listen="127.0.0.1:0"), InMemoryStore()) as running:
        client = running.client()
        assert client.ask("PUT", "/v1/fleet", fleet()).status == 200
        first = key_of(client.ask("GET", "/maintenance/new"))
        for _ in range(2):
            assert sent(client, first, "web-0").headers["location"] == "/maintenance/1"
        refused = sent(client, first, "web-1")  # by the browser's way back
        assert (refused.status, refused.headers["location"]) == (409, None)
        changed = sent(client, first, "web-1", "change")
        for key in (key_of(refused), key_of(changed)):
            assert key != first
            started = sent(client, key, "batch_0" if key == key_of(refused) else "Bastion")
            assert started.status == 303
        targets = [each["targets"] for each in client.get("/v1/maintenances")["maintenances"]]
        assert targets == [["Bastion"], ["batch_0"], ["web-0"]]


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
