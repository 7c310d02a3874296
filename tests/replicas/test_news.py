"""Every replica tells the same news, also of what others do, and a reader may change replicas."""

import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import postgres
from forewarn.cli.exits import Failed
from forewarn.cli.follow import EventParser
from forewarn.cli.operator_client import OperatorClient
from kills.cluster import Cluster
from kills.processes import Service
from replicas import stage

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
