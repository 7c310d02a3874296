"""A host whose way to the service is dark: its guests read on, and only they get more notice."""

import os
import time
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Final

import pytest

from forewarn.server import relay_feed
from hosts.guest import Guest
from hosts.host import until
from hosts.lab import Lab
from kills.processes import let_pass

CUT_SECONDS: Final = float(os.environ.get("HOSTS_CUT_SECONDS", "") or 20)


@pytest.fixture(scope="module")
def guests(lab: Lab) -> list[Guest]:
    """Two guests on each host, each of a scope of its own; nobody approves by itself."""
    lab.serve()
    made = lab.start({"web": "h1", "cache": "h1", "db": "h2", "canary": "h2"})
    lab.fleet(made, alone=True)
    return made


def held(lab: Lab) -> list[str]:
    return [hold["name"] for hold in lab.service.operator.get("/v1/holds")["holds"]]


def not_before(guest: Guest) -> datetime:
    """Return the NotBefore that a guest reads."""
    until(guest.events, guest.said)
    return parsedate_to_datetime(guest.events()[0]["NotBefore"])


def test_a_relay_that_dies_or_is_cut_off_is_missed_before_its_request_would_have_ended(
    lab: Lab, guests: list[Guest]
) -> None:
    host, start = lab.hosts["h1"], time.monotonic()
    for end, again in (
        (host.kill_relay, host.start_relay),
        (lambda: host.link("down"), lambda: host.link("up")),
    ):
        until(lambda: held(lab) == [], lab.report)
        let_pass(1.0)  # nothing is Scheduled, so its request waits for a minute
        began = time.monotonic()
        end()
        until(lambda: held(lab), lab.report)
        assert time.monotonic() - began < relay_feed.IDLE_WAIT_SECONDS
        assert held(lab) == ["h1"]
        again()
    until(lambda: held(lab) == [], lab.report)
    assert not [guest.name for guest in guests[2:] if guest.refused_polls(start)]


def test_a_cut_moves_the_notice_of_its_own_host_alone_and_fails_no_poll(
    lab: Lab, guests: list[Guest]
) -> None:
    web, cache, db, canary = guests
    began = time.monotonic()
    for guest in guests:
        guest.wait_for_polls()
        lab.forewarn("schedule", "reboot", guest.name)
    before = {guest.name: not_before(guest) for guest in guests}
    references = {o["events"][0]["machines"][0]: o["id"] for o in lab.operations()}

    lab.hosts["h1"].link("down")
    let_pass(CUT_SECONDS)
    until(lambda: held(lab) == ["h1"], lab.report)
    for guest in (cache, canary):
        lab.forewarn("approve", references[guest.name])
    until(lambda: not canary.events(), lab.report)  # approved later, it has started, and is over
    (operation,) = (each for each in lab.operations() if each["id"] == references["cache"])
    assert operation["status"] == "Scheduled"
    lab.hosts["h1"].link("up")

    until(lambda: not_before(web) > before["web"], lab.report)
    moved = (not_before(web) - before["web"]).total_seconds()
    assert CUT_SECONDS <= moved <= time.monotonic() - began + 1  # guests read whole seconds
    assert not_before(db) == before["db"]
    until(lambda: held(lab) == [], lab.report)
    until(lambda: not cache.events(), lab.report)  # what was approved has started, and is over
    assert db.events()[0]["EventStatus"] == "Scheduled"
    assert not [guest.name for guest in guests if guest.refused_polls(began)]
    assert [sentence for guest in guests for sentence in guest.complaints()] == []
