"""The relay before a service in stories: what guests are answered, whatever becomes of it."""

import asyncio
import inspect
import itertools
import json
import ssl
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

import patience
from authority import Authority
from forewarn.clock import SystemClock
from forewarn.maintenance.model import Changes
from forewarn.protocol import codec
from forewarn.relay import cache
from forewarn.relay.relay import PREFIX, HostRelay
from forewarn.server import relay_feed
from forewarn.server.relay_feed import GuestRules
from guest import room
from relay import running
from relay.running import AheadClock, Running
from relay.standin import Answer, Request, StandIn
from server.exchange import samples
from stories import Rows, Told, elapsed, method, on_a_loop, spelled, split, stories_beside

HALF_AN_HOUR = 1800.0
"""By a clock that is taken wrongly, an age is wrong by an hour here, or more."""


class RelayStory(Told):
    """A story so far: the stand-ins, and the relay before them."""

    running: Running
    asked: "asyncio.Task[room.Answer | None]"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.replicas: dict[str, StandIn] = {}
        self.own: dict[str, Any] = {}

    def carry_out(self, row: str) -> None:
        if row and not row.startswith("#"):
            on_a_loop(self.act(row))

    async def act(self, row: str) -> None:
        if row.startswith("until "):
            await patience.met(lambda: self.act(row[6:]))
            return
        told, arrow, expected = row.partition(" ->")
        verb, words, options = split(told)
        do = VERBS[verb] if verb in VERBS else getattr(RelayStory, method(verb))
        found = do(self, *words, **options)
        if inspect.isawaitable(found):
            found = await found
        if arrow:
            _, (status,), facts = split(f"is {expected}")
            self.compare_answer(found, status, **facts)

    def compare_answer(
        self,
        answer: room.Answer | None,
        status: str,
        has: str = "",
        lacks: str = "\0",
        least_age: str = "",
        ahead: str = "",
        **headers: str,
    ) -> None:
        assert (status == "lost") is (answer is None)
        if answer is None:
            return
        assert answer.status == int(status), answer
        assert has.encode() in answer.body
        assert lacks.encode() not in answer.body
        shown = {name: answer.headers.get(name.replace("_", "-"), "") for name in headers}
        assert {name: headers[name] for name in headers} == {
            name: "yes" if headers[name] == "yes" and value else value
            for name, value in shown.items()
        }
        assert int(answer.headers.get("age", 0)) >= int(least_age or 0)
        if ahead:
            sent = codec.any_date(answer.headers["date"])
            wrong_by = sent - SystemClock().now() - elapsed(ahead)
            assert abs(wrong_by.total_seconds()) < HALF_AN_HOUR

    async def close(self) -> None:
        if hasattr(self, "running"):
            await self.end()
        for each in self.replicas.values():
            await each.stop()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    # The relay.

    def relay(self, **told: str) -> Awaitable[None]:
        """Open a relay before all replicas that there are."""
        self.opening(**told)
        return self.opened()

    def opening(
        self,
        slowly: str = "",
        wrong_by: str = "0s",
        strangers: str = "",
        trusting: str = "",
        **own: str,
    ) -> None:
        """Begin to open it."""
        given: dict[str, Any] = {name: int(value) for name, value in own.items()}
        if trusting:
            given["ca_file"] = str(self.folder / "ca" / "ca.pem")
        listener = running.GUESTS if strangers else running.HERE
        replicas = self.replicas.values()
        settings = running.settings(self.folder, *replicas, listener=listener, **given)
        self.clock = AheadClock(1.0 if slowly else 20.0, elapsed(wrong_by))
        self.running = running.made(settings, self.clock)
        self.opens = asyncio.ensure_future(self.running.open())

    async def opened(self) -> None:
        await self.opens

    async def end(self) -> None:
        self.opens.cancel()
        await asyncio.gather(self.opens, return_exceptions=True)
        await self.inside.close()

    @property
    def inside(self) -> HostRelay:
        return self.running.relay

    def pass_(self, span: str) -> None:
        self.clock.ahead += elapsed(span).total_seconds()

    async def beat(self) -> None:
        """Have all be done that is due."""
        self.inside._beat(self.clock.monotonic())
        if self.inside._saving is not None:
            await self.inside._saving

    def get(self, *headers: str) -> Awaitable[room.Answer | None]:
        return self.running.reply(room.get(room.EVENTS, *headers))

    def approve(self, *ids: str, bare: str = "") -> Awaitable[room.Answer | None]:
        entries = [{"EventId": spelled(each).decode()} for each in ids or (room.EVENT_ID,)]
        data = room.post(json.dumps({"StartRequests": entries}).encode())
        return self.running.reply(data.replace(b"Metadata: true\r\n", b"") if bare else data)

    def asking(self, *headers: str) -> None:
        """Begin to ask; `answered` has the answer."""
        data = room.get(room.EVENTS, *headers, "Connection: close")
        self.asked = asyncio.ensure_future(self.running.reply(data, ends=False))

    async def answered(self) -> room.Answer | None:
        """Return the answer, for which no guest waits as long as it may."""
        return await asyncio.wait_for(self.asked, patience.SECONDS / 2)

    def is_(self, **told: str) -> None:
        """Compare facts of the relay."""
        inside, forwarding = self.inside, self.inside._forwarding
        assert not told.get("claimed") or forwarding._claims == {}
        self.compare(
            inside.status(1),
            told,
            open=inside._guests is not None,
            heard=inside._freshness.is_true,
            refused=inside._freshness.refused_since is not None,
            failing=inside._reader.failures > 2,
            claimed=tuple(address for _, address in forwarding._found),
            level=inside._held is not None
            and inside._held.etag in {each.etag for each in self.replicas.values()}
            and inside._held.rules in [each.rules for each in self.replicas.values()],
            kept=(self.folder / "state" / cache.FILE_NAME).exists(),
        )

    def trouble(self, word: str) -> None:
        """It says so; each look, for it may have connected again by what it had before."""
        for each in self.replicas.values():
            each.drop()
        assert word in self.inside.status(1).trouble

    def metric(self, name: str, expected: str) -> None:
        page = text_string_to_metric_families(self.inside.metrics(process=1).decode())
        assert samples(page).get(PREFIX + name) == float(expected)

    def disk(self, how: str) -> None:
        """Have nothing be written any more, or all of it again."""
        new = self.folder / "state" / f"{cache.FILE_NAME}.new"
        (new.mkdir if how == "full" else new.rmdir)()

    def token_file(self, text: str, mode: str = "600") -> None:
        path = running.token_file(self.folder, spelled(text).decode())
        path.chmod(int(mode, 8))
        if text == "gone":
            path.unlink()

    # The replicas.

    async def replica(self, name: str, tls: str = "", shows_time: str = "yes") -> None:
        """Have another replica."""
        made = self.replicas[name] = running.filled()
        made.shows_time = shows_time == "yes"
        context = None
        if tls:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(Authority(self.folder / "ca").sign("one", "IP:127.0.0.1"))
        await made.start(context)

    def incarnation(self, name: str, number: str) -> None:
        """Have the scope have this incarnation."""
        scope = self.replicas[name].documents.scope("web")
        self.replicas[name].learn(Changes(scopes=(replace(scope, incarnation=int(number)),)))

    def rules(self, name: str, **rules: str) -> None:
        given = {key: json.loads(v) if v[0].isdigit() else v for key, v in rules.items()}
        self.replicas[name].rules = GuestRules(**({"rate_per_second": 0} | given))
        self.replicas[name].tell()

    def answers(self, name: str, what: str, body: str = "", code: str = "", to: str = "") -> None:
        """Have it answer so what has this method or path, or cut it off, or end, or wait."""
        service = self.replicas[name]
        refusal = relay_feed.encode(relay_feed.RelayRefusal(code=code))

        async def other(request: Request) -> Answer | None:
            if to not in {"", request.method, request.path}:
                return None
            match what:
                case "never":
                    await asyncio.Event().wait()
                case "cut":
                    service.drop()
                case "end":
                    await service.stop()
                    raise asyncio.CancelledError
            return int(what) if what.isdigit() else 500, refusal if code else spelled(body)

        service.other = other

    async def unheard(self, status: str, body: str) -> None:
        """Have the service answer so: guests read what they read, and the relay says why."""
        (service,) = self.replicas.values()
        before = await self.running.ask()
        failures = self.inside._reader.failures
        self.answers("one", status, body)
        service.tell()
        service.drop()
        await patience.reached(lambda: self.inside._reader.failures >= failures + 3)
        after = await self.running.ask()
        assert (after.status, after.body) == (before.status, before.body)
        assert self.inside.status(1).trouble != ""
        assert self.inside._freshness.refused_since is None  # or it would forget all
        service.other = None
        await self.act("until is heard=yes")
        assert await self.running.incarnation() == "2"

    def told(self, name: str, **facts: str) -> None:
        """Compare what a replica was told, and how often relays looked if anything had changed."""
        service = self.replicas[name]
        stalls = [round(state.stalled_seconds) for state in service.states]
        known = {
            "approvals": len(service.approvals),
            "etags": tuple(each or "-" for each, _ in itertools.groupby(service.etags)),
            "scopes": tuple(itertools.chain(*service.asked_for)),
            "claims": tuple(service.claims),
            "stalls": tuple(each for each, _ in itertools.groupby(stalls)),
        }
        self.compare(service, facts, **known)

    def seen(self, name: str, **facts: str) -> None:
        """Compare the last sighting, which is of a moment ago."""
        assert self.replicas[name].seen
        seen = self.replicas[name].seen[-1]
        self.compare(seen, facts)
        assert 0 <= seen.age_seconds < HALF_AN_HOUR


def wait_for(story: RelayStory, name: str, machine: str) -> None:
    """Have a replica wait for a machine to ask again."""
    story.replicas[name].awaited = (machine,)
    story.replicas[name].tell()


VERBS: dict[str, Callable[..., Any]] = {
    "start": lambda story, name: story.replicas[name].start(),
    "stop": lambda story, name: story.replicas[name].stop(),
    "drop": lambda story, name: story.replicas[name].drop(),
    "tell": lambda story, name: story.replicas[name].tell(),
    "forget": lambda story, name: story.replicas[name].etags.clear(),
    "token": lambda story, name, token: setattr(story.replicas[name], "token", token),
    "await": wait_for,
    "remove": lambda story, name, machine: story.replicas[name].learn(
        Changes(removed_machines=(machine,))
    ),
    "lose": lambda story, name, machine: story.replicas[name].machines.pop(machine),
    "place": lambda story, name, machine: story.replicas[name].learn(
        Changes(machines=(here(machine),))
    ),
    "moved": lambda story, name, machine: story.replicas[name].unknown.update(
        {"127.0.0.1": here(machine)}
    ),
    "approved": lambda story, name, **facts: story.compare(
        story.replicas[name].approvals[-1], facts
    ),
}
"""What is no method of a story by its own name."""


def here(name: str) -> Any:
    return room.machine(name, "127.0.0.1", scope="web")


@pytest.fixture
def story(tmp_path: Path) -> Iterator[RelayStory]:
    made = RelayStory(tmp_path)
    yield made
    on_a_loop(made.close())


@pytest.mark.parametrize("rows", stories_beside(__file__, "stories.txt"))
def test_the_story_holds(story: RelayStory, rows: Rows) -> None:
    assert story.play("stories.txt", rows)
