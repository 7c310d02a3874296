"""A host whose way to the service is dark: its machines read on, and only they get more notice."""

import os
import time
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Final

from forewarn.server import relay_feed
from kills.processes import let_pass
from relays.process import until
from relays.production import Production

CUT_SECONDS: Final = float(os.environ.get("RELAY_CUT_SECONDS", "") or 20)
STALE_AFTER: Final = 5
"""Seconds of silence after which an answer says its age."""


def not_before(site: Production, machine: str) -> datetime:
    """Return the NotBefore that a machine reads."""
    return parsedate_to_datetime(site.event(machine)["NotBefore"])


def held(site: Production) -> list[str]:
    """Return the hosts that are held."""
    return [hold["name"] for hold in site.ask("GET", "/v1/holds")["holds"]]


def test_a_cut_moves_the_notice_of_its_own_host_alone_and_fails_no_poll(site: Production) -> None:
    began = time.monotonic()
    site.apply({"web": "h1", "cache": "h1", "db": "h2", "canary": "h2"})
    for host in ("h1", "h2"):
        site.relay(host)
    machines = web, cache, db, canary = site.poll("web", "cache", "db", "canary")
    references = {machine.name: site.request(machine.name)["id"] for machine in machines}
    before = {machine.name: not_before(site, machine.name) for machine in machines}

    site.site.darken("h1")
    let_pass(CUT_SECONDS)
    until(lambda: held(site) == ["h1"])
    ages = [poll.age for poll in web.polls if poll.status == 200]
    assert STALE_AFTER < ages[-1] <= time.monotonic() - began, ages
    assert web.approve(web.events()[0]["EventId"]) == 503
    site.vouch(cache, references["cache"])
    site.vouch(canary, references["canary"])
    until(lambda: not canary.events())  # approved later, it has started, and is over
    (operation,) = (o for o in site.ask("GET", "/v1/events")["events"] if "cache" in o["machines"])
    assert operation["status"] == "Scheduled"
    site.site.clear("h1")

    until(lambda: not_before(site, "web") > before["web"], site.relays["h1"].said)
    moved = (not_before(site, "web") - before["web"]).total_seconds()
    assert CUT_SECONDS <= moved <= time.monotonic() - began + 1  # guests read whole seconds
    assert not_before(site, "db") == before["db"]
    until(lambda: held(site) == [])
    until(lambda: not cache.events())  # what was approved has started, and is over
    until(lambda: web.polls[-1].age == 0)
    assert db.events()[0]["EventStatus"] == "Scheduled"
    assert [machine.failed() for machine in machines] == [[]] * 4
    assert site.judge() == []


def test_a_relay_that_dies_or_is_cut_off_is_missed_before_its_request_would_have_ended(
    site: Production,
) -> None:
    site.apply({"idle": "h6", "other": "h7"})
    for host in ("h6", "h7"):
        site.relay(host)
    for end, again in (
        (site.relays["h6"].kill, site.relays["h6"].start),
        (lambda: site.site.darken("h7"), lambda: site.site.clear("h7")),
    ):
        until(lambda: held(site) == [], lambda: held(site))
        let_pass(1.0)  # nothing is Scheduled, so their requests wait for a minute
        began = time.monotonic()
        end()
        until(lambda: held(site))
        missed = time.monotonic() - began
        print(f"missed after {missed:.1f} s")
        assert missed < relay_feed.IDLE_WAIT_SECONDS
        again()
    until(lambda: held(site) == [], lambda: held(site))
