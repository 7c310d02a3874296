"""What observations of the hypervisors mean: moves, crashes, and what only looks like one."""

from datetime import timedelta
from typing import Any

import pytest

from builders import NOW, SECOND
from forewarn.maintenance.alerts import AlertKind
from forewarn.maintenance.fleet_import import Domain
from forewarn.maintenance.host_observations import (
    CRASHES_WITHIN,
    LOOK_AGAIN,
    LOST_AFTER,
    MAX_CRASHES,
    SUSPECTED_FOR,
    TWICE_AFTER,
    Action,
    FleetState,
    LookEverywhere,
    Observations,
    RaiseUnforeseen,
    RecordHost,
    Remark,
)
from forewarn.maintenance.model import Machine

G1, G2 = (f"00000000-0000-4000-8000-00000000000{n}" for n in (1, 2))
NAMES = {G1: "g1", G2: "g2"}
FAILED = ("STOPPED", "FAILED")


class Hosts:
    """Two hosts that tell what happens, and a fleet with g1 on h1 and g2 on h2."""

    def __init__(self, *, listed: bool = True) -> None:
        self.now = NOW
        self.busy: set[str] = set()
        self.rebooting: set[str] = set()
        self.machines = {G1: machine(G1, "h1"), G2: machine(G2, "h2")}
        self.observed = Observations(("h1", "h2"), NOW)
        if listed:
            assert self.lists("h1", domain(G1)) == []
            assert self.lists("h2", domain(G2)) == []

    @property
    def fleet(self) -> FleetState:
        return FleetState(self.machines, self.busy, self.rebooting)

    def lists(self, host: str, *domains: Domain) -> list[Action]:
        return self.observed.host_listed(host, domains, self.fleet, self.now)

    def tells(self, host: str, kind: tuple[str, str], found: Domain) -> list[Action]:
        return self.observed.domain_changed(host, kind, found, self.fleet, self.now)

    def answers(self, host: str, found: Domain) -> list[Action]:
        return self.observed.domain_looked(host, found, self.fleet, self.now)

    def loses(self, host: str) -> bool:
        return self.observed.host_lost(host, "gone", self.now)

    def passes(self, time: timedelta) -> list[Action]:
        self.now += time
        return self.observed.time_passed(self.fleet, self.now)

    def alerts(self) -> list[tuple[AlertKind, str]]:
        found = self.observed.alerts(self.fleet, self.now)
        return [(alert.kind, alert.about) for alert in found]

    def fails(self) -> None:
        """g1 fails on h1: all hosts are asked about it."""
        assert self.tells("h1", FAILED, domain(G1, "off", "failed")) == [LookEverywhere(G1)]


@pytest.fixture
def hosts() -> Hosts:
    return Hosts()


def machine(uuid: str, host: str) -> Machine:
    return Machine(
        name=NAMES[uuid], scope="web", update_domain=0, fault_domain=0, vm_id=uuid, host=host
    )


def domain(uuid: str, state: str = "running", reason: str = "", **more: Any) -> Domain:
    return Domain(uuid=uuid, name=NAMES.get(uuid, "x"), state=state, reason=reason, **more)


def gone(uuid: str) -> Domain:
    return Domain(uuid=uuid, name="", state="gone")


# Moves.


def test_a_machine_that_migrated_has_its_new_host(hosts: Hosts) -> None:
    incoming = domain(G1, "handover")
    assert hosts.tells("h2", ("STARTED", "1"), incoming) == []
    assert hosts.tells("h1", ("SUSPENDED", "1"), domain(G1, "handover")) == []
    moved = hosts.tells("h2", ("RESUMED", "1"), domain(G1))
    assert moved == [RecordHost(hosts.machines[G1], "h2")]
    hosts.machines[G1] = machine(G1, "h2")
    assert hosts.tells("h1", ("STOPPED", "MIGRATED"), domain(G1, "off", "migrated")) == []
    assert hosts.passes(SECOND) == []


def test_a_machine_that_two_hosts_have_is_not_moved(hosts: Hosts) -> None:
    assert hosts.tells("h2", ("STARTED", "0"), domain(G1)) == []
    assert hosts.passes(SECOND) == []
    stopped = hosts.tells("h1", ("STOPPED", "MIGRATED"), domain(G1, "off", "migrated"))
    assert stopped == [RecordHost(hosts.machines[G1], "h2")]


def test_a_move_by_an_operation_of_ours_is_left_to_its_outcome(hosts: Hosts) -> None:
    hosts.busy.add("g1")
    hosts.tells("h1", ("STOPPED", "MIGRATED"), domain(G1, "off", "migrated"))
    assert hosts.tells("h2", ("RESUMED", "1"), domain(G1)) == []
    assert hosts.passes(SECOND) == []
    hosts.busy.clear()
    assert hosts.passes(SECOND) == [RecordHost(hosts.machines[G1], "h2")]


def test_a_move_while_nobody_watched_is_seen_in_the_list() -> None:
    hosts = Hosts(listed=False)
    assert hosts.lists("h1", domain(G1, "off", "migrated")) == []
    moved = hosts.lists("h2", domain(G1, "paused"), domain(G2))
    assert moved == [RecordHost(hosts.machines[G1], "h2")]


def test_a_machine_that_is_off_stays_where_the_fleet_has_it(hosts: Hosts) -> None:
    hosts.tells("h1", ("UNDEFINED", "0"), gone(G1))
    assert hosts.tells("h2", ("DEFINED", "0"), domain(G1, "off", "shutdown")) == []
    assert hosts.passes(SECOND) == []


# Crashes.


@pytest.mark.parametrize(
    ("kind", "after"),
    [
        (("STOPPED", "FAILED"), domain(G1, "off", "failed")),
        (("STOPPED", "CRASHED"), domain(G1, "off", "crashed")),
        (("CRASHED", "PANICKED"), domain(G1, "crashed")),
        (("STOPPED", "FAILED"), gone(G1)),  # a transient domain
    ],
)
def test_a_crash_is_raised_when_every_host_was_asked(
    hosts: Hosts, kind: tuple[str, str], after: Domain
) -> None:
    assert hosts.tells("h1", kind, after) == [LookEverywhere(G1)]
    assert hosts.answers("h2", gone(G1)) == []
    raised = hosts.answers("h1", after)
    assert raised == [RaiseUnforeseen(hosts.machines[G1], "h1", f"{' '.join(kind).lower()} on h1")]
    assert hosts.answers("h1", after) == []


@pytest.mark.parametrize(
    ("kind", "after"),
    [
        (("STOPPED", "SHUTDOWN"), domain(G1, "off", "shutdown")),
        (("STOPPED", "DESTROYED"), domain(G1, "off", "destroyed")),
        (("STOPPED", "MIGRATED"), domain(G1, "off", "migrated")),
        (("STOPPED", "SAVED"), domain(G1, "off", "saved")),
        (("SHUTDOWN", "0"), domain(G1)),
        (("SUSPENDED", "0"), domain(G1, "paused")),
        (("CRASHED", "CRASHLOADED"), domain(G1)),
    ],
)
def test_what_somebody_asked_for_is_no_crash(
    hosts: Hosts, kind: tuple[str, str], after: Domain
) -> None:
    assert hosts.tells("h1", kind, after) == []


def test_a_failure_under_an_operation_of_ours_is_the_operations(hosts: Hosts) -> None:
    hosts.busy.add("g1")
    assert hosts.tells("h1", FAILED, domain(G1, "off", "failed")) == []
    assert hosts.alerts() == []


def test_a_failure_is_the_operations_too_if_that_began_meanwhile(hosts: Hosts) -> None:
    hosts.fails()
    hosts.busy.add("g1")
    hosts.answers("h1", domain(G1, "off", "failed"))
    assert hosts.answers("h2", gone(G1)) == []
    hosts.busy.clear()
    assert hosts.passes(SUSPECTED_FOR) == []


def test_a_cancelled_migration_is_no_crash_of_its_target(hosts: Hosts) -> None:
    hosts.tells("h2", ("STARTED", "1"), domain(G1, "handover"))
    assert hosts.tells("h2", FAILED, domain(G1, "off", "failed")) == []


def test_a_cancelled_migration_is_no_crash_even_if_the_fleet_is_behind(hosts: Hosts) -> None:
    hosts.machines[G1] = machine(G1, "h2")
    hosts.busy.add("g1")  # else the fleet would learn where it is
    hosts.tells("h2", ("STARTED", "1"), domain(G1, "handover"))
    hosts.busy.clear()
    assert LookEverywhere(G1) in hosts.tells("h2", FAILED, domain(G1, "off", "failed"))
    hosts.answers("h2", domain(G1, "off", "failed"))
    found = hosts.answers("h1", domain(G1))
    assert found == [RecordHost(hosts.machines[G1], "h1")]


@pytest.mark.parametrize(
    "meanwhile", [domain(G1, "handover"), domain(G1, migrating=True), domain(G1, "paused")]
)
def test_a_failure_amid_a_migration_is_judged_when_that_is_over(
    hosts: Hosts, meanwhile: Domain
) -> None:
    hosts.fails()
    hosts.answers("h1", domain(G1, "off", "failed"))
    raised = hosts.answers("h2", meanwhile)
    if meanwhile.state == "paused":  # it is in memory there, and nothing is under way
        assert raised == [RecordHost(hosts.machines[G1], "h2")]
        return
    assert raised == []
    assert hosts.passes(LOOK_AGAIN - SECOND) == []
    assert hosts.passes(SECOND) == [LookEverywhere(G1)]
    hosts.answers("h1", domain(G1, "off", "failed"))
    (raise_,) = hosts.answers("h2", domain(G1, "off", "failed"))
    assert isinstance(raise_, RaiseUnforeseen)


def test_a_failure_elsewhere_than_the_fleet_has_the_machine_is_none_of_it(hosts: Hosts) -> None:
    hosts.tells("h2", ("STARTED", "0"), domain(G1))
    assert hosts.tells("h2", FAILED, domain(G1, "off", "failed")) == []


def test_a_start_that_fails_is_no_crash(hosts: Hosts) -> None:
    hosts.tells("h1", ("STOPPED", "SHUTDOWN"), domain(G1, "off", "shutdown"))
    assert hosts.tells("h1", FAILED, domain(G1, "off", "failed")) == []


def test_a_domain_that_is_not_in_the_fleet_does_not_crash(hosts: Hosts) -> None:
    other = G1[:-1] + "9"
    hosts.tells("h1", ("STARTED", "0"), domain(other))
    assert hosts.tells("h1", FAILED, domain(other, "off", "failed")) == []
    assert hosts.alerts() == []


def test_a_suspicion_waits_for_a_host_that_does_not_answer(hosts: Hosts) -> None:
    hosts.loses("h2")
    hosts.fails()
    assert hosts.answers("h1", domain(G1, "off", "failed")) == []
    assert (AlertKind.CRASHED, "g1") in hosts.alerts()
    assert hosts.lists("h2", domain(G2)) == [LookEverywhere(G1)]
    (raised,) = hosts.answers("h2", gone(G1))
    assert isinstance(raised, RaiseUnforeseen)


def test_a_list_may_be_older_than_a_suspicion_and_settles_none(hosts: Hosts) -> None:
    hosts.loses("h2")
    hosts.fails()
    assert hosts.answers("h1", domain(G1, "off", "failed")) == []
    assert hosts.lists("h2", domain(G2)) == [LookEverywhere(G1)]  # g1 has come there since
    assert hosts.answers("h2", domain(G1)) == [RecordHost(hosts.machines[G1], "h2")]


def test_a_suspicion_that_nobody_could_settle_ends_and_the_alert_stays(hosts: Hosts) -> None:
    hosts.loses("h2")
    hosts.fails()
    hosts.answers("h1", domain(G1, "off", "failed"))
    assert hosts.passes(SUSPECTED_FOR) == []
    assert hosts.lists("h2", domain(G2)) == []
    assert hosts.alerts() == [(AlertKind.CRASHED, "g1")]


def test_a_crash_while_the_host_did_not_answer_is_found_when_it_does(hosts: Hosts) -> None:
    for reason in ("failed", "crashed", "daemon", "unknown"):
        hosts = Hosts()
        hosts.loses("h1")
        assert hosts.lists("h1", domain(G1, "off", reason)) == [LookEverywhere(G1)]
    for reason in ("shutdown", "destroyed", "migrated", "saved"):
        hosts = Hosts()
        hosts.loses("h1")
        assert hosts.lists("h1", domain(G1, "off", reason)) == []


def test_every_machine_of_a_host_that_lost_its_power_is_asked_about(hosts: Hosts) -> None:
    hosts.tells("h2", ("STOPPED", "MIGRATED"), gone(G2))
    hosts.machines[G2] = machine(G2, "h1")
    hosts.tells("h1", ("RESUMED", "1"), domain(G2))
    hosts.loses("h1")
    off = [domain(uuid, "off", "unknown") for uuid in (G1, G2)]
    assert hosts.lists("h1", *off) == [LookEverywhere(G1), LookEverywhere(G2)]


def test_a_machine_that_was_off_before_its_host_was_lost_has_not_crashed(hosts: Hosts) -> None:
    hosts.tells("h1", ("STOPPED", "SHUTDOWN"), domain(G1, "off", "shutdown"))
    hosts.loses("h1")
    assert hosts.lists("h1", domain(G1, "off", "unknown")) == []
    assert hosts.alerts() == []


def test_a_crash_before_anybody_watched_is_an_alert_only() -> None:
    hosts = Hosts(listed=False)
    assert hosts.lists("h1", domain(G1, "off", "failed")) == []
    hosts.lists("h2", domain(G2))
    assert hosts.alerts() == [(AlertKind.CRASHED, "g1")]


def test_a_machine_that_crashes_again_and_again_is_given_up_for_an_hour(hosts: Hosts) -> None:
    def crash() -> Action:
        hosts.tells("h1", ("STARTED", "0"), domain(G1))
        hosts.fails()
        hosts.answers("h1", domain(G1, "off", "failed"))
        (told,) = hosts.answers("h2", gone(G1))
        hosts.now += SECOND
        return told

    assert {type(crash()) for _ in range(MAX_CRASHES)} == {RaiseUnforeseen}
    assert isinstance(crash(), Remark)
    assert hosts.alerts() == [(AlertKind.CRASHED, "g1")]
    hosts.now += CRASHES_WITHIN
    assert isinstance(crash(), RaiseUnforeseen)


def test_a_crash_that_could_not_be_recorded_is_judged_again(hosts: Hosts) -> None:
    hosts.fails()
    hosts.answers("h1", domain(G1, "off", "failed"))
    (raised,) = hosts.answers("h2", gone(G1))
    assert isinstance(raised, RaiseUnforeseen)
    hosts.observed.retry(raised, hosts.now)
    assert hosts.passes(timedelta(0)) == []
    assert hosts.passes(LOOK_AGAIN) == [LookEverywhere(G1)]
    hosts.answers("h1", domain(G1, "off", "failed"))
    assert hosts.answers("h2", gone(G1)) == [raised]


def test_another_failure_of_the_same_crash_asks_nobody_again(hosts: Hosts) -> None:
    assert hosts.tells("h1", ("CRASHED", "PANICKED"), domain(G1)) == [LookEverywhere(G1)]
    assert hosts.tells("h1", ("STOPPED", "CRASHED"), domain(G1, "off", "crashed")) == []


# What is only told.


def test_a_host_that_is_lost_is_an_alert_until_it_answers() -> None:
    hosts = Hosts(listed=False)
    assert hosts.alerts() == []
    hosts.passes(LOST_AFTER)
    assert hosts.alerts() == [(AlertKind.HOST_LOST, "host h1"), (AlertKind.HOST_LOST, "host h2")]
    assert not hosts.loses("h1")
    hosts.lists("h1", domain(G1))
    hosts.lists("h2", domain(G2))
    assert hosts.alerts() == []
    assert hosts.loses("h1")
    assert hosts.alerts() == []
    hosts.passes(LOST_AFTER)
    assert hosts.alerts() == [(AlertKind.HOST_LOST, "host h1")]


def test_a_host_that_its_drain_reboots_is_no_alert_until_it_should_be_back(hosts: Hosts) -> None:
    lost = [(AlertKind.HOST_LOST, "host h1")]
    hosts.loses("h1")
    hosts.passes(2 * LOST_AFTER)
    assert hosts.alerts() == lost
    hosts.rebooting = {"h1"}
    assert hosts.alerts() == []
    hosts.rebooting = set()
    assert hosts.alerts() == lost, "it did not reboot"
    hosts.observed.host_rebooted("h1", hosts.now)
    assert hosts.alerts() == []
    hosts.passes(LOST_AFTER)
    assert hosts.alerts() == lost


def test_a_domain_that_is_not_in_the_fleet_is_told_and_a_tagged_one_is_an_alert() -> None:
    hosts = Hosts(listed=False)
    other = Domain(uuid=G1[:-1] + "9", name="other", state="running")
    (told,) = hosts.lists("h1", domain(G1), other)
    assert isinstance(told, Remark)
    assert told.names == ("other",)
    assert hosts.lists("h1", domain(G1), other) == [told]
    (told,) = hosts.lists("h2", domain(G2), Domain(uuid=other.uuid, name="t", state="off"))
    hosts.passes(LOST_AFTER)
    assert hosts.alerts() == []
    defined = Domain(uuid=G1[:-1] + "8", name="new", state="off", tagged=True)
    (told,) = hosts.tells("h1", ("DEFINED", "0"), defined)
    assert isinstance(told, Remark)
    assert hosts.tells("h1", ("DEFINED", "1"), defined) == []
    assert hosts.alerts() == [(AlertKind.FLEET, "domain new")]


def test_a_machine_whose_domain_is_gone_stays_and_is_an_alert(hosts: Hosts) -> None:
    assert hosts.tells("h1", ("STOPPED", "SHUTDOWN"), domain(G1, "off", "shutdown")) == []
    (told,) = hosts.tells("h1", ("UNDEFINED", "0"), gone(G1))
    assert isinstance(told, Remark)
    assert hosts.alerts() == [(AlertKind.FLEET, "g1")]
    hosts.busy.add("g1")
    assert hosts.alerts() == []
    hosts.busy.clear()
    hosts.tells("h2", ("DEFINED", "0"), domain(G1, "off", "shutdown"))
    assert hosts.alerts() == []
    hosts.tells("h2", ("UNDEFINED", "0"), gone(G1))
    del hosts.machines[G1]
    assert hosts.alerts() == []


def test_a_domain_that_went_while_the_host_was_lost_is_missed(hosts: Hosts) -> None:
    hosts.loses("h1")
    hosts.loses("h2")
    hosts.lists("h1")
    assert hosts.alerts() == [(AlertKind.FLEET, "g1")]
    hosts.lists("h2", domain(G1), domain(G2))
    assert hosts.alerts() == []


def test_a_domain_that_may_be_on_a_lost_host_is_not_missed(hosts: Hosts) -> None:
    hosts.tells("h2", ("DEFINED", "0"), domain(G1, "off", "shutdown"))
    hosts.loses("h2")
    hosts.tells("h1", ("UNDEFINED", "0"), gone(G1))
    assert hosts.alerts() == []


def test_a_machine_that_runs_twice_is_an_alert_after_a_while(hosts: Hosts) -> None:
    hosts.tells("h2", ("STARTED", "0"), domain(G1))
    assert hosts.alerts() == []
    hosts.passes(TWICE_AFTER)
    assert hosts.alerts() == [(AlertKind.RUNS_TWICE, "g1")]
    hosts.tells("h2", ("STOPPED", "DESTROYED"), domain(G1, "off", "destroyed"))
    assert hosts.alerts() == []


def test_an_alert_has_the_time_at_which_its_cause_began(hosts: Hosts) -> None:
    hosts.now += SECOND
    hosts.fails()
    hosts.now += SECOND
    hosts.answers("h1", domain(G1, "off", "failed"))
    hosts.tells("h1", ("STOPPED", "CRASHED"), domain(G1, "off", "failed"))
    (alert,) = hosts.observed.alerts(hosts.fleet, hosts.now)
    assert alert.since == NOW + SECOND


def test_what_a_lost_host_still_tells_changes_nothing(hosts: Hosts) -> None:
    hosts.fails()
    hosts.loses("h2")
    hosts.answers("h1", domain(G1, "off", "failed"))
    assert hosts.answers("h2", gone(G1)) == []
    assert hosts.tells("h2", ("STARTED", "0"), domain(G1)) == []


def test_a_machine_that_its_host_has_running_again_has_not_crashed(hosts: Hosts) -> None:
    """libvirt restarts it after a panic (`on_crash=restart`): there is nothing to announce."""
    assert hosts.tells("h1", ("CRASHED", "PANICKED"), domain(G1)) == [LookEverywhere(G1)]
    assert hosts.answers("h1", domain(G1)) == []
    assert hosts.answers("h2", gone(G1)) == []
    assert hosts.passes(SUSPECTED_FOR) == []
