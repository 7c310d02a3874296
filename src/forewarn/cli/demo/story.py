"""The demo's fleet, what happens to it, and what must come of it."""

import json
import tomllib
from collections.abc import Callable, Iterable
from datetime import timedelta
from itertools import combinations, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from forewarn.vocabulary import EventStatus

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
REASON: Final = "the new host is not ready"

PREEMPT_AHEAD: Final = timedelta(minutes=12)
"""The least notice of a preemption is 30 s, a third of a second here: too short to see."""

LONGEST_WAIT: Final = timedelta(minutes=60)
"""Of the service's time: twice the notice and the reboot; 40 real seconds."""


class DemoFailed(Exception):  # noqa: N818 - the end of the demo, told in one line
    """Something did not happen as it should."""


def fleet() -> dict[str, Any]:
    """Return the fleet as the operators' API takes it."""
    return tomllib.loads(FLEET)


def settings(folder: Path, port: int) -> str:
    """Return the settings of the service.

    Args:
        folder: For the database and the operators' socket.
        port: The port of the guest plane, on loopback.
    """
    return f"""\
store.path = {json.dumps(str(folder / "forewarn.db"))}
operator.socket = {json.dumps(str(folder / "operator.sock"))}
guest.listener = [{{ address = "127.0.0.1", port = {port} }}]
connector.simulated = {{ freeze_seconds = 120, reboot_seconds = 180, preempt_seconds = 120 }}
clock.scale = {SCALE}
log.format = "console"
"""


class Story:
    """What happens, from the first request to the end of the last operation.

    Args:
        demo: Where it is played.
    """

    def __init__(self, demo: "Demo") -> None:
        self._demo = demo

    def play(self) -> None:
        """Play it all.

        Raises:
            DemoFailed: Something did not happen in time.
        """
        demo = self._demo
        self._pause(2)
        demo.tell("> Reboot of the availability set 'web': one request, domain after domain")
        self._reboot = demo.schedule(event_type="Reboot", scope="web")
        # Nobody approves the last domain: its notice has room for the rest.
        self._until(lambda: len(self._of(self._reboot)) == len(WEB_LEADERS), "the last domain")
        self._pause(1)
        demo.tell(f"> Freeze of the host {HOST}: one request, machines of three scopes")
        self._freeze = demo.schedule(event_type="Freeze", host=HOST, duration_seconds=5)
        self._pause(1)
        demo.tell(f"> Preemption of the low-priority machine {PREEMPTED}")
        not_before = (demo.now + PREEMPT_AHEAD).isoformat()
        self._preempt = demo.schedule(
            event_type="Preempt", machines=[PREEMPTED], not_before=not_before
        )
        self._pause(1)
        demo.tell(f"> Redeploy of {REDEPLOYED}, to be cancelled")
        self._redeploy = demo.schedule(event_type="Redeploy", machines=[REDEPLOYED], source="User")
        self._pause(5)
        demo.cancel(self._redeploy, REASON)
        self._until(lambda: self._over(self._preempt), "the end of the preemption")
        demo.delete(PREEMPTED)
        demo.tell(f"  {PREEMPTED}: is gone")
        self._until(lambda: self._over(self._redeploy), "the cancellation")
        self._until(lambda: self._over(self._freeze), "the end of the freeze")
        self._until(lambda: self._over(self._reboot), "the end of the reboot")
        self._pause(1)

    def verdicts(self) -> list[str]:
        """Return what must hold, and holds.

        Raises:
            DemoFailed: Something does not hold.
        """
        reboots = sorted(self._of(self._reboot), key=lambda operation: operation.announced_at)
        (freeze,), (preempt,) = self._of(self._freeze), self._of(self._preempt)
        (redeploy,) = self._of(self._redeploy)
        for operation in (*reboots, freeze, preempt):
            if operation.status is not EventStatus.COMPLETED:
                raise DemoFailed(f"operation {operation.id} is {operation.status}")
        if redeploy.status is not EventStatus.CANCELED or redeploy.started_at is not None:
            raise DemoFailed(f"the cancelled redeploy {redeploy.id} is {redeploy.status}")
        return [
            judge_nothing_early(self._demo.operations.values()),
            judge_one_domain_at_a_time([*reboots, freeze]),
            judge_announcements(reboots),
            self._judge_approvals(reboots, freeze, preempt),
            "the cancelled redeploy never started; everything else was carried out",
        ]

    def _judge_approvals(
        self, reboots: "list[OperationView]", freeze: "OperationView", preempt: "OperationView"
    ) -> str:
        expected = [*zip(reboots, WEB_LEADERS, strict=True)]
        expected += [(freeze, HOST_LEADERS), (preempt, {PREEMPTED})]
        stopped = self._demo.stopped
        for operation, leaders in expected:
            by = {event.approval.by for event in operation.events if event.approval}
            if not leaders - stopped <= by <= leaders:
                approvers = ", ".join(sorted(by)) or "nobody"
                raise DemoFailed(f"operation {operation.id} was approved by {approvers}")
        if stopped:
            return f"guests approved their events, except on {', '.join(sorted(stopped))}"
        return "web-0 approved at once, web-1 once drained; nobody approved the reboot of web-2"

    def _of(self, number: int) -> "list[OperationView]":
        return [one for one in self._demo.operations.values() if one.maintenance == number]

    def _over(self, number: int) -> bool:
        return all(operation.status.over for operation in self._of(number))

    def _pause(self, minutes: int) -> None:
        until = self._demo.now + timedelta(minutes=minutes)
        self._until(lambda: self._demo.now >= until, "the clock of the service")

    def _until(self, true: Callable[[], bool], what: str) -> None:
        deadline = self._demo.now + LONGEST_WAIT
        while not true():
            if self._demo.now > deadline:
                raise DemoFailed(f"waited in vain for {what}")
            self._demo.look()


def judge_nothing_early(operations: "Iterable[OperationView]") -> str:
    """Check that nothing started without approval before its NotBefore."""
    for operation in operations:
        started = operation.started_at
        if started is None or started >= operation.not_before:
            continue
        approvals = [event.approval for event in operation.events]
        if not all(approval and approval.at <= started for approval in approvals):
            raise DemoFailed(f"operation {operation.id} started before its time, unapproved")
    return "nothing started before its NotBefore without the approval of its guests"


def judge_one_domain_at_a_time(operations: "Iterable[OperationView]") -> str:
    """Check that no two update domains of 'web' were down at once."""
    spans = sorted(
        (operation.started_at, operation.ended_at, operation.id, event.update_domain)
        for operation in operations
        for event in operation.events
        if operation.started_at and operation.ended_at and event.scope == "web"
    )
    for (_, ended, one, domain), (began, _, other, another) in combinations(spans, 2):
        if began < ended and domain != another:
            raise DemoFailed(f"operations {one} and {other} were down at once")
    return "no two update domains of 'web' were down at once"


def judge_announcements(reboots: "list[OperationView]") -> str:
    """Check that each domain was announced when the one before it had ended well."""
    for before, reboot in pairwise(sorted(reboots, key=lambda one: one.announced_at)):
        ended = before.ended_at if before.status is EventStatus.COMPLETED else None
        if ended is None or reboot.announced_at < ended:
            raise DemoFailed(f"{reboot.id} was announced before {before.id} had ended well")
    return "each update domain was announced when the one before it had ended well"
