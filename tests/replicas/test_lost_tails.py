"""An asynchronous standby is promoted that lacks the last commits: the loss is noticed and told."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from kills.cluster import Cluster
from kills.processes import Service
from replicas import stage
from replicas.pair import Pair
from replicas.stage import OK

OVER: Final = "m0"
"""Approved and carried out by the time of the loss."""

RUNNING: Final = "m1"
"""Approved, and being carried out."""

GONE: Final = "m2"
"""Asked for in what is lost."""

NEXT: Final = "m3"
"""Asked for afterwards."""

PROMOTIONS: Final = 3

pytestmark = [pytest.mark.usefixtures("postgresql"), pytest.mark.timeout(300)]


def runs(cluster: Cluster, machine: str) -> list[str]:
    """Return what the program did to a machine."""
    return [run["what"] for run in cluster.runs() if run["machine"] == machine]


@contextmanager
def watched(cluster: Cluster, machines: tuple[str, ...]) -> Iterator[None]:
    """Have guests of these machines read at every replica; judge what they read."""
    with ExitStack() as guests:
        read = {
            (name, machine): guests.enter_context(stage.reading(replica, machine))
            for name, replica in cluster.replicas.items()
            for machine in machines
        }
        yield
    for machine in machines:  # a number has one content, whoever is asked
        at = {name: read[name, machine] for name in cluster.replicas}
        assert stage.complaints(at) == [], machine
        assert all(reads.documents for reads in at.values())


def wait_for_runs(cluster: Cluster, machine: str, number: int) -> None:
    """Return when the program has noted so much of a machine."""
    stage.until(lambda: len(runs(cluster, machine)) == number)


def wait_for_news(replica: Service, told: list[dict[str, Any]]) -> None:
    """Return when a replica tells of another loss than the last one."""
    stage.until(lambda: stage.alerts(replica, "lost-changes") not in ([], told))


def wait_for_alert(replica: Service, kind: str, about: str) -> None:
    """Return when there is one alert of a kind, and it is about this."""
    stage.until(lambda: [alert["about"] for alert in stage.alerts(replica, kind)] == [about])


def lose_tail(pair: Pair, cluster: Cluster, replicas: Sequence[Service]) -> tuple[str, str]:
    """Lose an approval that was carried out, one that is, and a request; judge what follows.

    Returns:
        The operation that was lost, and one that was asked for afterwards.
    """
    first, second, third = replicas
    before = {machine: len(runs(cluster, machine)) for machine in stage.MACHINES}
    over, running = stage.request(first, OVER), stage.request(first, RUNNING)
    events = {machine: stage.announced(third, machine) for machine in (OVER, RUNNING)}
    read = {machine: third.document(machine) for machine in (OVER, RUNNING)}
    pair.wait_until_standby_has_all()
    with watched(cluster, (OVER, RUNNING, GONE, NEXT)):
        pair.hold_back_standby()
        assert first.approve(OVER, events[OVER]["EventId"]) == OK
        stage.complete(second, OVER, over)
        cluster.hold.touch()
        assert second.approve(RUNNING, events[RUNNING]["EventId"]) == OK
        wait_for_runs(cluster, RUNNING, before[RUNNING] + 1)
        gone = stage.request(third, GONE)
        assert len({stage.announced(each, GONE)["EventId"] for each in replicas}) == 1
        told = stage.alerts(first, "lost-changes")
        pair.lose_primary()
        for replica in replicas:
            wait_for_news(replica, told)
        cluster.wait_until_ready()
        cluster.hold.unlink()
        wait_for_runs(cluster, RUNNING, before[RUNNING] + 2)

        # What was lost is not there any more, and what is there has higher numbers.
        assert stage.operation(second, gone) is None
        for replica in replicas:
            assert replica.document(GONE)["Events"] == []
            for machine, old in read.items():
                document = replica.document(machine)
                assert document["Events"] == old["Events"]
                assert document["DocumentIncarnation"] > old["DocumentIncarnation"] + 1

        # Approved again, it is not done again: an operator is asked.
        for machine, operation in ((OVER, over), (RUNNING, running)):
            assert third.approve(machine, events[machine]["EventId"]) == OK
            wait_for_alert(first, "unknown", operation)
            body = {"references": [operation], "verdict": "succeeded"}
            first.ask("POST", "/v1/resolutions", body)
            stage.complete(second, machine, operation)
            assert len(runs(cluster, machine)) == before[machine] + 2

        # New maintenance goes on.
        made = stage.request(second, NEXT)
        assert first.approve(NEXT, stage.announced(third, NEXT)["EventId"]) == OK
        stage.complete(third, NEXT, made)
        assert len(runs(cluster, NEXT)) == before[NEXT] + 2
    return gone, made


def test_what_a_promoted_standby_lacks_is_told_and_nothing_is_done_twice(tmp_path: Path) -> None:
    with (
        Pair(synchronous=False) as pair,
        Cluster(tmp_path, pair.url, 1, held=True, checked=False) as cluster,
    ):
        replicas = stage.prepare(cluster)
        names = [*lose_tail(pair, cluster, replicas)]
        for promotion in range(1, PROMOTIONS):
            pair.add_standby()
            turned = replicas[promotion:] + replicas[:promotion]
            names += lose_tail(pair, cluster, turned)
        assert len({*names}) == len(names)  # no name was given again
        assert len(cluster.ask("GET", "/v1/history")["operations"]) == 3 * PROMOTIONS
