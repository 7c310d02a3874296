"""A form that is sent twice is carried out once."""

import re
from datetime import UTC, datetime, time
from pathlib import Path
from urllib.parse import urlencode

from forewarn import times
from forewarn.store.sqlite import InMemoryStore
from server.running import Answer, Client, Running, fleet, settings_in


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


def test_the_end_of_a_hold_is_read_as_the_page_shows_times(tmp_path: Path) -> None:
    with Running(settings_in(tmp_path, listen="127.0.0.1:0"), InMemoryStore()) as running:
        client = running.client()
        assert client.ask("PUT", "/v1/fleet", fleet()).status == 200

        def send(until: str) -> int:
            form = urlencode({"reference": "scope web", "until": until}).encode()
            headers = {"Content-Type": "application/x-www-form-urlencoded"}
            return client.ask("POST", "/page/orders/hold", form, headers).status

        assert send("soon") == 400
        assert client.get("/v1/holds")["holds"] == []
        assert send("11:00") == 303
        (hold,) = client.get("/v1/holds")["holds"]
        at, until = datetime.fromisoformat(hold["at"]), datetime.fromisoformat(hold["until"])
        assert until == times.next_time_of_day(time(11), at, UTC)
