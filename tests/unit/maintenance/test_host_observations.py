"""What surveys of the hypervisors mean: moves, crashes, and what only looks like one."""

from datetime import timedelta
from typing import Any

import pytest

from builders import NOW, SECOND
from forewarn.maintenance.alerts import AlertKind
from forewarn.maintenance.fleet_import import Domain
from forewarn.maintenance.host_observations import (
    CRASHES_WITHIN,
    LOST_AFTER,
    MAX_CRASHES,
    SUSPECTED_FOR,
    TWICE_AFTER,
    Action,
    FleetState,
    Observations,
    RaiseUnforeseen,
    RecordHost,
    Remark,
    Survey,
)
from forewarn.maintenance.model import Machine

G1, G2 = (f"00000000-0000-4000-8000-00000000000{n}" for n in (1, 2))
NAMES = {G1: "g1", G2: "g2"}


class Hosts:
    """Two hosts that are surveyed, and a fleet with g1 on h1 and g2 on h2."""

    def __init__(self, *, watched: bool = True) -> None:
        self.now = NOW
        self.busy: set[str] = set()
        self.rebooting: set[str] = set()
        self.machines = {G1: machine(G1, "h1"), G2: machine(G2, "h2")}
        self.observed = Observations(("h1", "h2"), NOW)
        if watched:
            self.survey("h1", domain(G1))
            self.survey("h2", domain(G2))
            self.survey("h1", domain(G1))

    @property
    def fleet(self) -> FleetState:
        return FleetState(self.machines, self.busy, self.rebooting)

    def survey(self, host: str, *domains: Domain) -> list[Action]:
        return self.answer(host, self.observed.begin(), *domains)

    def answer(self, host: str, number: int, *domains: Domain) -> list[Action]:
        """Take the answer to a survey that was asked for before."""
        actions = self.observed.surveyed(host, number, domains, self.fleet, self.now)
        return [action for action in actions if not isinstance(action, Remark)]

    def remarks(self, host: str, *domains: Domain) -> list[tuple[str, ...]]:
        number = self.observed.begin()
        actions = self.observed.surveyed(host, number, domains, self.fleet, self.now)
        return [action.names for action in actions if isinstance(action, Remark)]

    def loses(self, host: str) -> bool:
        return self.observed.lost(host, "gone", self.now)

    def alerts(self) -> list[tuple[AlertKind, str]]:
        found = self.observed.alerts(self.fleet, self.now)
        return [(alert.kind, alert.about) for alert in found]

    def fails(self, *others: Domain) -> None:
        """g1 fails on h1: all hosts are asked."""
        assert Survey() in self.survey("h1", FAILED, *others)

    def crashes(self) -> list[Action]:
        """Survey all hosts after a failure of g1; return what follows."""
        return self.survey("h2", domain(G2)) + self.survey("h1", FAILED)


@pytest.fixture
def hosts() -> Hosts:
    return Hosts()


def machine(uuid: str, host: str) -> Machine:
    return Machine(
        name=NAMES[uuid], scope="web", update_domain=0, fault_domain=0, vm_id=uuid, host=host
    )


def domain(uuid: str, state: str = "running", reason: str = "", **more: Any) -> Domain:
    run = -1 if state == "off" else 1
    named = {"uuid": uuid, "name": NAMES.get(uuid, "x"), "state": state, "reason": reason}
    return Domain(**{"run": run, **named, **more})


FAILED = domain(G1, "off", "failed")


# Two surveys of a host.


@pytest.mark.parametrize(
    ("before", "after", "follows"),
    [
        (None, domain(G1), None),
        (None, FAILED, None),
        (domain(G1), None, None),
        (domain(G1), domain(G1), None),
        (domain(G1), domain(G1, run=2), Remark),
        (domain(G1, "paused"), domain(G1, run=2), Remark),
        (domain(G1, "off", "shutdown"), domain(G1, run=2), None),
        (domain(G1), domain(G1, "paused"), None),
        (domain(G1), FAILED, Survey),
        (domain(G1, "paused"), FAILED, Survey),
        (domain(G1, "handover"), FAILED, Survey),
        (domain(G1), domain(G1, "off", "crashed"), Survey),
        (domain(G1), domain(G1, "off", "daemon"), Survey),
        (domain(G1), domain(G1, "crashed"), Survey),
        (FAILED, FAILED, None),
        (domain(G1, "off", "shutdown"), FAILED, None),
        (domain(G1), domain(G1, "off", "unknown"), None),
        *(
            (domain(G1), domain(G1, "off", reason), None)
            for reason in ("shutdown", "destroyed", "migrated", "saved", "from-snapshot")
        ),
    ],
)
def test_two_surveys_differ_in_a_domain(
    hosts: Hosts, before: Domain | None, after: Domain | None, follows: type | None
) -> None:
    for one in (before, after):
        number, domains = hosts.observed.begin(), [one] if one else []
        found = hosts.observed.surveyed("h1", number, domains, hosts.fleet, NOW)
    assert [type(action) for action in found] == ([follows] if follows else [])


# Moves.


def test_a_machine_that_two_hosts_have_has_moved_once_its_host_is_asked(hosts: Hosts) -> None:
    assert hosts.survey("h2", domain(G2), domain(G1)) == [Survey("h1")]
    assert hosts.survey("h2", domain(G2), domain(G1)) == [], "it is asked once"
    moved = [RecordHost(hosts.machines[G1], "h2")]
    assert hosts.survey("h1", domain(G1, "off", "migrated")) == moved
    assert hosts.survey("h1") == moved, "its definition has gone, too"


def test_a_move_while_nobody_watched_is_seen_in_the_first_survey() -> None:
    hosts = Hosts(watched=False)
    assert hosts.survey("h1", domain(G1, "off", "migrated")) == []
    moved = hosts.survey("h2", domain(G1, "paused"), domain(G2))
    assert moved == [RecordHost(hosts.machines[G1], "h2")]


# Crashes.


@pytest.mark.parametrize("after", [FAILED, domain(G1, "off", "crashed"), domain(G1, "crashed")])
def test_a_crash_is_raised_when_every_host_was_asked(hosts: Hosts, after: Domain) -> None:
    assert hosts.survey("h1", after) == [Survey()]
    assert hosts.survey("h2", domain(G2)) == []
    why = f"{after.state} ({after.reason}) on h1"
    raised = [RaiseUnforeseen(hosts.machines[G1], "h1", why)]
    assert hosts.survey("h1", after) == raised
    # Until it is recorded it follows from each survey.
    assert hosts.survey("h2", domain(G2)) == raised
    hosts.observed.recorded(raised[0], hosts.now)
    assert hosts.survey("h2", domain(G2)) == []
    assert hosts.survey("h1", after) == []


def test_a_survey_that_was_asked_for_before_a_failure_settles_none(hosts: Hosts) -> None:
    earlier = hosts.observed.begin()
    hosts.fails()
    assert hosts.survey("h1", FAILED) == []
    assert hosts.answer("h2", earlier, domain(G2)) == []  # g1 has come there since
    moved = hosts.survey("h2", domain(G2), domain(G1))
    assert moved == [RecordHost(hosts.machines[G1], "h2")]


def test_a_failure_is_the_operations_too_if_that_began_meanwhile(hosts: Hosts) -> None:
    hosts.fails()
    hosts.busy.add("g1")
    assert hosts.crashes() == []
    hosts.busy.clear()
    assert hosts.crashes() == []


def test_a_cancelled_migration_is_no_crash_of_its_target(hosts: Hosts) -> None:
    hosts.survey("h2", domain(G2), domain(G1, "handover"))
    assert hosts.survey("h2", domain(G2), FAILED) == []


def test_a_cancelled_migration_is_no_crash_even_if_the_fleet_is_behind(hosts: Hosts) -> None:
    hosts.machines[G1] = machine(G1, "h2")
    hosts.busy.add("g1")  # else the fleet would learn where it is
    hosts.survey("h2", domain(G2), domain(G1, "handover"))
    hosts.busy.clear()
    assert hosts.survey("h2", domain(G2), FAILED) == [Survey()]
    hosts.survey("h2", domain(G2), FAILED)
    assert hosts.survey("h1", domain(G1)) == [RecordHost(hosts.machines[G1], "h1")]


def test_a_failure_amid_a_migration_is_judged_when_that_is_over(hosts: Hosts) -> None:
    hosts.fails()
    hosts.survey("h1", FAILED)
    assert hosts.survey("h2", domain(G2), domain(G1, "handover")) == []
    assert hosts.survey("h1", FAILED) == []
    (raised,) = hosts.survey("h2", domain(G2), FAILED)
    assert isinstance(raised, RaiseUnforeseen)


@pytest.mark.parametrize("state", ["running", "paused"])
def test_a_machine_that_runs_elsewhere_after_a_failure_has_moved(hosts: Hosts, state: str) -> None:
    hosts.fails()
    hosts.survey("h1", FAILED)
    moved = hosts.survey("h2", domain(G2), domain(G1, state))
    assert moved == [RecordHost(hosts.machines[G1], "h2")]


@pytest.mark.parametrize("again", [domain(G1, run=2), domain(G1, "paused", run=2)])
def test_a_machine_that_its_host_started_again_has_not_crashed(hosts: Hosts, again: Domain) -> None:
    """libvirt restarts it after a panic (`on_crash=restart`): there is nothing to announce."""
    hosts.fails()
    assert hosts.survey("h2", domain(G2)) == []
    assert hosts.survey("h1", again) == []
    assert hosts.crashes()[:1] == [Survey()], "the next failure is another one"


def test_a_restart_between_two_surveys_is_only_logged(hosts: Hosts) -> None:
    assert hosts.survey("h1", domain(G1, run=2)) == []
    assert hosts.remarks("h1", domain(G1, run=3)) == [("g1",)]
    assert hosts.remarks("h1", domain(G1, run=3)) == []
    hosts.busy.add("g1")
    assert hosts.remarks("h1", domain(G1, run=4)) == []
    hosts.survey("h2", domain(G2))
    assert hosts.alerts() == []


def test_a_suspicion_waits_for_a_host_that_does_not_answer(hosts: Hosts) -> None:
    hosts.loses("h2")
    hosts.fails()
    assert hosts.survey("h1", FAILED) == []
    assert (AlertKind.CRASHED, "g1") in hosts.alerts()
    (raised,) = hosts.survey("h2", domain(G2))
    assert isinstance(raised, RaiseUnforeseen)


def test_a_suspicion_that_nobody_could_settle_ends_and_the_alert_stays(hosts: Hosts) -> None:
    hosts.loses("h2")
    hosts.fails()
    hosts.now += SUSPECTED_FOR - SECOND
    assert hosts.survey("h1", FAILED) == []
    hosts.now += SECOND
    assert hosts.crashes() == []
    assert hosts.alerts() == [(AlertKind.CRASHED, "g1")]


def test_a_crash_while_the_host_did_not_answer_is_found_when_it_does() -> None:
    for reason in ("failed", "crashed", "daemon", "unknown"):
        hosts = Hosts()
        hosts.loses("h1")
        assert hosts.survey("h1", domain(G1, "off", reason)) == [Survey()]
    for reason in ("shutdown", "destroyed", "migrated", "saved"):
        hosts = Hosts()
        hosts.loses("h1")
        assert hosts.survey("h1", domain(G1, "off", reason)) == []


def test_every_machine_of_a_host_that_lost_its_power_is_raised(hosts: Hosts) -> None:
    hosts.machines[G2] = machine(G2, "h1")
    hosts.survey("h2")
    hosts.survey("h1", domain(G1), domain(G2))
    hosts.loses("h1")
    off = [domain(uuid, "off", "unknown") for uuid in (G1, G2)]
    hosts.survey("h1", *off)
    hosts.survey("h2")
    raised = hosts.survey("h1", *off)
    assert {one.machine.name for one in raised if isinstance(one, RaiseUnforeseen)} == {"g1", "g2"}


def test_a_machine_that_was_off_before_its_host_was_lost_has_not_crashed(hosts: Hosts) -> None:
    hosts.survey("h1", domain(G1, "off", "shutdown"))
    hosts.loses("h1")
    assert hosts.survey("h1", domain(G1, "off", "unknown")) == []
    assert hosts.alerts() == []


def test_a_crash_before_anybody_watched_is_an_alert_only() -> None:
    hosts = Hosts(watched=False)
    assert hosts.survey("h1", FAILED) == []
    hosts.survey("h2", domain(G2))
    assert hosts.alerts() == [(AlertKind.CRASHED, "g1")]


def test_a_machine_that_crashes_again_and_again_is_given_up_for_an_hour(hosts: Hosts) -> None:
    def crash() -> list[Action]:
        hosts.survey("h1", domain(G1))
        hosts.fails()
        found = hosts.crashes()
        for action in found:
            hosts.observed.recorded(action, hosts.now)
        hosts.now += SECOND
        return found

    assert all(len(crash()) == 1 for _ in range(MAX_CRASHES))
    assert crash() == []
    assert hosts.alerts() == [(AlertKind.CRASHED, "g1")]
    hosts.now += CRASHES_WITHIN
    assert isinstance(crash()[0], RaiseUnforeseen)


# Alerts and remarks.


def test_a_host_that_is_lost_is_an_alert_until_it_answers() -> None:
    hosts = Hosts(watched=False)
    assert hosts.alerts() == []
    hosts.now += LOST_AFTER
    assert hosts.alerts() == [(AlertKind.HOST_LOST, "host h1"), (AlertKind.HOST_LOST, "host h2")]
    assert not hosts.loses("h1")
    hosts.survey("h1", domain(G1))
    hosts.survey("h2", domain(G2))
    assert hosts.alerts() == []
    assert hosts.loses("h1")
    assert hosts.alerts() == []
    hosts.now += LOST_AFTER
    assert not hosts.loses("h1")
    assert hosts.alerts() == [(AlertKind.HOST_LOST, "host h1")]


def test_a_host_that_its_drain_reboots_is_no_alert_until_it_should_be_back(hosts: Hosts) -> None:
    lost = [(AlertKind.HOST_LOST, "host h1")]
    hosts.loses("h1")
    hosts.now += 2 * LOST_AFTER
    assert hosts.alerts() == lost
    hosts.rebooting = {"h1"}
    assert hosts.alerts() == []
    hosts.rebooting = set()
    assert hosts.alerts() == lost, "it did not reboot"
    hosts.observed.host_rebooted("h1", hosts.now)
    assert hosts.alerts() == []
    hosts.now += LOST_AFTER
    assert hosts.alerts() == lost


def test_a_domain_that_is_not_in_the_fleet_is_logged_once_and_a_tagged_one_is_an_alert(
    hosts: Hosts,
) -> None:
    other = domain(G1[:-1] + "9", name="other")
    assert hosts.remarks("h1", domain(G1), other) == [("other",)]
    assert hosts.observed.unknown("h1", hosts.fleet) == [other.uuid]
    assert hosts.remarks("h1", domain(G1), other) == []
    assert hosts.alerts() == []
    hosts.survey("h1", domain(G1), domain(other.uuid, name="other", tagged=True))
    assert hosts.alerts() == [(AlertKind.FLEET, "domain other")]


def test_a_machine_whose_domain_is_gone_stays_and_is_an_alert(hosts: Hosts) -> None:
    hosts.survey("h1")
    hosts.survey("h1")
    assert hosts.alerts() == [], "it may have come to h2 since"
    hosts.survey("h2", domain(G2))
    assert hosts.alerts() == [(AlertKind.FLEET, "g1")]
    hosts.busy.add("g1")
    assert hosts.alerts() == []
    hosts.busy.clear()
    hosts.survey("h2", domain(G2), domain(G1, "off", "shutdown"))
    assert hosts.alerts() == []
    hosts.survey("h2", domain(G2))
    del hosts.machines[G1]
    hosts.survey("h1")
    assert hosts.alerts() == []


def test_a_domain_that_may_be_on_a_lost_host_is_not_missed(hosts: Hosts) -> None:
    hosts.survey("h2", domain(G2), domain(G1, "off", "shutdown"))
    hosts.loses("h2")
    hosts.survey("h1")
    hosts.survey("h1")
    assert hosts.alerts() == []


def test_a_machine_that_runs_twice_is_an_alert_after_a_while(hosts: Hosts) -> None:
    hosts.survey("h2", domain(G2), domain(G1))
    assert hosts.alerts() == []
    hosts.now += TWICE_AFTER
    assert hosts.alerts() == [(AlertKind.RUNS_TWICE, "g1")]
    hosts.survey("h2", domain(G2), domain(G1, "off", "destroyed"))
    assert hosts.alerts() == []


def test_an_alert_has_the_time_at_which_its_cause_began(hosts: Hosts) -> None:
    hosts.now += SECOND
    hosts.fails()
    hosts.now += SECOND
    hosts.crashes()
    (alert,) = hosts.observed.alerts(hosts.fleet, hosts.now)
    assert alert.since == NOW + SECOND
    assert timedelta(0) < hosts.now - alert.since
