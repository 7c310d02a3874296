"""Stories of requests to the operators' API, one a line, and the reader that plays them.

    as operator POST /v1/holds {kind: scope, name: web} -> 201 {hold.by: operator-1}
    forewarn hold list -> {out~: UNTIL}

A body, headers (`with {Host: x}`) and what is expected are YAML, in which a time or 1.1 is a text.
An expectation names facts of the answer by their place (`*` for each of a list, `#` for how many):
what they are, words that are in them (`~`) or not (`^`), what they are not (`!`) or at most (`<`).
`$name` is bound where it is first expected. Without a status any success will do. `until` asks
again till the line holds; `approving` also approves what is announced and lets time pass, `slowly`
too, where a real program runs. `meanwhile` has a line carried out beside the next, till `joined`. A
line that begins with spaces belongs to the one above.
"""

import operator
import os
import re
import shlex
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import yaml
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

import patience
from forewarn.cli.exits import ExitStatus
from forewarn.clock import ManualClock
from forewarn.control.plane import Retention
from forewarn.vocabulary import AgentStatus
from server.running import ME, NOON, Answer, Cli, Client, Running, end, fleet, stranger, under_way
from stories import Told, WithoutTimes, elapsed

REQUEST: Final = re.compile(
    r"(?:(until|approving|slowly) )?(?:as (\S+) )?(GET|HEAD|PUT|POST|DELETE) (\S+)"
    r" ?(.*?)(?: ?with (\{[^{}]*\}))?",
    re.DOTALL,
)
EXPECTED: Final = re.compile(r"(\d{3})? ?([a-z-]+)? ?(\{.*\})?", re.DOTALL)
CLI_EXPECTED: Final = re.compile(r"([a-z-]+)? ?(\{.*\})?", re.DOTALL)
PAUSES: Final = {"approving": timedelta(seconds=5), "slowly": timedelta(milliseconds=50)}

BLUE: Final = {
    "availability_set": [
        {
            "name": "g",
            "listener": "blue",
            "machines": [{"name": f"g-{n}", "address": f"10.1.0.{n}"} for n in range(7)],
        }
    ]
}
"""A fleet whose machines are answered by a listener that there is not."""


class Text(WithoutTimes):
    """YAML in which fractions are texts, too: 1.1 is an operation."""


Text.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in known if not tag.endswith(":float")]
    for first, known in WithoutTimes.yaml_implicit_resolvers.items()
}


def as_list(words: Any) -> list[str]:
    return [words] if isinstance(words, str) else words


def has_words(found: object, expected: Any) -> bool:
    return all(word in str(found) for word in as_list(expected))


JUDGES: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "!": operator.ne,
    "<": operator.le,
    "~": has_words,
    "^": lambda found, lacks: not any(has_words(found, word) for word in as_list(lacks)),
}


class Exchanges(Told):
    """A story so far, of a running service with a fleet, at noon."""

    clock: ManualClock
    cli: Cli
    beside: "Future[None]"

    def __init__(
        self, service: Running, clock: ManualClock | None = None, cli: Cli | None = None
    ) -> None:
        self.service = service
        if clock is not None and cli is not None:
            self.clock, self.cli = clock, cli
        self.root = service.client()
        self.bound: dict[str, Any] = {"fleet": fleet(), "blue": BLUE, "me": ME, "uid": os.geteuid()}
        self.clients: dict[str, Client] = {"root": self.root}

    def carry_out(self, row: str) -> None:
        said, _, expected = ("" if row.startswith("#") else row).partition(" -> ")
        if row.startswith("meanwhile "):
            threads = ThreadPoolExecutor(1)
            self.beside = threads.submit(self.carry_out, row.removeprefix("meanwhile "))
            threads.shutdown(wait=False)
        elif said.startswith("forewarn "):
            self.run(said, expected)
        elif (asked := REQUEST.fullmatch(said)) is None:
            super().carry_out(said)
        elif asked[1]:
            patience.until(lambda: self.holds(asked, expected), lambda: self.ask(asked).body)
        else:
            self.compare_answer(self.ask(asked), expected)

    def check(self, *rows: str) -> None:
        """Carry lines of a test's own out."""
        for row in rows:
            self.carry_out(row)

    def holds(self, asked: re.Match[str], expected: str) -> bool:
        """Tell whether a line holds by now; let time pass if it does not."""
        try:
            self.compare_answer(self.ask(asked), expected)
        except (AssertionError, LookupError):
            if asked[1] in PAUSES:
                for event in self.root.get("/v1/events")["events"]:
                    if event["status"] == "Scheduled":
                        self.root.ask("POST", "/v1/approvals", {"references": [event["id"]]})
                self.clock.advance(PAUSES[asked[1]])
            return False
        return True

    def ask(self, asked: re.Match[str]) -> Answer:
        _, who, method, path, *told = asked.groups()
        body, headers = (self.filled(yaml.load(each, Text)) if each else None for each in told)
        return self.client(who or "root").ask(method, self.spelled(path), body, headers)

    def client(self, who: str) -> Client:
        """Return the client of a role, whose token is made when it first asks, or by a token."""
        if who in self.clients:
            return self.clients[who]
        url = self.service.opened.operators[1]
        if who in {"stranger", "wrong"}:
            return stranger(url, "wrong" if who == "wrong" else "")
        if who.startswith("$"):
            return Client(url, self.bound[who[1:]])
        if who == "token-file":
            path = Path(self.service.settings.operator.token_file)
            token = path.read_text(encoding="ascii").strip()
        else:
            made = self.root.ask("POST", "/v1/tokens", {"name": f"{who}-1", "role": who})
            token = made.json["token"]
        return self.clients.setdefault(who, Client(url, token))

    def spelled(self, text: str) -> str:
        return re.sub(r"\$(\w+|\{\w+\})", lambda name: str(self.bound[name[1].strip("{}")]), text)

    def filled(self, body: Any) -> Any:
        match body:
            case str() if body.startswith("$") and body[1:] in self.bound:
                return self.bound[body[1:]]
            case str():
                return self.spelled(body)
            case dict():
                return {name: self.filled(value) for name, value in body.items()}
            case list():
                return [self.filled(value) for value in body]
        return body

    def run(self, said: str, expected: str) -> None:
        """Run a command in this process."""
        status, out, err = self.cli(*shlex.split(self.spelled(said))[1:])
        told = CLI_EXPECTED.fullmatch(expected)
        assert told, expected
        assert status == ExitStatus[(told[1] or "ok").replace("-", "_").upper()], (out, err)
        shown = yaml.load(out, Text) if "--json" in said and out else None
        width = max(map(len, out.splitlines()), default=0)
        words = " ".join(out.split())
        facts = {"out": out, "words": words, "err": err.splitlines(), "json": shown, "width": width}
        self.compare(facts, told[2])

    def compare_answer(self, answer: Answer, expected: str) -> None:
        told = EXPECTED.fullmatch(expected)
        assert told, expected
        status, code, facts = told.groups()
        assert answer.status in ({int(status)} if status else {200, 201}), answer.body
        text = answer.body.decode()
        is_json = answer.headers.get("Content-Type", "").startswith("application/json")
        document = answer.json if is_json and text else {}
        assert not code or document["error"]["code"] == code, text
        document = document.get("error", document) if code else document
        self.compare({**document, "headers": answer.headers, "text": text}, facts)

    def compare(self, document: dict[str, Any], facts: str | None) -> None:
        for told, expected in (yaml.load(facts, Text) if facts else {}).items():
            place, judged = (told[:-1], told[-1]) if told[-1] in "~^!<" else (told, "=")
            found = fact(document, place.split("."))
            if judged == "=" and isinstance(expected, str) and expected.startswith("$"):
                self.bound.setdefault(expected[1:], found)
            assert JUDGES[judged](found, self.filled(expected)), (told, found)

    # What is no request.

    def go_to(self, elapsed: timedelta) -> None:
        """Time passes, and what is due by then has started or ended before the next line."""
        self.clock.advance(NOON + elapsed - self.clock.now())
        self.service.plane.advance().result()
        self.service.plane.expire_holds().result()

    def saw(
        self,
        machine: str,
        version: str = "2020-07-01",
        agent: str = "",
        reason: str = "",
        **at: str,
    ) -> None:
        """A guest asks, some time after now, or before noon."""
        when = self.clock.now() + elapsed(at.get("later", "0s"))
        when -= elapsed(at.get("earlier", "0s"))
        status = AgentStatus(agent) if agent else None
        self.service.guests.saw(machine, version, at=when, agent=status, reason=reason)

    def end(self, operation: str, how: str) -> None:
        end(self.service, self.root, operation, well=how == "well")

    def doubt(self, operation: str) -> None:
        attempt = under_way(self.root, operation)
        self.service.plane.report_unknown(operation, attempt, "its result was lost").result()

    def approve(self, scope: str, event: str, by: str, address: str) -> None:
        """A guest approves an event."""
        self.service.plane.approve(scope, [self.filled(event)], by=by, address=address).result()

    def metric(self, name: str, expected: str) -> None:
        """Prometheus reads this number, some number (`>0`), or none (`-`)."""
        found = scraped(self.root).get(f"forewarn_{name}")
        match expected:
            case "-":
                assert found is None
            case ">0":
                assert found
            case _:
                assert found == float(expected), found

    def forget(self, **ages: str) -> None:
        """Forget what is older than so much, of each kind that is named."""
        kept = {kind: elapsed(age) for kind, age in ages.items()}
        self.service.plane.forget(Retention(**kept)).result()

    def touch(self, name: str) -> None:
        """Make a file beside the store."""
        Path(self.service.settings.store.path).with_name(name).touch()

    def remember(self) -> None:
        self.bound["before"] = self.everything()

    def unchanged(self) -> None:
        assert self.bound["before"] == self.everything()

    def everything(self) -> list[Any]:
        """All that the service holds."""
        paths = ["/v1/fleet/machines", "/v1/fleet/scopes", "/v1/maintenances", "/v1/history"]
        return [self.root.get(path) for path in [*paths, "/v1/webhooks", "/v1/tokens"]]

    def joined(self) -> None:
        self.beside.result(patience.SECONDS)

    def settle(self) -> None:
        """What was submitted to the writer is done."""
        self.service.plane.probe().result()


def families(client: Client) -> list[Metric]:
    """Return what a scrape tells, read by Prometheus' own parser."""
    answer = client.ask("GET", "/metrics")
    assert answer.status == 200, answer.body
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    return list(text_string_to_metric_families(answer.body.decode()))


def scraped(client: Client) -> dict[str, float]:
    return samples(families(client))


def samples(told: Iterable[Metric]) -> dict[str, float]:
    """Return the samples by their names, as `forewarn_events{status=Queued,type=Reboot}`."""
    found: dict[str, float] = {}
    for sample in (one for family in told for one in family.samples):
        labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
        name = sample.name + (f"{{{labels}}}" if labels else "")
        assert name not in found
        found[name] = sample.value
    return found


def fact(document: Any, steps: list[str]) -> Any:
    """Return what is at a place of a document; None of what is not there."""
    if not steps:
        return document
    step, *rest = steps
    if step == "#":
        return len(document)
    if step == "*":
        return [fact(each, rest) for each in document]
    return fact(document[int(step)] if isinstance(document, list) else document.get(step), rest)
