"""What surveys of the hypervisors mean: host_observations.txt, and two surveys compared."""

import pickle
from typing import Any

import msgspec
import pytest

from builders import NOW
from forewarn.maintenance.fleet_import import Domain
from forewarn.maintenance.host_observations import (
    Action,
    FleetState,
    Observations,
    RaiseUnforeseen,
    RecordHost,
    Remark,
    Survey,
)
from forewarn.maintenance.model import Machine
from store import values
from stories import Told, elapsed, elapsed_at, listed, stories_beside

IDS = {f"g{n}": f"00000000-0000-4000-8000-00000000000{n}" for n in (1, 2)}


class HostStory(Told):
    """Two hosts that are surveyed, and a fleet with g1 on h1 and g2 on h2."""

    def __init__(self) -> None:
        self.now = NOW
        self.begun: dict[str, int] = {}
        self.raised: list[RaiseUnforeseen] = []
        self.state = FleetState({}, ())
        self.unwatched()
        self.fleet("g1:h1", "g2:h2")
        for host, name in (("h1", "g1"), ("h2", "g2"), ("h1", "g1")):
            self.surveyed(host, self.observed.begin(), name)

    def unwatched(self) -> None:
        """No host was surveyed before."""
        self.observed = Observations(("h1", "h2"), NOW)

    def fleet(self, *places: str) -> None:
        machines = dict(self.state.machines)
        for name, host in (place.split(":") for place in places):
            machines[IDS[name]] = machine(name, host)
            if host == "removed":
                del machines[IDS[name]]
        self.state = msgspec.structs.replace(self.state, machines=machines)

    def busy(self, *names: str) -> None:
        self.state = msgspec.structs.replace(self.state, busy=names)

    def rebooting(self, *hosts: str) -> None:
        self.state = msgspec.structs.replace(self.state, rebooting=hosts)

    def rebooted(self, host: str) -> None:
        self.observed.host_rebooted(host, self.now)

    def lose(self, host: str, before: str = "") -> None:
        assert self.observed.lost(host, "gone", self.now) is not bool(before)

    def begin(self, name: str) -> None:
        self.begun[name] = self.observed.begin()

    def survey(self, host: str, *domains: str, **expected: str) -> None:
        self._compare(self.surveyed(host, self.observed.begin(), *domains), **expected)

    def answer(self, begun: str, host: str, *domains: str, **expected: str) -> None:
        """The answer to a survey that was asked for before."""
        self._compare(self.surveyed(host, self.begun[begun], *domains), **expected)

    def differ(self, before: str, after: str, follows: str) -> None:
        """Two surveys of a host that was not watched before: what follows from the second."""
        self.unwatched()
        for one in (before, after):
            names = [] if one == "nothing" else [one]
            found = self.surveyed("h1", self.observed.begin(), *names)
        assert [type(action).__name__.lower() for action in found] == (
            [] if follows == "nothing" else [follows]
        )

    def crash(self, **expected: str) -> None:
        """g1 runs on h1, fails there, and all hosts are asked; its crash is recorded."""
        self.surveyed("h1", self.observed.begin(), "g1")
        self.survey("h1", "g1:off:failed", asks="all")
        self.survey("h2", "g2")
        self.survey("h1", "g1:off:failed", **expected)
        self.record()

    def record(self) -> None:
        for action in self.raised:
            self.observed.recorded(action, self.now)

    def unknown(self, host: str, *names: str) -> None:
        assert self.observed.unknown(host, self.state) == [domain(name).uuid for name in names]

    def alerts(self, *expected: str, since: str = "") -> None:
        found = [*self.observed.alerts(self.state, self.now)]
        assert [f"{alert.kind} {alert.about}" for alert in found] == [*expected]
        assert not since or [elapsed_at(alert.since) for alert in found] == [elapsed(since)]

    def surveyed(self, host: str, number: int, *domains: str) -> list[Action]:
        seen = [*map(domain, domains)]
        return self.observed.surveyed(host, number, seen, self.state, self.now)

    def _compare(
        self,
        actions: list[Action],
        asks: str = "",
        moves: str = "",
        raises: str = "",
        why: str = "",
        remarks: str = "",
        watched: str = "",
    ) -> None:
        self.raised = [action for action in actions if isinstance(action, RaiseUnforeseen)]
        expected: list[Action] = [Survey("" if host == "all" else host) for host in listed(asks)]
        for name, host in (place.split(":") for place in listed(moves)):
            expected.append(RecordHost(self.state.machines[IDS[name]], host))
        assert [f"{each.machine.name}:{each.host}" for each in self.raised] == listed(raises)
        assert not why or [each.why for each in self.raised] == [why]
        told = [action for action in actions if isinstance(action, Remark)]
        assert [each.names for each in told if each.names] == ([(remarks,)] if remarks else [])
        assert any(not each.names for each in told) is bool(watched)
        assert [each for each in actions if isinstance(each, Survey | RecordHost)] == expected


def machine(name: str, host: str) -> Machine:
    return values.machine(name, host=host, vm_id=IDS[name])


def domain(told: str) -> Domain:
    """A domain, told as `name:state:reason@run`."""
    told, _, run = told.partition("@")
    name, state, reason, *_ = [*told.split(":"), "", ""]
    state = state or "running"
    tagged = reason == "tagged"
    return Domain(
        uuid=IDS.get(name, IDS["g1"][:-1] + "9"),
        name=name,
        state=state,
        reason="" if tagged else reason,
        run=-1 if state == "off" else int(run or 1),
        tagged=tagged,
    )


@pytest.mark.parametrize("rows", stories_beside(__file__, "host_observations.txt"))
def test_the_story_holds(rows: list[tuple[int, str]]) -> None:
    assert HostStory().play("host_observations.txt", rows)


class Counted(dict[str, Machine]):
    """The machines of a fleet, which count the looks at them."""

    looks = 0

    def get(self, vm_id: str, default: Any = None) -> Any:
        self.looks += 1
        return super().get(vm_id, default)


def test_alerts_look_at_no_domain_that_is_as_it_should_be() -> None:
    story = HostStory()
    story.survey("h1", "g1:off:failed", asks="all")
    numbers = [f"{number:032d}" for number in range(1000)]
    others = [Domain(uuid=each, name=each, state="running", run=1) for each in numbers]
    story.observed.surveyed("h1", 9, [domain("g1:off:failed"), *others], story.state, NOW)
    machines = Counted(story.state.machines)
    story.state = msgspec.structs.replace(story.state, machines=machines)
    story.alerts("crashed g1")
    assert machines.looks < 10


def test_domains_of_others_that_come_and_go_are_not_remembered() -> None:
    story = HostStory()
    before = len(pickle.dumps(story.observed))
    for number in range(1000):
        passing = Domain(uuid=f"{number:032d}", name=f"job-{number}", state="running", run=1)
        seen = [domain("g1"), passing]
        story.observed.surveyed("h1", story.observed.begin(), seen, story.state, NOW)
    story.survey("h1", "g1")
    assert len(pickle.dumps(story.observed)) < before + 100
