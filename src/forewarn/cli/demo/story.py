"""The demo's fleet, what happens to it, and what must come of it."""

import json
import tomllib
from collections.abc import Iterable
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from forewarn.cli.exits import ExitStatus, Failed
from forewarn.vocabulary import EventStatus, EventType

if TYPE_CHECKING:
    from forewarn.cli.demo.show import Demo
    from forewarn.server.operator.schemas import OperationView

SCALE: Final = 90
"""The service's seconds in one real second: fifteen minutes' notice last ten seconds."""

NEWEST: Final = "2020-07-01"
PREVIEW: Final = "2017-03-01"


class Guest(NamedTuple):
    """A machine and the program in it."""

    machine: str
    domain: str
    """Its scope and update domain."""
    role: str
    """See `guest`."""
    shown: str
    """The role in words."""
    drain_seconds: float = 0.0
    """Real seconds."""
    version: str = NEWEST


GUESTS: Final = (
    Guest("web-0", "web/0", "approves", "approves at once"),
    Guest("web-3", "web/0", "approves", "follows web-0"),
    Guest("web-1", "web/1", "drains", "drains, approves", 3.0),
    Guest("web-4", "web/1", "drains", "follows web-1", 3.0),
    Guest("web-2", "web/2", "watches", "never approves"),
    Guest("web-5", "web/2", "watches", "never approves"),
    Guest("batch_0", "batch/0", "drains", "saves, approves", 1.5),
    Guest("batch_1", "batch/1", "drains", "saves, approves", 1.5),
    Guest("FrontEnd_IN_0", "shop/0", "approves", f"speaks {PREVIEW}", 0.0, PREVIEW),
    Guest("FrontEnd_IN_1", "shop/1", "approves", f"speaks {PREVIEW}", 0.0, PREVIEW),
    Guest("bastion", "bastion/0", "drains", "drains for long", 60.0),
)
"""In the order of the table."""

FLEET: Final = """
machine = [{ name = "bastion", host = "h7" }]
[[availability_set]]
name = "web"
update_domains = 3
machines = [
  { name = "web-0", host = "h1" }, { name = "web-1", host = "h2" }, { name = "web-2", host = "h3" },
  { name = "web-3", host = "h4" }, { name = "web-4", host = "h5" }, { name = "web-5", host = "h6" },
]
[[scale_set]]
name = "batch"
priority = "low"
machines = [{ index = 0, host = "h1" }, { index = 1, host = "h2" }]
[[cloud_service]]
name = "shop"
roles = [{ name = "FrontEnd", instances = [{ host = "h1" }, { host = "h2" }] }]
"""

WEB_LEADERS: Final = ({"web-0"}, {"web-1"}, set[str]())
"""Who approves the reboot of each update domain; nobody the last."""

HOST: Final = "h1"
HOST_LEADERS: Final = {"web-0", "batch_0", "FrontEnd_IN_0"}
PREEMPTED: Final = "batch_1"
REDEPLOYED: Final = "bastion"

PREEMPT_AHEAD: Final = timedelta(minutes=13)
"""The least notice of a preemption is 30 s, a third of a second here: too short to see."""


def fleet() -> dict[str, Any]:
    """Return the fleet as the operators' API takes it."""
    return tomllib.loads(FLEET)


def settings(folder: Path, port: int) -> str:
    """Return the settings of the service: its files' folder, and the guest plane's port."""
    return f"""\
store.path = {json.dumps(str(folder / "forewarn.db"))}
operator.socket = {json.dumps(str(folder / "operator.sock"))}
guest.listener = [{{ address = "127.0.0.1", port = {port} }}]
connector.simulated = {{ freeze_seconds = 120, reboot_seconds = 180, preempt_seconds = 120 }}
clock.scale = {SCALE}
log.format = "console"
"""


def failed(what: str) -> Failed:
    """Return the demo's end: something did not happen as it should."""
    return Failed(ExitStatus.DEMO_FAILED, f"the demo went wrong: {what}")


def play(demo: "Demo") -> list[str]:
    """Play it all, from the first request to the last end; return what must hold, and holds."""

    def pause(minutes: int) -> None:
        end = demo.now + timedelta(minutes=minutes)
        demo.until(lambda: demo.now >= end, "the clock of the service")

    def schedule(what: str, **request: object) -> int:
        pause(1)
        demo.tell(f"> {what}")
        answer = demo.operator.post("/v1/maintenance", **{"by": "demo", **request}).tree()
        return int(answer["maintenance"]["number"])

    def ended(number: int) -> None:
        demo.until(lambda: all(one.status.over for one in demo.of(number)), f"{number} to end")

    reboot = schedule(
        "Reboot of the availability set 'web': one request, domain after domain",
        event_type="Reboot",
        scope="web",
    )
    # Nobody approves the last domain: its notice has room for the rest. The freeze is queued behind
    # it, for it concerns another domain of the set.
    demo.until(lambda: len(demo.of(reboot)) == len(WEB_LEADERS), "the last domain")
    freeze = schedule(
        f"Freeze of the host {HOST}: one request, machines of three scopes",
        event_type="Freeze",
        host=HOST,
        duration_seconds=5,
    )
    preempt = schedule(
        f"Preemption of the low-priority machine {PREEMPTED}",
        event_type="Preempt",
        machines=[PREEMPTED],
        not_before=(demo.now + PREEMPT_AHEAD).isoformat(),
    )
    redeploy = schedule(
        f"Redeploy of {REDEPLOYED}, to be cancelled",
        event_type="Redeploy",
        machines=[REDEPLOYED],
        source="User",
    )
    pause(5)
    reason = "the new host is not ready"
    demo.operator.post("/v1/cancellations", reference=str(redeploy), reason=reason, by="demo")
    for number in (preempt, redeploy, freeze, reboot):
        ended(number)
    pause(1)
    return verdicts(demo, demo.of(reboot), demo.of(freeze), demo.of(preempt), demo.of(redeploy))


def verdicts(demo: "Demo", *maintenances: "list[OperationView]") -> list[str]:
    """Return what must hold of reboot, freeze, preemption and redeploy, and holds."""
    reboots, freezes, preemptions, redeploys = maintenances
    reboots = sorted(reboots, key=lambda operation: operation.announced_at)
    expected = [*zip(reboots, WEB_LEADERS, strict=True)]
    expected += [(operation, HOST_LEADERS) for operation in freezes]
    expected += [(operation, {PREEMPTED}) for operation in preemptions]
    for operation, leaders in expected:
        if operation.status is not EventStatus.COMPLETED:
            raise failed(f"operation {operation.id} is {operation.status}")
        by = {event.approval.by for event in operation.events if event.approval}
        if not leaders - demo.stopped <= by <= leaders:
            approvers = ", ".join(sorted(by)) or "nobody"
            raise failed(f"operation {operation.id} was approved by {approvers}")
    for operation in redeploys:
        if operation.status is not EventStatus.CANCELED or operation.started_at:
            raise failed(f"the cancelled redeploy {operation.id} is {operation.status}")
    if complaints := [*judge(demo.operations.values()), *judge_steps([*reboots, *freezes])]:
        raise failed(complaints[0])
    stopped = ", ".join(sorted(demo.stopped))
    return [
        "nothing started before its NotBefore without the approval of its guests",
        "no two update domains of one scope were down at once",
        "each update domain was announced when the one before it had ended well",
        f"guests approved their events, except on {stopped}"
        if stopped
        else "web-0 approved at once, web-1 once drained; nobody approved the reboot of web-2",
        "the cancelled redeploy never started; everything else was carried out",
    ]


def judge(operations: "Iterable[OperationView]") -> list[str]:
    """Return what was wrong with operations that are over: an early start, two domains down."""
    from forewarn.testing.trace import Trace

    trace = Trace()
    for operation in operations:
        began, ended = operation.started_at, operation.ended_at
        if began is None or ended is None:
            continue
        approvals = [event.approval for event in operation.events]
        approved = all(approval and approval.at <= began for approval in approvals)
        trace.started(operation.id, began, operation.not_before, approved=approved)
        # A preemption makes room, whatever else is down.
        for event in operation.events if operation.event_type is not EventType.PREEMPT else ():
            trace.down(operation.id, event.scope, event.update_domain, began, ended)
    return trace.complaints


def judge_steps(steps: "Iterable[OperationView]") -> list[str]:
    """Return which of one scope's domains were announced before the one before had ended well."""
    return [
        f"{step.id} was announced before {before.id} had ended well"
        for before, step in pairwise(steps)
        if before.status is not EventStatus.COMPLETED
        or before.ended_at is None
        or step.announced_at < before.ended_at
    ]
