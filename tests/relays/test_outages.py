"""A host whose way to the service is dark: its machines read on, and only they get more notice."""

import os
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Final

from kills.processes import let_pass
from relays import guests
from relays.production import Production, until

CUT_SECONDS: Final = float(os.environ.get("RELAY_CUT_SECONDS", "") or 20)
STALE_AFTER: Final = 5
"""Seconds of silence after which an answer says its age."""

SLACK_SECONDS: Final = 60
"""How much later than by the cut alone a notice may move: the waits before and after it."""


def not_before(site: Production, machine: str) -> datetime:
    """Return the NotBefore that a machine reads."""
    return parsedate_to_datetime(site.event(machine)["NotBefore"])


def test_a_cut_moves_the_notice_of_its_own_host_alone_and_fails_no_poll(site: Production) -> None:
    site.apply({"web": "h1", "db": "h2"})
    for host in ("h1", "h2"):
        site.relay(host)
    site.poll()
    mine, others = site.request("web"), site.request("db")
    before, other = not_before(site, "web"), not_before(site, "db")

    site.site.darken("h1")
    let_pass(CUT_SECONDS)
    during = site.machines["web"].last()
    assert during is not None
    assert CUT_SECONDS - STALE_AFTER <= during.age <= CUT_SECONDS + SLACK_SECONDS
    assert [hold["name"] for hold in site.ask("GET", "/v1/holds")["holds"]] == ["h1"]
    site.ask("POST", "/v1/approvals", {"references": [mine["id"]]})
    let_pass(1.0)
    assert site.event("web")["EventStatus"] == "Scheduled"
    site.site.clear("h1")

    until(lambda: not_before(site, "web") > before, site.relays["h1"].said)
    moved = (not_before(site, "web") - before).total_seconds()
    assert CUT_SECONDS <= moved <= CUT_SECONDS + SLACK_SECONDS
    assert not_before(site, "db") == other
    assert site.ask("GET", "/v1/holds")["holds"] == []
    site.event("web", "Started")
    assert others["status"] == "Scheduled"
    assert site.event("db")["EventStatus"] == "Scheduled"
    until(lambda: not site.machines["web"].events())
    after = site.machines["web"].last()
    assert after is not None
    assert after.age == 0
    for name, machine in site.machines.items():
        assert machine.failed() == [], name
    assert site.judge() == []


def test_a_machine_cannot_approve_while_its_host_is_cut_off_and_can_again_after(
    site: Production,
) -> None:
    site.apply({"web": "h1"})
    site.relay("h1")
    site.poll()
    site.request("web")
    event = site.event("web")["EventId"]
    site.site.darken("h1")
    assert site.machines["web"].approve(event) == 503
    site.site.clear("h1")
    until(lambda: site.machines["web"].approve(event) == 200)
    site.event("web", "Started")
    until(lambda: not site.machines["web"].events())
    assert site.machines["web"].failed() == []
    assert site.judge() == []


def test_a_relay_that_starts_while_the_service_is_away_serves_what_it_had(site: Production) -> None:
    site.apply({"web": "h1"})
    relay = site.relay("h1")
    site.poll()
    site.request("web")
    known = site.event("web")
    site.site.darken("h1")
    relay.end()
    relay.start()
    relay.wait_until_ready()
    polls = site.machines["web"]
    began = len(polls.polls)
    until(lambda: any(poll.status == 200 and poll.age for poll in polls.polls[began:]))
    assert polls.events() == [known]
    site.site.clear("h1")
    assert site.judge() == []


def test_a_new_relay_answers_nobody_before_it_knows_its_machines(site: Production) -> None:
    site.apply({"web": "h1"})
    token = site.token("h1")
    site.site.darken("h1")
    relay = site.relay("h1", token, waits=False)
    let_pass(3.0)
    machine = site.machines["web"] = guests.Machine(site.site.guests["web"])
    try:
        let_pass(1.0)
        assert machine.polls
        assert {poll.status for poll in machine.polls} == {0}
        site.site.clear("h1")
        relay.wait_until_ready()
        until(machine.last)
        assert {poll.status for poll in machine.polls} == {0, 200}
    finally:
        machine.close()
