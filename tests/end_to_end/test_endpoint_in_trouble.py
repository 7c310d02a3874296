"""An endpoint that is away, refuses, or loses an event: the agent sees and approves in the end."""

from collections.abc import Callable

from end_to_end.agents import DONE, Agent, Endpoint, event, until
from forewarn.agent.daemon import Poller
from forewarn.agent.decider import ApprovalAnswered, ApproveEvent
from forewarn.client.event import Event
from ports import free_port


def test_an_agent_that_finds_no_endpoint_at_its_start_waits_for_it(
    agents: Callable[..., Agent],
) -> None:
    port = free_port()
    agent = agents(url=f"http://127.0.0.1:{port}").start()
    agent.until(lambda: "no connection" in agent.status().get("trouble", ""))
    assert agent.page("/healthz")[0] == 200, "to start it anew would help nobody"
    with Endpoint(port) as cloud:
        cloud.show(event())
        agent.expect(*DONE)
        agent.until(lambda: agent.phase() == "Approved")
        assert agent.status()["trouble"] == ""


def test_an_approval_that_an_endpoint_cannot_take_is_given_back_in_time(cloud: Endpoint) -> None:
    """So the other machines are asked anew: what they said may not be so any more."""
    told: list[object] = []
    looking = Poller(f"{cloud.url}/vm/web-0", "web-0", told.append)
    seen = Event(
        event_id="E1",
        status="Scheduled",
        event_type="Reboot",
        resource_type="VirtualMachine",
        resources=("web-0", "web-1"),
        not_before=None,
    )
    cloud.show(event())
    cloud.approval_status = 503
    looking.approve(ApproveEvent(7, seen))
    until(lambda: told)
    assert told == [ApprovalAnswered(7, None)]
    assert len(cloud.approved) > 1, "it was tried more than once"
    looking.close()


def test_a_fault_of_the_agents_own_in_looking_is_trouble_until_the_next_answer(
    cloud: Endpoint,
) -> None:
    seen: list[tuple[bool, str]] = []

    def tell(_: object) -> None:
        seen.append((looking.is_answered, looking.trouble))
        if len(seen) == 1:
            raise ValueError("as no look does")

    looking = Poller(f"{cloud.url}/vm/web-0", "web-0", tell)
    assert not looking.is_answered
    looking.start()
    until(lambda: "as no look does" in looking.trouble)
    assert not looking.is_answered
    until(lambda: len(seen) > 1)
    assert seen[:2] == [(True, "")] * 2
    looking.close()
