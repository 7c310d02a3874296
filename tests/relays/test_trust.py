"""What a token is good for: the machines of its own host, and no longer than it is valid."""

import json
import ssl
import time
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

from forewarn.server import relay_feed
from relays import network
from relays.guests import LOST
from relays.process import until
from relays.production import FIRST_PORT, Production


def ask(
    site: Production, token: Path | None, method: str, path: str, body: Any = None
) -> tuple[int, dict[str, Any]]:
    """Ask the relays' plane as somebody who has stolen a token; return status and document."""
    context = ssl.create_default_context(cafile=str(site.certificate))
    connection = HTTPSConnection(network.SERVICE, FIRST_PORT, timeout=30, context=context)
    headers = {"Content-Type": "application/json"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token.read_text().strip()}"
    try:
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, headers)
        answer = connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text else {}
    finally:
        connection.close()


def test_a_token_reads_and_approves_for_the_machines_of_its_host_alone(site: Production) -> None:
    site.apply({"web": "h1", "db": "h2"})
    site.relay("h2")
    first = site.token("h1")
    status, news = ask(site, first, "GET", relay_feed.HOST_PATH)
    assert status == 200
    assert [machine["name"] for machine in news["machines"]] == ["web"]
    assert '"db"' not in json.dumps(news)  # quoted: a random id may have these letters
    (event,) = site.request("db")["events"]
    body = {"machine": "db", "address": site.site.guests["db"].address, "event_ids": [event["id"]]}
    assert ask(site, first, "POST", relay_feed.APPROVALS_PATH, body)[0] == 403
    own = {**body, "machine": "web"}
    status, refusal = ask(site, first, "POST", relay_feed.APPROVALS_PATH, own)
    assert (status, refusal.get("event_id")) == (400, event["id"])  # it is of another scope
    wrong = site.folder / "wrong.token"
    wrong.write_text("w" * 43)
    for other in (None, wrong):
        assert ask(site, other, "GET", relay_feed.HOST_PATH)[0] == 401
    (live,) = site.ask("GET", "/v1/events")["events"]
    assert (live["id"], live["status"]) == (event["id"], "Scheduled")


def test_a_relay_with_another_hosts_token_answers_no_machine_of_its_own(site: Production) -> None:
    site.apply({"own": "h3", "foreign": "h4"})
    stranger = site.relay("h4", site.token("h3"))
    stranger.wait_until_ready()
    site.request("foreign")
    machine = site.begin_polls("foreign")
    until(lambda: len(machine.polls) > 10)
    assert {poll.status for poll in machine.polls} - {LOST} == {403}


def test_a_token_that_is_revoked_reads_nothing_more_and_its_relay_hears_no_more(
    site: Production,
) -> None:
    site.apply({"read": "h5"})
    token = site.token("h5")
    site.relay("h5", token)
    (machine,) = site.poll("read")
    called = site.replicas["r2"].call("relay", "revoke", "h5")
    assert called.returncode == 0, called.stderr
    until(lambda: ask(site, token, "GET", relay_feed.HOST_PATH)[0] == 401)
    began = time.time()
    site.request("read")
    until(lambda: any(poll.status == LOST for poll in machine.polls[-3:]))
    read = [poll for poll in machine.polls if poll.began > began and poll.status == 200]
    assert [poll for poll in read if poll.document["Events"]] == []


def test_a_token_is_rotated_without_a_gap(site: Production) -> None:
    site.apply({"rotated": "h6"})
    old = site.token("h6")
    new = site.token("h6")
    assert ask(site, old, "GET", relay_feed.HOST_PATH)[0] == 200
    assert ask(site, new, "GET", relay_feed.HOST_PATH)[0] == 200
    until(lambda: ask(site, old, "GET", relay_feed.HOST_PATH)[0] == 401)
