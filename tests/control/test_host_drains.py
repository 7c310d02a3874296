"""Drains by the control plane: to their end, through a kill after each commit, and refused."""

import asyncio
from datetime import timedelta

import msgspec
import pytest

import patience
from builders import NOW, SECOND
from control.conftest import done
from control.site import FLEET, ON_H1, Site, drain_of
from forewarn.control import host_drains as driver
from forewarn.control import relay_watch
from forewarn.maintenance import host_drain
from forewarn.maintenance.model import (
    Changes,
    HostState,
    Policy,
    Refused,
    Stay,
)
from forewarn.maintenance.relays import Relay, new_token
from forewarn.vocabulary import ErrorCode, EventStatus


@pytest.fixture
def site() -> Site:
    return Site()


def test_a_host_has_its_machines_back_once_its_relay_has_asked_since_the_reboot(
    site: Site,
) -> None:
    token = new_token("h1", "d", by="ann", at=NOW)

    def hear() -> None:
        now = site.clock.now()
        times = {"started_at": now, "heard_at": now, "due_at": now}
        told = {"replica": "a", "version": "1", "etag": "", "machines": 0}
        site.store.hear([Relay(host="h1", **told, **times)])

    async def story() -> None:
        done(site.plane.order(relay_watch.create_token, token))
        hear()
        await site.drain("h1", reboot=True)
        await site.until(HostState.BACK)
        before = len(site.operations())
        for _ in range(20):
            site.clock.advance(20 * SECOND)
            await site.settle()
        assert site.state() is HostState.BACK
        assert "relay" in site.drains()["h1"].reason
        assert len(site.operations()) == before
        hear()
        await site.until(HostState.UP)
        assert site.where(*ON_H1) == ["h1"] * 3

    site.play(story)


async def test_a_host_that_stays_empty_is_looked_at_until_it_is_opened(site: Site) -> None:
    await site.drain("h3")
    await site.until(HostState.EMPTY, host="h3")
    for _ in range(10):
        site.clock.advance(20 * SECOND)
        await site.settle()
    assert site.state("h3") is HostState.EMPTY
    done(site.plane.apply_fleet(FLEET))  # which was written before the drain
    site.clock.advance(driver.LOOK_AGAIN)
    await site.settle()
    assert site.state("h3") is HostState.STUCK
    assert "cache" in site.drains()["h3"].reason
    done(site.plane.order_drain("h3", host_drain.retry))
    await site.until(HostState.EMPTY, host="h3")
    assert site.where("cache") != ["h3"]


async def test_no_host_is_rebooted_by_a_service_that_stood_still_since_it_looked(
    site: Site,
) -> None:
    def stand_still(changes: Changes) -> None:
        if any(drain.state is HostState.REBOOTING for drain in changes.drains):
            site.clock.advance(2 * host_drain.LOOK_AGE_LIMIT)

    site.feed.subscribe(stand_still)
    await site.drain("h1", reboot=True)
    await site.until(HostState.STUCK)
    assert site.reboots == []


async def test_a_drain_that_cannot_be_decided_on_keeps_no_other_from_going_on(site: Site) -> None:
    await site.drain("h1", reboot=True)
    await site.settle()
    broken = site.drains()["h1"]
    site.hosts.drains = {"nobody knows it": broken, **site.hosts.drains}
    await site.until(HostState.UP)
    assert site.reboots == ["h1"]


def test_a_reboot_command_has_the_time_that_its_host_has(site: Site) -> None:
    async def story() -> None:
        await site.drain("h1", reboot=True)
        await site.until(HostState.STUCK)
        assert site.drains()["h1"].stuck_in is HostState.REBOOTING
        assert site.clock.now() - NOW < Policy().host_back
        assert site.reboots == ["h1"]

    site.reboot_hangs = True
    site.host_back = timedelta(0)
    site.play(story)


async def test_hosts_that_cannot_be_looked_at_make_the_drain_wait_and_then_stop(site: Site) -> None:
    await site.drain("h1")
    await site.settle()
    site.connector.survey_fails = True
    await site.until(HostState.STUCK)
    assert "no library" in site.drains()["h1"].reason


async def test_a_drain_waits_for_a_store_that_is_away(site: Site) -> None:
    await site.drain("h1")
    site.store.away = True
    await site.settle()
    assert site.live() == []
    site.store.away = False
    await site.until(HostState.EMPTY)
    assert "h1" not in site.where(*ON_H1)


@pytest.mark.parametrize(("bring_home", "every"), [(True, 2), (False, 7)])
def test_a_kill_after_any_commit_changes_nothing_about_the_end(
    bring_home: bool, every: int
) -> None:
    whole = Site()
    before, after = commits_of(whole, bring_home=bring_home)
    stuck = 0
    for commit in range(before + 1, after, every):
        site = Site()
        site.store.last_commit = commit
        stuck += killed(site, bring_home=bring_home)
        assert site.kills == 1
        assert site.where(*ON_H1) == whole.where(*ON_H1)
        moves = [o for o in site.operations() if o.status is EventStatus.COMPLETED]
        assert len(moves) == len(whole.operations()) == len(site.operations())
        assert site.reboots == ["h1"]
    # Where it was killed between the commit and the reboot command, nobody knew whether that ran.
    assert stuck or every > 2


def commits_of(site: Site, *, bring_home: bool) -> tuple[int, int]:
    counted = [0]

    async def story() -> None:
        await site.settle()
        counted[0] = site.store.commits
        await site.drain("h1", reboot=True, bring_home=bring_home)
        await site.until(HostState.UP)

    site.play(story)
    return counted[0], site.store.commits


def killed(site: Site, *, bring_home: bool) -> bool:
    """Drain h1 through a kill; tell whether an operator was needed."""
    stuck = []

    async def story() -> None:
        await site.settle()
        await site.drain("h1", reboot=True, bring_home=bring_home)
        await site.until(HostState.UP, HostState.STUCK, rounds=300)
        if site.state() is HostState.STUCK:
            stuck.append(site.drains()["h1"])
            assert stuck[0].stuck_in is HostState.REBOOTING
            assert site.reboots == []
            done(site.plane.order_drain("h1", host_drain.retry))
            await site.until(HostState.UP)

    site.play(story)
    return bool(stuck)


async def test_what_could_not_be_drained_is_refused_and_the_plan_says_why(site: Site) -> None:
    survey = await site.hosts.survey()
    h1 = survey.hosts["h1"]
    (guest, *others) = h1.guests
    fixed = msgspec.structs.replace(guest, obstacles=("a device",))
    facts = msgspec.structs.replace(h1, can_reboot=False, guests=(fixed, *others))
    survey = msgspec.structs.replace(survey, hosts=survey.hosts | {"h1": facts})
    wanted = drain_of("h1", reboot=True)
    (plan,) = done(site.plane.plan_drains([wanted], survey))
    assert len(plan.problems) == 2
    drained = site.plane.drain_host(wanted, survey)
    for refused in (drained, site.plane.plan_drains([wanted], survey, judge=True)):
        with pytest.raises(Refused) as refusal:
            done(refused)
        assert refusal.value.code is ErrorCode.NOT_ELIGIBLE
    done(site.plane.drain_host(drain_of("h1", stay=Stay.REDEPLOY), survey))


def test_an_order_about_a_host_that_is_not_drained_is_refused(site: Site) -> None:
    with pytest.raises(Refused) as refusal:
        done(site.plane.order_drain("h1", host_drain.retry))
    assert refusal.value.code is ErrorCode.NOT_FOUND


def test_a_look_that_takes_its_time_is_still_young_enough_for_a_reboot() -> None:
    assert timedelta(seconds=driver.SURVEY_SECONDS) < host_drain.LOOK_AGE_LIMIT


async def test_a_look_to_be_shown_is_a_recent_one(site: Site) -> None:
    first = await site.hosts.recent_survey()
    assert await site.hosts.recent_survey() is first
    assert await site.hosts.survey() is not first
    site.clock.advance(driver.RECENT)
    assert (await site.hosts.recent_survey()).began_at == site.clock.now()


async def test_viewers_wait_for_one_look_together_and_one_that_leaves_does_not_end_it(
    site: Site,
) -> None:
    site.connector.survey_hangs = True
    viewers = [asyncio.create_task(site.hosts.recent_survey()) for _ in range(5)]
    await patience.settled()
    assert site.connector.surveys == 1
    viewers[0].cancel()
    await patience.settled()
    assert [viewer.done() for viewer in viewers] == [True, False, False, False, False]
    site.connector.hanging.set()
    assert len({id(await viewer) for viewer in viewers[1:]}) == 1


async def test_hosts_that_stay_empty_are_looked_at_together(site: Site) -> None:
    for host in ("h2", "h3"):
        await site.drain(host)
        await site.until(HostState.EMPTY, host=host)
    site.clock.advance(2 * driver.LOOK_AGAIN)
    await site.settle()
    before = site.connector.surveys
    site.clock.advance(driver.LOOK_AGAIN)
    await site.settle()
    assert site.connector.surveys == before + 1


async def test_a_service_that_stops_does_not_wait_for_a_look_at_the_hosts(site: Site) -> None:
    await site.drain("h1")
    site.connector.survey_hangs = True
    await site.settle()
    running = site.driving()
    assert not running.done()
    site.hosts.stop()
    await site.settle()
    assert running.done()
    assert running.exception() is None
