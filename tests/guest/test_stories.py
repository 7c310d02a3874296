"""The guest plane in stories: texts of one verb a line, and the verbs that they are made of.

What the settings say (`limit`, `rate`, `enablement`) comes first. A peer connects when a line names
it first: from the address of web-0, unless a line `connect` says otherwise. It sends requests:
`get`, `post`, or one that a line `request` has named. `get*3` is three, `post[:-20]` a part.

`expect PEER` has the statuses of all that came (or `any`), and the state of the connection;
`answer PEER` has facts of the last answer, a header that is not there as `""`.
"""

import asyncio
import ipaddress
import json
import re
import socket
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

import stories
from forewarn.maintenance.model import Changes, Enablement, Policy, Profile, Refused, Sighting
from forewarn.protocol import codec, exchange
from forewarn.protocol.versions import VERSION_BY_NAME
from forewarn.server.guest.limits import UNLIMITED, Limits, Rate, Reason
from forewarn.server.guest.listener import Listener
from forewarn.server.guest.machines import Proxies, Source, described
from forewarn.store.port import OutcomeUnknown, StoreUnavailable
from forewarn.vocabulary import ErrorCode, EventStatus, EventType, Priority, ScopeKind
from guest import room
from guest.room import Peer, Room, answers, get, post, statuses

FILE: Final = Path(__file__).with_name("stories.txt")
STORIES: Final = stories.stories(FILE.read_text(encoding="utf-8"))
PIECE: Final = re.compile(r"([a-z][\w-]*)(?:\[(-?\d*):(-?\d*)\])?(?:\*(\d+))?")
ERRORS: Final = {
    "fail": StoreUnavailable("the disk is full"),
    "break": RuntimeError("a fault of ours"),
    "lose": OutcomeUnknown("no answer to the commit"),
    "withdraw": CancelledError(),
    "refuse-late": Refused(ErrorCode.TOO_LATE, "too late"),
    "refuse-strangers": Refused(ErrorCode.NOT_ELIGIBLE, "it is on another host"),
}
SHOWN: Final = {
    "incarnation": "DocumentIncarnation",
    "status": "EventStatus",
    "not_before": "NotBefore",
    "resources": "Resources",
}
SECRET: Final = "a secret of theirs"


class Slow:
    """A clock by which each look costs a millisecond: what is done between two costs that."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


class Story:
    """A story so far: the plane, its peers, and the requests that are written down."""

    def __init__(self, opened: ExitStack) -> None:
        self._opened = opened
        self.log_ = opened.enter_context(capture_logs())
        self.said = ""
        self.limits: dict[str, Any] = {}
        self.rate = UNLIMITED
        self.enabling = room.ALWAYS_ON
        self.requests = {"get": get(), "post": post()}
        self.peers: dict[str, Peer] = {}
        self.sockets: dict[str, socket.socket] = {}
        networks = ("192.0.2.0/24", "fd00:7::/64")
        self.proxies = Proxies([ipaddress.ip_network(each) for each in networks])
        self.places = {
            "bridge": room.BRIDGE,
            "loopback": Listener(address="127.0.0.1"),
            "proxied": room.Behind(room.BRIDGE, self.proxies),
            "proxied-loopback": room.Behind(
                Listener(address="127.0.0.1", default_vm="web-0"), self.proxies
            ),
        }
        self.trust(SECRET)
        self._plane: Room | None = None
        self.turn: Callable[[], None]
        self.draining: asyncio.Future[None]
        self.stopping: asyncio.Future[int]

    @property
    def plane(self) -> Room:
        """The plane, by the settings before the first line that needs it."""
        if self._plane is None:
            limits = Limits(**self.limits)
            opening = room.opened(limits, self.enabling, self.rate)
            self._plane, self.turn = self._opened.enter_context(opening)
        return self._plane

    def turns(self, times: str = "1") -> None:
        """Have the loop do all that it has to, and so much of its time pass."""
        for _ in range(int(times)):
            self.turn()

    def peer(self, name: str) -> Peer:
        """Return a peer, connected by now."""
        return self.peers.get(name) or self.connect(name)

    def carry_out(self, row: str) -> None:
        """Carry a line out, or several as often as a line says, each time with the number in it."""
        if row.startswith("repeat "):
            _, times, rest = row.split(" ", 2)
            for number in range(1, int(times) + 1):
                for each in rest.replace("{}", str(number)).split(" ; "):
                    self.carry_out(each)
            return
        verb, words, options = stories.split(row)
        if verb:
            made = VERBS.get(verb) or getattr(Story, verb.replace("-", "_"))
            made(self, *words, **options)

    def limit(self, **limits: str) -> None:
        """Set limits."""
        self.limits |= {name: int(value) for name, value in limits.items()}

    def set_rate(self, per_second: str, burst: str) -> None:
        """Set the rate of each machine."""
        self.rate = Rate(per_second=float(per_second), burst=int(burst))

    def enable(self, delay: str = "0") -> None:
        """Turn scopes on by their first request."""
        policy = Policy(enablement=Enablement.FIRST_REQUEST)
        self.enabling = room.Enabling(policy, float(delay))

    def request(
        self,
        name: str,
        kind: str,
        *given: str,
        target: str = room.EVENTS,
        body: str = "",
        secret: str = SECRET,
    ) -> None:
        """Write a request down: a GET or a POST with these headers, or bytes.

        A signed one is a proxy's for a machine, its first word.
        """
        kind, _, version = kind.partition("-")
        if kind == "bytes":
            made = "".join(given).encode().decode("unicode_escape").encode()
        elif kind == "approving":
            made = post(codec.encode_start_requests([f"{n:036}" for n in range(int(given[0]))]))
        elif kind == "get":
            made = get(target, *given)
        elif kind == "chunked":
            size, *more = given
            chunks = room.chunked(stories.spelled(body) or room.APPROVAL, int(size))
            made = post(chunks, *more, "Transfer-Encoding: chunked")
        elif kind == "signed":
            machine = stories.spelled(given[0]).decode()
            more = given[1:]
            signature = exchange.sign(machine.encode(), secret.encode()).decode()
            signed = f"X-Instance-ID: {machine}", f"X-Instance-ID-Signature: {signature}"
            made = get(target, *signed, *more)
        else:
            made = post(stories.spelled(body) or room.APPROVAL, *given, target=target)
        self.requests[name] = made.replace(b"HTTP/1.1", b"HTTP/%s" % (version or "1.1").encode())

    def connect(self, name: str, at: str = "bridge", **facts: str) -> Peer:
        """Connect a peer, in place of an earlier one of this name."""
        address = facts.get("from", "10.0.0.10")
        peer = self.peers[name] = self.plane.connect(address, self.places[at])
        return peer

    def trust(self, *secrets: str) -> None:
        """Have proxies sign by any of these secrets from now on."""
        self.proxies.secrets = tuple(map(str.encode, secrets))

    def send(self, name: str, *words: str) -> None:
        """Send requests, or parts of them, in one piece."""
        self.peer(name).send(b"".join(map(self.bytes_of, words)))

    def bytes_of(self, word: str) -> bytes:
        """Return the bytes that a word stands for."""
        found = PIECE.fullmatch(word)
        assert found is not None, word
        request, begin, end, times = found.groups()
        data = self.requests[request]
        if begin is not None:
            data = data[int(begin or 0) : int(end) if end else None]
        return data * int(times or 1)

    def accept(self, name: str, *words: str, gone: str = "", **facts: str) -> None:
        """Accept a connection whose peer has sent this, and may be gone."""
        peer, accepted = socket.socketpair()
        self.sockets[name] = self._opened.enter_context(peer)
        self.push(name, *words)
        peer.settimeout(0)
        if gone:
            peer.close()
        source = Source(address=facts.get("from", "10.0.0.10"))
        self.plane.connections.accept(accepted, source)

    def push(self, name: str, *words: str) -> None:
        """Send on a real socket."""
        self.sockets[name].sendall(b"".join(map(self.bytes_of, words)))

    def came(self, name: str, *expected: str, closed: str = "no", has: str = "") -> None:
        """Compare what has come on a real socket since."""
        got, found = b"", "no"
        with suppress(BlockingIOError):
            while part := self.sockets[name].recv(65536):
                got += part
            found = "yes"
        assert ([str(each) for each in statuses(got)], found) == ([*expected], closed)
        assert has in got.decode().lower()

    def take(self, name: str, what: str, buffers: str = "") -> None:
        """Take nothing of what comes from now on but so many bytes, or all of it again."""
        peer = self.peer(name)
        peer.high = int(buffers or peer.high)
        peer.takes = what == "all"
        if peer.takes:
            peer.take()

    def send_until_paused(self, name: str, word: str) -> None:
        """Send until it is read no further."""
        for _ in range(10_000):
            if self.peer(name).paused:
                return
            self.send(name, word)
            self.turn()
        pytest.fail("it reads on and on")

    def approvals(self, what: str) -> None:
        """Have approvals wait, or fail for a reason that has a name, or be as ever."""
        self.plane.approvals.waits = what == "wait"
        self.plane.approvals.error = ERRORS.get(what)
        self.plane.approvals.closed = what == "close"

    def publish(
        self, incarnation: str, scope: str = "web", event: str = "", kind: str = "Reboot"
    ) -> None:
        """Have a scope show another document."""
        shown = room.operation(room.event(event), id="2.1", event_type=EventType(kind))
        self.plane.publish(int(incarnation), scope, *((shown,) if event else ()))

    def operation(self, name: str, *events: str, scope: str = "web", **facts: str) -> None:
        """Have an operation be so, with events `ID`, `ID:PUBLISHED` or `ID@SCOPE`."""
        more: dict[str, Any] = {"id": name}
        if "status" in facts:
            more["status"] = EventStatus(facts["status"])
        if "kind" in facts:
            more["event_type"] = EventType(facts["kind"])
        if "notice" in facts:
            more["not_before"] = room.START + stories.elapsed(facts["notice"])
        made = []
        for word in events:
            told, _, elsewhere = word.partition("@")
            event, _, published = told.partition(":")
            known = {"published": 0 if "silent" in facts else int(published or 2)}
            where = elsewhere or scope
            made.append(room.event(event, scope=where, silent="silent" in facts, **known))
        self.plane.learn(Changes(operations=(room.operation(*made, **more),)))

    def no_events(self) -> None:
        """Have the event that there was at first be over."""
        self.operation("1.1", room.EVENT_ID, status="Canceled")

    def shows(
        self, *events: str, scope: str = "web", version: str = "2020-07-01", **facts: str
    ) -> None:
        """Compare the ids of a scope's document, and facts of its first event."""
        page = self.plane.documents.page(scope, VERSION_BY_NAME[version])
        document = json.loads(page.body)
        assert document["DocumentIncarnation"] == page.incarnation
        assert [event["EventId"] for event in document["Events"]] == [*events]
        for name, expected in facts.items():
            shown = (
                page.incarnation if name == "incarnation" else document["Events"][0][SHOWN[name]]
            )
            assert (",".join(shown) if isinstance(shown, list) else str(shown)) == expected

    def listen(self, name: str, address: str, default_vm: str = "") -> None:
        """Have another listener."""
        named = "" if default_vm else name
        self.places[name] = Listener(address=address, default_vm=default_vm, name=named)

    def machine(self, name: str, address: str, scope: str, **facts: str) -> None:
        """Have a machine be there, or be elsewhere, with facts of it and of its profile."""
        profile = {each: facts.pop(each) for each in Profile.__struct_fields__ if each in facts}
        made = room.machine(name, address, scope=scope, profile=Profile(**profile), **facts)
        self.plane.learn(Changes(machines=(made,)))

    def described(self, machine_key: str, **facts: str) -> None:
        """Compare what a machine reads of itself."""
        machine = self.plane.registry.machines[machine_key]
        found = described(machine, self.plane.documents.scope(machine.scope))
        assert {each: stories.said(getattr(found, each)) for each in facts} == facts

    def machines(self, *names: str) -> None:
        """Have machines of web be elsewhere, all at once."""
        placed = [name.split("=") for name in names]
        moved = [room.machine(name, address, scope="web") for name, address in placed]
        self.plane.learn(Changes(machines=tuple(moved)))

    def known(self, address: str, name: str, at: str = "bridge", by: str = "name") -> None:
        """Connect from an address, ask for the own name, and compare that."""
        peer = self.connect(f"peer {len(self.peers)}", at, **{"from": address})
        peer.send(self.requests[by])
        assert answers(peer.got)[-1].body.decode() == name

    def unknown(self, address: str, why: str, at: str = "bridge", by: str = "name") -> None:
        """Connect from an address that is nobody's, and compare the reason that is counted."""
        reason = Reason(why.replace("_", "-"))
        before = self.plane.counters.refusals[reason]
        peer = self.connect(f"peer {len(self.peers)}", at, **{"from": address})
        peer.send(self.requests[by])
        assert statuses(peer) == [403]
        assert self.plane.counters.refusals[reason] == before + 1

    def proxied(self, claimed: str, who: str, secret: str = "the new secret!!") -> None:
        """Ask by a proxy for a machine, and compare who that is or why it is nobody."""
        target = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
        self.request("claim", "signed", claimed, target=target, secret=secret)
        asks = self.unknown if "_" in who else self.known
        asks("192.0.2.7", who, "proxied", "claim")

    def charge(self, name: str, seconds: str) -> None:
        """Charge a peer's account with so much of the loop's time."""
        now = self.plane.clock.monotonic()
        self.peer(name).connection.account.charge(float(seconds), now)

    def scope(self, name: str, incarnation: str, kind: str = "machine", priority: str = "") -> None:
        """Have a scope be there."""
        more = {"priority": Priority(priority)} if priority else {}
        scope = room.scope(name, incarnation=int(incarnation), kind=ScopeKind(kind), **more)
        self.plane.learn(Changes(scopes=(scope,)))

    def note_request(self, scope: str) -> None:
        """Have a scope be noted as asked for."""
        known = self.plane.documents.scope(scope)
        self.plane.learn(Changes(scopes=(replace(known, asked_at=room.START),)))

    def drain(self) -> None:
        """Make each answer the last of its connection, before the plane stops."""
        connections = self.plane.connections
        self.draining = asyncio.ensure_future(connections.drain(20), loop=connections.loop)

    def retire(self) -> None:
        """Stop the plane."""
        retiring = self.plane.connections.retire(20)
        self.stopping = asyncio.ensure_future(retiring, loop=self.plane.connections.loop)

    def retired(self, cut_off: str) -> None:
        """Compare how many connections the stop has cut off."""
        assert self.stopping.result() == int(cut_off)

    def refused(self, status: str, kind: str, *words: str, **options: str) -> None:
        """Have a peer send what HTTP does not allow, and a GET; its connection is closed."""
        self.request("wrong", kind, *words, **options)
        peer = self.connect(f"peer {len(self.peers)}")
        peer.send(self.requests["wrong"] + get())
        self.turn()
        (answer,) = answers(peer.got)
        assert (answer.status, peer.ended) == (int(status), True)
        assert answer.headers["connection"] == "close"
        assert answer.headers["content-type"] == "application/json; charset=utf-8"

    def booked(self, *approved: str) -> None:
        """Compare the machine and the address of each approval."""
        assert [f"{by}@{address}" for _, _, by, address in self.plane.approvals.book] == [*approved]

    def expect(self, name: str, *came: str, **state: str) -> None:
        """Compare all that came to a peer, and the state of its connection."""
        peer = self.peer(name)
        parts = (word.partition("*") for word in came)
        told = [status for status, _, times in parts for _ in range(int(times or 1))]
        assert told in (["any"], [str(status) for status in statuses(peer)])
        found = {each: "yes" if getattr(peer, each) else "no" for each in state}
        assert found == state

    def answer(self, name: str, has: str = "", lacks: str = "\0", **headers: str) -> None:
        """Compare facts of the last answer."""
        last = answers(self.peer(name).got)[-1]
        body = last.body.decode()
        assert has in body
        assert lacks not in body
        found = {each: last.headers.get(each.replace("_", "-"), "") for each in headers}
        assert found == headers

    def seen(self, machine: str, asked_at: str = "", **facts: str) -> None:
        """Compare the last sighting of a machine."""
        found = self.plane.registry.seen(machine) or Sighting(asked_at=room.START, version="")
        assert {each: stories.said(getattr(found, each)) for each in facts} == facts
        assert not asked_at or found.asked_at == room.START + stories.elapsed(asked_at)

    def logged(self, *expected: str) -> None:
        """Compare what was logged of limits since, and how often it was not before."""
        told = [line for line in self.log_ if "reason" in line]
        assert [
            f"{line['reason']}{'@' * bool(line['listener'])}{line['listener']}/{line['address']}"
            f"*{line['not_logged_before']}"
            for line in told
        ] == [*expected]
        self.said += str(self.log_)
        self.log_.clear()

    def log(self, has: str = "", lacks: str = "\0") -> None:
        """Look for words in all that was logged."""
        assert has in self.said
        assert lacks not in self.said

    def dropped(self, *networks: str) -> None:
        """Compare whose connections the kernel drops."""
        found = self.plane.connections.filter._dropped
        assert found == {("", each) for each in networks}

    def turns_fail(self, answer: str) -> None:
        """Have a guest's turn fail by a fault of ours, or be as ever."""
        watch = self.plane.watch
        fails: Any = {}.__getitem__
        self.plane.connections.on_turn = fails if answer == "yes" else watch.turn

    def count(self, **counts: str) -> None:
        """Compare what the plane counts."""
        plane = self.plane
        known: dict[str, object] = {
            "open": len(plane.connections),
            "starting": len(plane.connections._starting),
            "accepted": plane.counters.accepted,
            "waiting": len(plane.connections.long_polls),
            "approved": len(plane.approvals.book),
            "in_flight": len(plane.approvals._waiting),
            "turned": ",".join("+".join(each) for each in plane.approvals.turned),
            "known": len(plane.registry._callers),
            "body_bytes": sum(each.connection.account.body_bytes for each in self.peers.values()),
        }
        known |= {each.replace("-", "_"): plane.counters.refusals[each] for each in Reason}
        assert {name: str(known[name]) for name in counts} == counts

    def answered(self, **told: str) -> None:
        """Compare how many answers of each status the plane counts, by resource."""
        counts = self.plane.counters.answers
        known = {
            each: ",".join(f"{k}:{n}" for k, n in sorted(counts[each].items())) for each in counts
        }
        assert {name: each for name, each in known.items() if each} == told


VERBS: Final[dict[str, Callable[..., object]]] = {
    "rate": Story.set_rate,
    "enablement": Story.enable,
    "close": lambda story, name: story.peer(name).close(),
    "turn": Story.turns,
    "pass": lambda story, seconds: story.plane.pass_time(float(seconds)),
    "decide": lambda story: story.plane.approvals.decide_all(),
    "decide-last": lambda story: story.plane.approvals._waiting.pop()(),
    "end": lambda story, name: story.peer(name).end(),
    "leave": lambda story, name: story.peer(name).abort(),
    "costly": lambda story: setattr(story.plane.connections, "monotonic", Slow()),
    "hang-up": lambda story, name: story.sockets[name].close(),
    "charge-strangers": lambda story, seconds: story.plane.connections._of_strangers[""].charge(
        float(seconds), story.plane.clock.monotonic()
    ),
    "suspend": lambda story: story.plane.connections.suspend(),
    "resume": lambda story: story.plane.connections.resume(),
    "age": lambda story, seconds: setattr(story.plane, "age", int(seconds)),
    "remove": lambda story, *names: story.plane.learn(Changes(removed_machines=names)),
    "remove-scope": lambda story, scope, *names: story.plane.learn(
        Changes(removed_scopes=(scope,), removed_machines=names)
    ),
}
"""What is no method of a story by its own name."""


@pytest.mark.parametrize("title", STORIES)
def test_the_story_holds(title: str) -> None:
    with ExitStack() as opened:
        assert stories.play(FILE.name, STORIES[title], Story(opened).carry_out)
