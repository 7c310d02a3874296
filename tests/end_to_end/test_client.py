"""The client library against the real service: five hundred watches over kills."""

import asyncio
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

import patience
from end_to_end.agents import until
from end_to_end.running import Running, lasting
from forewarn.client.aio import AsyncClient
from forewarn.client.event import Change
from forewarn.client.session import Pace
from ports import answers

SCOPES = 4
ROUNDS = 2
PACE = Pace(longest_backoff_seconds=1.0)
"""The defaults, but for clients that are not to be away longer than an act lasts."""

FLEET = "\n".join(
    f"""
[[availability_set]]
name = "set-{scope}"
update_domains = 1
machines = [{", ".join(f'{{ name = "m{scope}-{n}", host = "h{scope}" }}' for n in range(ROUNDS))}]
"""
    for scope in range(SCOPES)
)


class Service(Running):
    """A service with the fleet above, which can be killed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, connector=lasting(folder))
        self._act = folder / "act"

    def hold(self) -> None:
        """Let the acts that begin from now on last until `let_go`."""
        self._act.touch()

    def let_go(self) -> None:
        self._act.unlink()

    def again(self) -> None:
        """Start it again after a kill; return when guests are served."""
        self.start("env", awaits=False)  # as slowly as it does start: every watch notices
        until(lambda: answers(self.guest_port), self.log.read_text)

    def reboot(self, machine: str) -> None:
        """Ask for maintenance, at the operators' socket."""
        wanted = {"event_type": "Reboot", "machines": [machine]}
        answer = self.operator.ask("POST", "/v1/maintenances", wanted)
        assert answer.status == 201, answer.body

    def url(self, machine: str) -> str:
        return f"http://127.0.0.1:{self.guest_port}/vm/{machine}"


class Watching:
    """Many clients in one loop, and what each was told."""

    def __init__(self, service: Service, count: int, folder: Path) -> None:
        self.told: list[list[tuple[str, str]]] = [[] for _ in range(count)]
        self.folder = folder
        self.troubles: Counter[str] = Counter()
        self.clients = [
            AsyncClient(service.url(f"m{n % SCOPES}-{n % ROUNDS}"), pace=PACE) for n in range(count)
        ]
        self.tasks = [asyncio.ensure_future(self._watch(n)) for n in range(count)]
        self._moved = asyncio.Event()

    async def _watch(self, number: int) -> None:
        """Watch; go on in another watch, from its state, after every third change."""
        file = self.folder / f"state-{number}"
        while True:
            watch = self.clients[number].watch(since=file, on_trouble=self._trouble)
            async for change in watch:
                await watch.done()
                self._note(number, change)
                if len(self.told[number]) % 3 == 0:
                    break
            else:
                return
            watch.close()

    def _trouble(self, trouble: Any) -> None:
        self.troubles[trouble.reason] += 1

    def _note(self, number: int, change: Change) -> None:
        self.told[number].append((change.event.event_id, change.kind))
        self._moved.set()

    async def until(self, kind: str, count: int) -> None:
        """Wait until each client was told so many changes of a kind."""
        async with asyncio.timeout(2 * patience.SECONDS):
            while not all(sum(told == kind for _, told in each) >= count for each in self.told):
                self._moved.clear()
                await self._moved.wait()

    async def close(self) -> None:
        for client in self.clients:
            await client.close()
        await asyncio.gather(*self.tasks)


@pytest.mark.parametrize(
    ("count", "rounds"), [(40, 1), pytest.param(500, ROUNDS, marks=pytest.mark.soak)]
)
def test_watches_miss_nothing_while_the_service_is_killed(
    folder: Path, count: int, rounds: int
) -> None:
    service = Service(folder)

    def schedule(number: int) -> None:
        for scope in range(SCOPES):
            service.reboot(f"m{scope}-{number}")

    async def run() -> Watching:
        watching = Watching(service, count, folder)
        for number in range(rounds):
            await asyncio.to_thread(schedule, number)
            if number == rounds - 1:  # at once, while the news is on its way
                await asyncio.to_thread(service.kill)
                await asyncio.to_thread(service.again)
            await watching.until("appeared", number + 1)
            await asyncio.to_thread(service.kill)
            service.hold()
            leaders = watching.clients[:SCOPES]
            events = [watching.told[scope][-1][0] for scope in range(SCOPES)]
            approvals = [
                asyncio.ensure_future(client.approve(event))
                for client, event in zip(leaders, events, strict=True)
            ]
            await asyncio.to_thread(service.again)
            await asyncio.gather(*approvals)
            await watching.until("started", number + 1)
            await asyncio.to_thread(service.kill)
            await asyncio.to_thread(service.again)
            service.let_go()
            await watching.until("gone", number + 1)
        await watching.close()
        return watching

    with service:
        service.apply(FLEET)
        watching = asyncio.run(run())
        approvals = service.document("history", "--all")["operations"]
    sequences: Counter[str] = Counter()
    for told in watching.told:
        by_event = defaultdict(list)
        for event_id, kind in told:
            if kind != "updated":  # notice is longer after an outage, for those who saw the shorter
                by_event[event_id].append(kind)
        sequences.update(" ".join(kinds) for kinds in by_event.values())
    assert sequences == {"appeared started gone": count * rounds}
    assert len(approvals) == SCOPES * rounds
    assert watching.troubles["over"] >= count
