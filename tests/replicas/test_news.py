"""Every replica tells the same news, also of what others do, and a reader may change replicas.

They share webhooks: one sends, and another goes on where it was killed.
"""

import http.server
import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

import patience
import postgres
from forewarn.cli.exits import Failed
from forewarn.cli.follow import EventParser
from forewarn.cli.operator_client import OperatorClient
from forewarn.maintenance import news
from forewarn.store import postgresql
from kills.cluster import Cluster
from kills.processes import Service
from replicas import stage
from server.receiver import receiving

pytestmark = [pytest.mark.usefixtures("postgresql"), pytest.mark.timeout(300)]


class Follower:
    """Follows the news at replicas in turns: each time the stream ends, at the next one."""

    def __init__(self, *replicas: Service) -> None:
        self.items: list[dict[str, Any]] = []
        self.last_id = "0"
        self._replicas = itertools.cycle(replicas)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def ids(self) -> list[str]:
        return [item["id"] for item in self.items]

    def has_finished(self, count: int) -> bool:
        return [item["type"] for item in self.items].count("maintenance.finished") >= count

    def end(self) -> None:
        self._ending.set()

    def _run(self) -> None:
        while not self._ending.is_set():
            replica = next(self._replicas)
            parser = EventParser(self.last_id)
            client = OperatorClient(address=str(replica.socket))
            try:
                for piece in client.stream("/v1/stream", 30, self.last_id):
                    for event in parser.feed(piece):
                        self.items.append({"id": event.id, **json.loads(event.data)})
                        self.last_id = event.id
                    self.last_id = parser.last_id
                    if self._ending.is_set():
                        return
            except Failed:
                self._ending.wait(0.05)


@contextmanager
def following(*replicas: Service) -> Iterator[Follower]:
    follower = Follower(*replicas)
    try:
        yield follower
    finally:
        follower.end()


def test_every_replica_tells_the_same_also_when_one_is_killed(
    tmp_path: Path, database: postgres.Postgres
) -> None:
    url = database.create_database("news")
    with Cluster(tmp_path, url, 1, stage.TWO, held=True, checked=False) as cluster:
        first, second = stage.prepare(cluster)
        with following(first) as at_first, following(first, second) as moving:
            for machine in stage.MACHINES[:3]:
                stage.carry_out(machine, second, first)
            stage.until(lambda: at_first.has_finished(3) and moving.has_finished(3))
            assert moving.ids() == at_first.ids()
            seen = len(moving.items)
            first.kill()
            first.reap()
            for machine in stage.MACHINES[3:6]:
                stage.carry_out(machine, second, second)
            stage.until(lambda: moving.has_finished(6))
            assert len(moving.items) > seen
            with following(second) as whole:
                stage.until(lambda: len(whole.items) >= len(moving.items))
                assert whole.items[: len(moving.items)] == moving.items
        assert len({*moving.ids()}) == len(moving.items)
        assert "gap" not in {item["type"] for item in moving.items}


# Webhooks.

SCALE: Final = 20.0
"""Of the clock: the turn of a replica that was killed is over after a second and a half."""

KILLS: Final = 3


def work(replica: Service, machine: str) -> str:
    """Leave some news behind; return the number of the maintenance that it ends with."""
    number = stage.request(replica, machine).partition(".")[0]
    replica.ask("POST", "/v1/cancellations", {"references": [number]})
    return number


def numbers_of_all_news(url: str, after: int) -> list[str]:
    store = postgresql.open_store(url)
    try:
        with store.read() as reading:
            found = reading.news_after(after, 10_000)
    finally:
        store.close()
    return [told.id for record in found for told in news.numbered(record.sequence, record.items)]


def test_when_the_replica_that_sends_is_killed_the_other_one_goes_on(
    tmp_path: Path, database: postgres.Postgres
) -> None:
    url = database.create_database("webhooks")
    with receiving() as receiver, Cluster(tmp_path, url, 1, stage.TWO, scale=SCALE) as cluster:
        stage.prepare(cluster)
        body = {"name": "ours", "url": receiver.url()}
        cluster.ask("POST", "/v1/webhooks", body)

        def hang(_: http.server.BaseHTTPRequestHandler) -> None:
            receiver.over.wait(patience.SECONDS)

        for turn in range(KILLS):
            replicas = [*cluster.replicas.values()]
            lost, other = replicas[turn % 2], replicas[1 - turn % 2]
            before = len(receiver.got())
            receiver.answers["/hook"] = hang
            work(lost, stage.MACHINES[turn])  # who commits news sends it
            receiver.awaited(before + 1)
            lost.kill()
            lost.reap()
            receiver.answers.clear()
            number = int(work(other, stage.MACHINES[turn + KILLS]))

            def got(number: int = number) -> bool:
                return any(
                    one.json["type"] == news.NewsType.MAINTENANCE_FINISHED
                    and one.json["data"]["maintenance"] == number
                    for one in receiver.got()
                )

            stage.until(got)
            lost.start(fresh=False)
            lost.wait_until_ready()
        received = [one.json["id"] for one in receiver.got()]
        for replica in cluster.replicas.values():
            replica.end()
    wanted = numbers_of_all_news(url, int(received[0].partition("-")[0]) - 1)
    assert list(dict.fromkeys(received)) == wanted
    assert len(received) <= len(wanted) + KILLS  # side by side they would send more
