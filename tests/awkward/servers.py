"""The awkward servers: each tells the story, and each in its own bad way.

The emulator's faults are not enough here: each server is wrong in its way through a whole
conversation, some in HTTP itself, and some die.

A server is a function that answers one request for events. `turn` counts the requests for the
present step of the story: most servers behave badly first and well after that.
"""

import contextlib
import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Self

from awkward.conversation import Conversation, Over, as_json, rendered, version
from awkward.story import DAYS, MACHINE, OURS, Story, http_date
from client.scripted import Asked, Scripted, Talk

MAX_ENDLESS = 160 * 1024 * 1024
"""Where even an endless answer ends: whoever has read so much has no limit."""

DOWN = 0.4
"""How long a server is away that has died."""

LATE = 100.0
"""How long the first answer takes, as in a cloud that turns the service on with it."""

NEVER = 60.0
"""How long a slow answer takes in all: more than a client waits for any but the first."""


class Host:
    """A running server: its story, what a judge wants to know, and its clock's scale."""

    def __init__(self, name: str, scale: float) -> None:
        self.scale = scale
        self.story = Story(datetime.now(UTC).replace(microsecond=0))
        self.facts: list[dict[str, Any]] = []
        self._name = name
        self._elsewhere = Scripted(lambda _: self.note(followed=True))
        self._server = Scripted(self._converse)
        self._lives = [self._elsewhere, self._server]
        self._rebirth = threading.Thread()
        self.address, self.elsewhere = self._server.url, self._elsewhere.url

    def note(self, **facts: object) -> None:
        self.facts.append(facts)

    def noted(self, fact: str) -> list[Any]:
        """Return what was noted of one kind."""
        return [facts[fact] for facts in list(self.facts) if fact in facts]

    def approve(self, request: Asked, *, event_ids: list[str]) -> None:
        new = self.story.approve(event_ids)
        self.note(approved=event_ids, new=new, version=version(request))

    def _converse(self, talk: Talk) -> None:
        """Answer the requests of one connection until it is over."""
        conversation = Conversation(talk)
        with contextlib.suppress(Over):
            while True:
                request = conversation.request()
                path = request.target.partition("?")[0].lower()
                if path.rstrip("/").endswith("/metadata/scheduledevents"):
                    SERVERS[self._name](conversation, request, self)
                else:
                    name_of_machine(conversation, request, path)

    def die(self) -> None:
        """End at once, with every connection, and come back on the same port after a while."""
        self.note(died=True)
        self._server.die()
        self._rebirth = threading.Thread(target=self._come_back)
        self._rebirth.start()
        raise Over

    def _come_back(self) -> None:
        threading.Event().wait(DOWN)
        self._server = Scripted(self._converse, self._server.port)
        self._lives.append(self._server)
        self._server.__enter__()

    def __enter__(self) -> Self:
        for server in self._lives:
            server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        if self._rebirth.ident is not None:
            self._rebirth.join()
        for server in self._lives:
            server.__exit__()


Server = Callable[[Conversation, Asked, Host], None]
SERVERS: dict[str, Server] = {}


def awkward(server: Server) -> Server:
    """Enter a server under its own name."""
    SERVERS[server.__name__.replace("_", "-")] = server
    return server


def tell(talk: Conversation, request: Asked, host: Host, document: object = None) -> None:
    """Answer well: approve what is asked for, or tell the present step of the story."""
    story = host.story
    if request.method == "POST":
        host.approve(request, event_ids=wanted(request))
        talk.answer(request, "200 OK")
        return
    told = document or story.document()
    etag = f"ETag: {story.step + 1}"
    told_in_full(host)
    talk.answer(request, "200 OK", as_json(told), etag)


def told_in_full(host: Host) -> None:
    """Count an answer that tells the present step."""
    if host.story.over:
        host.note(over=True)
    host.story.was_served()


def wanted(request: Asked) -> list[str]:
    """The EventIds that a POST names."""
    return [each["EventId"] for each in json.loads(request.body)["StartRequests"]]


def turn(request: Asked, host: Host) -> int:
    """Which request it is, from 1: a GET of the present step, or a POST of all."""
    if request.method == "POST":
        host.story.posts += 1
        return host.story.posts
    return host.story.asked()


@awkward
def upright(talk: Conversation, request: Asked, host: Host) -> None:
    """Nothing awkward: what the story looks like."""
    tell(talk, request, host)


@awkward
def closes_without_saying_so(talk: Conversation, request: Asked, host: Host) -> None:
    """Promises to keep the connection, and hangs up after each answer."""
    if request.headers.get("connection", "").lower() != "close":
        tell(talk, request, host)
        talk.close()
    tell(talk, request, host)


@awkward
def hangs_up_on_the_second_request(talk: Conversation, request: Asked, host: Host) -> None:
    """Answers a connection's first request, and takes the next one without a word."""
    if talk.sent:
        talk.reset()
    tell(talk, request, host)


@awkward
def first_answer_late(talk: Conversation, request: Asked, host: Host) -> None:
    """Answers the first request after 100 seconds, those beside it too, and later ones at once."""
    if host.story.step == 0 and host.story.served == 0:
        talk.pause(LATE / host.scale)
    tell(talk, request, host)


@awkward
def resets_its_incarnation(talk: Conversation, request: Asked, host: Host) -> None:
    """Counts from 1 again in the middle of the story: numbers fall, and come back."""
    step = host.story.step
    incarnation = 41 + step if step < 3 else step - 2
    tell(talk, request, host, host.story.document(incarnation=incarnation))


@awkward
def wrong_weekdays(talk: Conversation, request: Asked, host: Host) -> None:
    """Writes dates with the name of another day."""
    document = host.story.document()
    days = DAYS[1:] + DAYS[:1]
    for event in document["Events"]:
        event["NotBefore"] = event["NotBefore"] and http_date(host.story.not_before(), days)
    tell(talk, request, host, document)


@awkward
def iso_dates(talk: Conversation, request: Asked, host: Host) -> None:
    """Writes dates as the preview did, with a fraction now and then."""
    document = host.story.document()
    form = "%Y-%m-%dT%H:%M:%SZ" if turn(request, host) % 2 else "%Y-%m-%dT%H:%M:%S.0000000Z"
    for event in document["Events"]:
        event["NotBefore"] = event["NotBefore"] and host.story.not_before().strftime(form)
    tell(talk, request, host, document)


@awkward
def empty_once(talk: Conversation, request: Asked, host: Host) -> None:
    """Says once in each step that there are no events, as a server does that is just starting."""
    if request.method == "GET" and turn(request, host) == 2:
        talk.answer(request, "200 OK", as_json({"DocumentIncarnation": 0, "Events": []}))
        return
    tell(talk, request, host)


@awkward
def new_eventid_case(talk: Conversation, request: Asked, host: Host) -> None:
    """Writes EventIds in another case each time."""
    document = host.story.document()
    if turn(request, host) % 2:
        for event in document["Events"]:
            event["EventId"] = event["EventId"].lower()
    tell(talk, request, host, document)


LOGIN = b"<!DOCTYPE html><html><body><h1>Welcome to Guest Wi-Fi</h1><form></form></body></html>"


@awkward
def captive_proxy(talk: Conversation, request: Asked, host: Host) -> None:
    """Lets a proxy answer with a page of its own, as success, before each step."""
    if turn(request, host) <= 2:
        talk.answer(request, "200 OK", LOGIN, "Content-Type: text/html; charset=utf-8")
        return
    tell(talk, request, host)


@awkward
def cut_answers(talk: Conversation, request: Asked, host: Host) -> None:
    """Cuts the answer in its head, in its body, and in a chunk; an approval's after taking it."""
    body = as_json(host.story.document())
    whole = rendered("200 OK", body)
    match turn(request, host):
        case 1 if request.method == "POST":
            host.approve(request, event_ids=wanted(request))
            talk.send(whole[:9])
            talk.close()
        case 1:
            talk.send(whole[:30])
            talk.close()
        case 2:
            talk.send(whole[: -len(body) // 2])
            talk.close()
        case 3:
            talk.send(rendered("200 OK", b"", "Transfer-Encoding: chunked"))
            talk.send(b"%x\r\n%s" % (len(body), body[: len(body) // 2]))
            talk.close()
        case _:
            tell(talk, request, host)


@awkward
def cut_without_a_length(talk: Conversation, request: Asked, host: Host) -> None:
    """Sends a body that ends with the connection, and ends it in the middle."""
    head = rendered("200 OK", b"", "Connection: close", "Transfer-Encoding: identity")
    head = head.replace(b"Transfer-Encoding: identity\r\n", b"")
    if request.method == "GET" and turn(request, host) == 1:
        talk.send(head + as_json(host.story.document())[:-2])
        talk.close()
    tell(talk, request, host)


REFUSALS = ("429 Too Many Requests", "503 Service Unavailable", "500 Internal Server Error")


@awkward
def busy(talk: Conversation, request: Asked, host: Host) -> None:
    """Answers 429, 503 and 500 in bursts, to approvals too."""
    number = turn(request, host)
    if number <= len(REFUSALS):
        body = as_json({"error": "Too many requests"})
        talk.answer(request, REFUSALS[number - 1], body, "Retry-After: 0")
        return
    tell(talk, request, host)


@awkward
def not_there_yet(talk: Conversation, request: Asked, host: Host) -> None:
    """Answers 404 and 410 before each step, as while the service is being turned on."""
    number = turn(request, host)
    if request.method == "GET" and number <= 2:
        status = ("404 Not Found", "410 Gone")[number - 1]
        talk.answer(request, status, as_json({"error": "Not found"}))
        return
    tell(talk, request, host)


@awkward
def empty_200(talk: Conversation, request: Asked, host: Host) -> None:
    """Answers a success that says nothing."""
    if request.method == "GET" and turn(request, host) <= 2:
        talk.answer(request, "200 OK")
        return
    tell(talk, request, host)


HALVES = (
    *(b"{}", b"[]", b"null", b'{"DocumentIncarnation":7}'),
    *(b'{"DocumentIncarnation":7,"Events":[{', b'{"DocumentIncarnation":7,"Events":null}'),
)


@awkward
def broken_json(talk: Conversation, request: Asked, host: Host) -> None:
    """Answers JSON that is broken, or is no document: none of it says that an event is over."""
    number = turn(request, host)
    if request.method == "GET" and number <= len(HALVES):
        talk.answer(request, "200 OK", HALVES[number - 1])
        return
    tell(talk, request, host)


@awkward
def strange_fields(talk: Conversation, request: Asked, host: Host) -> None:
    """Leaves fields out, adds some, and tells an event of a type that nobody knows."""
    document = host.story.document("2017-11-01")
    document["Region"] = "moon"
    for event in document["Events"]:
        event["Weather"] = {"rain": [1, 2, None]}
        if event["EventId"] != OURS:
            event["EventType"] = "Hibernate"
            del event["ResourceType"]
        if not event["NotBefore"]:
            event["NotBefore"] = None
    tell(talk, request, host, document)


@awkward
def refuses_new_versions(talk: Conversation, request: Asked, host: Host) -> None:
    """Knows no version newer than 2017-11-01."""
    if version(request) > "2017-11-01":
        error = {
            "error": "Bad request. api-version is invalid or was not specified in the request.",
            "newest-versions": ["2017-11-01", "2017-08-01", "2017-03-01"],
        }
        talk.answer(request, "400 Bad Request", as_json(error))
        return
    tell(talk, request, host, host.story.document(version(request)))


@awkward
def resets_connections(talk: Conversation, request: Asked, host: Host) -> None:
    """Resets the connection instead of an answer, twice in each step."""
    if turn(request, host) <= 2:
        talk.reset()
    tell(talk, request, host)


@awkward
def not_http(talk: Conversation, request: Asked, host: Host) -> None:
    """Speaks another protocol at first."""
    if turn(request, host) <= 2:
        talk.send(b"220 mail.example.net ESMTP ready\r\n")
        talk.close()
    tell(talk, request, host)


@awkward
def dies_and_comes_back(talk: Conversation, request: Asked, host: Host) -> None:
    """Dies in the middle of an answer, and is away for a while, in every second step."""
    story = host.story
    if request.method == "GET" and turn(request, host) == 1 and story.step % 2:
        talk.send(rendered("200 OK", as_json(story.document()))[:200])
        host.die()
    tell(talk, request, host)


@awkward
def approves_and_dies(talk: Conversation, request: Asked, host: Host) -> None:
    """Takes an approval for good, and dies before it can say so."""
    if request.method == "POST" and turn(request, host) == 1:
        host.approve(request, event_ids=wanted(request))
        host.die()
    tell(talk, request, host)


@awkward
def endless_head(talk: Conversation, request: Asked, host: Host) -> None:
    """Begins an answer whose head has no end."""
    if turn(request, host) == 1:
        _endless(talk, host, b"HTTP/1.1 200 OK\r\n", b"X-Filler: %s\r\n" % (b"a" * 1000))
    tell(talk, request, host)


@awkward
def endless_body(talk: Conversation, request: Asked, host: Host) -> None:
    """Sends a body without an end, in chunks of blanks, which JSON allows."""
    if turn(request, host) == 1:
        head = rendered("200 OK", b"", "Transfer-Encoding: chunked")
        _endless(talk, host, head, b"400\r\n%s\r\n" % (b" " * 0x400))
    tell(talk, request, host)


@awkward
def huge_length(talk: Conversation, request: Asked, host: Host) -> None:
    """Promises an exabyte, and keeps at it."""
    if turn(request, host) == 1:
        _endless(talk, host, rendered("200 OK", b"", f"Content-Length: {10**18}"), b" " * 1024)
    tell(talk, request, host)


def _endless(talk: Conversation, host: Host, head: bytes, filler: bytes) -> None:
    before = talk.sent
    try:
        talk.send(head)
        while talk.sent - before < MAX_ENDLESS:
            talk.send(filler)
    except Over:
        pass
    host.note(poured=talk.sent - before)
    talk.close()


@awkward
def redirects(talk: Conversation, request: Asked, host: Host) -> None:
    """Sends the client elsewhere, where somebody else would take its approvals."""
    number = turn(request, host)
    if number <= 2:
        status = ("307 Temporary Redirect", "301 Moved Permanently")[number - 1]
        talk.answer(request, status, b"", f"Location: {host.elsewhere}{request.target}")
        return
    tell(talk, request, host)


@awkward
def slow_bytes(talk: Conversation, request: Asked, host: Host) -> None:
    """Sends byte by byte: at first slower than anybody waits for, then at a bearable pace."""
    number = turn(request, host)
    if request.method == "POST":
        tell(talk, request, host)
        return
    answer = rendered("200 OK", as_json(host.story.document()))
    spread = NEVER if number == 1 and host.story.step % 2 else 2.0
    for byte in answer:
        talk.send(bytes([byte]))
        talk.pause(spread / host.scale / len(answer))
    told_in_full(host)


def name_of_machine(talk: Conversation, request: Asked, path: str) -> None:
    """Answer the instance's questions, which no server here is awkward about."""
    if path.endswith("/metadata/instance/compute/name"):
        talk.answer(request, "200 OK", MACHINE.encode(), "Content-Type: text/plain; charset=utf-8")
    elif path.endswith("/metadata/versions"):
        talk.answer(request, "200 OK", as_json({"apiVersions": ["2017-03-01", "2021-02-01"]}))
    elif "/metadata/instance" in path:
        compute = {"name": MACHINE, "vmId": "02aab8a4-74ef-476e-8182-f6d2ba4166a6"}
        tree = compute if path.endswith("compute") else {"compute": compute, "network": {}}
        talk.answer(request, "200 OK", as_json(tree))
    else:
        talk.answer(request, "404 Not Found", as_json({"error": "Not found"}))
