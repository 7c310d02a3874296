"""Machines move to another host while they run, and no poll fails but one that is under way."""

from typing import Any

from kills.processes import let_pass
from relays.process import until
from relays.production import Production

BEFORE_IT_RESUMES = 0.5
"""Seconds of a move before the machine goes on elsewhere: to copy its memory takes longer."""


def move(site: Production, machine: str, to_host: str) -> None:
    """Be the hypervisor: the machine goes on at another host while its event is Started.

    It is between two polls then. A request that is under way is lost in any move, because its
    connection ends at the host before, and says nothing about relays.
    """
    site.event(machine, "Started")
    let_pass(BEFORE_IT_RESUMES)
    with site.machines[machine].polling:
        site.site.move(machine, to_host)


def operations(site: Production) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = site.ask("GET", "/v1/history?limit=1000")["operations"]
    return found


def test_a_host_is_drained_and_filled_again_and_no_machine_misses_a_poll(site: Production) -> None:
    site.apply({"web-0": "h1", "web-1": "h1", "db": "h2"})
    for host in ("h1", "h2"):
        site.relay(host)
    machines = site.poll("web-0", "web-1", "db")
    site.ask("POST", "/v1/hosts/drain", {"hosts": ["h1"], "reboot": True})
    for to_host in ("h2", "h1"):
        for machine in ("web-0", "web-1"):
            assert site.machines[machine].approve(site.event(machine)["EventId"]) == 200
        for machine in ("web-0", "web-1"):
            move(site, machine, to_host)
        for machine in ("web-0", "web-1"):
            until(lambda: not site.machines[machine].events())  # noqa: B023 - called at once
    until(lambda: site.ask("GET", "/v1/hosts/h1")["host"]["status"] == "up")
    assert {each["status"] for each in operations(site)} == {"Completed"}
    assert len(operations(site)) == 4
    assert [machine.failed() for machine in machines] == [[]] * 3
    assert site.judge() == []


def test_a_machine_whose_target_the_connector_chose_is_found_where_it_goes_on(
    site: Production,
) -> None:
    site.apply({"mover": "g1", "stayer": "g2"})
    for host in ("g1", "g2"):
        site.relay(host)
    (machine,) = site.poll("mover")
    event_type = {"event_type": "Freeze", "live_migration": True, "machines": ["mover"]}
    site.ask("POST", "/v1/maintenances", event_type)
    assert machine.approve(site.event("mover")["EventId"]) == 200
    move(site, "mover", "g2")
    until(lambda: not machine.events(), lambda: machine.polls[-2:])
    assert site.ask("GET", "/v1/fleet/machines/mover")["host"] == "g2"
    polls = len(machine.polls)
    until(lambda: len(machine.polls) > polls + 5)  # by the host that it is on now
    assert machine.failed() == []
    assert site.judge() == []
