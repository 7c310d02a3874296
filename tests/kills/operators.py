"""An operator: asks for maintenance of every kind, steers it in every way, reads how it ends."""

import json
import random
import time
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from kills.wire import Broken, Wire

KINDS = {
    "request": 14.0,
    "cancel": 2.0,
    "vouch": 2.5,
    "postpone": 3.0,
    "hold": 1.5,
    "resume": 1.0,
    "acknowledge": 1.5,
    "fleet": 1.0,
    "history": 4.0,
}
"""What it does, and how often beside the rest. To vouch is to approve on the guests' behalf; what
is held is released after a while."""

HELD_SECONDS = (0.5, 2.5)
"""How long a hold is on: long enough for kills and starts, and for a notice to run out."""

POSTPONED_MINUTES = (1, 12)
"""Of the service's time: up to a second and a bit of ours."""

LATEST = 8

REFUSED = {404, 409, 422}
"""What has gone, is taken, has started, is over, or may not move so: to be expected of anything."""


class Operator:
    """One of two, who know nothing of each other."""

    def __init__(self, wire: Wire, cast: dict[str, Any], chance: random.Random) -> None:
        self._wire = wire
        self._cast = cast
        self._name = cast["name"]
        self._chance = chance
        self._known: dict[str, dict[str, Any]] = {}
        self._stopped: set[int] = set()
        self._failed: set[str] = set()
        self._holds: list[tuple[float, dict[str, str]]] = []
        self._number = 0
        self._mark = 0

    def turn(self) -> None:
        due = [place for until, place in self._holds if time.monotonic() >= until]
        if self._wire.draining:
            self._drain()
        elif due and self._wire.wanted not in KINDS:
            self._release(due[0])
        else:
            kind = self._wire.wanted
            if kind == "release" and self._holds:
                self._release(self._holds[0][1])
                return
            if kind not in KINDS:
                (kind,) = self._chance.choices(list(KINDS), list(KINDS.values()))
            if kind in {"cancel", "vouch", "postpone"} and not self._known:
                kind = "request"
            getattr(self, f"_{kind}")()

    def _request(self) -> None:
        self._number += 1
        body: dict[str, Any] = {
            "event_type": self._chance.choice(["Reboot", "Reboot", "Redeploy", "Freeze"]),
            "description": f"{self._name} asks {self._number}",
        } | self._target()
        status, answer = self._wire.ask(
            "request", "POST /v1/maintenances HTTP/1.1", body, asked=body
        )
        if status == 201:
            self._learn(json.loads(answer)["operations"])
        else:
            self._judge(status, answer)

    def _target(self) -> dict[str, Any]:
        """Return what maintenance is asked for: of a host, a scope, a few machines, or one."""
        kind = self._chance.random()
        if kind < 0.12:
            return {"hosts": [self._chance.choice(self._cast["hosts"])]}
        if kind < 0.27:
            return {"scopes": [self._chance.choice(self._cast["scopes"])]}
        if kind < 0.37:
            return {"machines": self._chance.sample(self._cast["machines"], 4)}
        if kind < 0.52:
            machine, goes = self._chance.choice(list(self._cast["mortal"].items()))
            return {"event_type": goes, "machines": [machine]}
        machine = self._chance.choice(self._cast["machines"])
        if self._chance.random() < 0.15:
            return {"event_type": "Reboot", "machines": [machine], "no_notice": True}
        return {"machines": [machine]}

    def _cancel(self) -> None:
        reference = self._one()
        del self._known[reference]
        if (
            self._chance.random() < 0.3
        ):  # the whole maintenance, with the turns of its units to come
            reference = reference.partition(".")[0]
        body = {"references": [reference], "reason": "changed my mind"}
        self._say("cancel", "POST /v1/cancellations", body, reference=reference)

    def _vouch(self) -> None:
        reference = self._one()
        events = [event["id"] for event in self._known[reference]["events"]]
        body = {"references": [reference]}
        self._say("vouch", "POST /v1/approvals", body, events=events)

    def _postpone(self) -> None:
        """Move something later: mostly what is asked for now, which nobody has approved yet."""
        if self._chance.random() < 0.7:
            self._request()
        reference = list(self._known)[-1]
        later = timedelta(minutes=self._chance.uniform(*POSTPONED_MINUTES))
        at = datetime.fromisoformat(self._known[reference]["not_before"]) + later
        body = {"references": [reference], "not_before": at.isoformat()}
        answer = self._say("postpone", "POST /v1/postponements", body, reference=reference)
        self._learn(answer.get("operations", ()))

    def _hold(self) -> None:
        place = self._place()
        until = time.monotonic() + self._chance.uniform(*HELD_SECONDS)
        body = {**place, "reason": "a storm"}
        try:
            status, answer = self._wire.ask("hold", "POST /v1/holds HTTP/1.1", body, place=place)
        except Broken as broken:
            if broken.sent:  # it may be on
                self._holds.append((until, place))
            raise
        if status == 201:
            self._holds.append((until, place))
        else:
            self._judge(status, answer)

    def _place(self) -> dict[str, str]:
        kinds = ["everything", *["scope", "machine", "host"] * 3]
        kind = self._chance.choice(kinds)
        named = self._cast.get(f"{kind}s")
        return {"kind": kind, "name": self._chance.choice(named) if named else ""}

    def _release(self, place: dict[str, str]) -> None:
        status, answer = self._wire.ask(
            "release",
            f"DELETE /v1/holds?{urlencode(place)} HTTP/1.1",
            place=place,
        )
        self._holds = [one for one in self._holds if one[1] != place]
        if status != 200:
            self._judge(status, answer)

    def _resume(self) -> None:
        if not self._stopped:
            self._history()
            return
        number = self._chance.choice(sorted(self._stopped))
        self._stopped.discard(number)
        self._say(
            "resume", f"POST /v1/maintenances/{number}/orders", {"order": "resume"}, number=number
        )

    def _acknowledge(self) -> None:
        if not self._failed:
            self._history()
            return
        reference = self._chance.choice(sorted(self._failed))
        self._failed.discard(reference)
        body = {"references": [reference], "even_if_down": True}
        self._say("acknowledge", "POST /v1/acknowledgements", body, references=[reference])

    def _fleet(self) -> None:
        """Mark its own machine anew, and bring back what was preempted or deleted."""
        self._mark += 1
        own = {"name": f"own-{self._name}", "tags": {"mark": str(self._mark)}}
        body = {"machine": [own], "scale_set": self._cast["revived"]}
        self._say("fleet", "PUT /v1/fleet?again=true", body, machine=own["name"], mark=self._mark)

    def _history(self) -> None:
        status, answer = self._wire.ask("history", "GET /v1/history?limit=30 HTTP/1.1")
        if status != 200:
            self._judge(status, answer)
            return
        operations = json.loads(answer)["operations"]
        over = [o for o in operations if o["ended_at"]]
        ends = {o["id"]: [o["status"], o["outcome"], o["ended_at"]] for o in over}
        self._wire.journal.write("ends", ends=ends)
        failed = [o for o in over if o["status"] == "Failed"]
        self._failed.update(o["id"] for o in failed if not o["acknowledged_by"])
        self._failed.difference_update(o["id"] for o in failed if o["acknowledged_by"])
        for operation in over:
            known = self._known.pop(operation["id"], None)
            if known and operation["unit"] is not None and operation["status"] != "Completed":
                self._stopped.add(operation["maintenance"])
        self._learn(o for o in operations if o["status"] == "Scheduled")

    def _drain(self) -> None:
        """Release whatever is held, by whomever, and acknowledge failures; then only read."""
        _, answer = self._wire.ask("history", "GET /v1/holds HTTP/1.1")
        held = [{"kind": one["kind"], "name": one["name"]} for one in json.loads(answer)["holds"]]
        _, answer = self._wire.ask("history", "GET /v1/alerts HTTP/1.1")
        alerts = json.loads(answer)["items"]
        self._failed.update(one["about"] for one in alerts if one["kind"] == "failed")
        if held:
            self._release(held[0])
        elif self._failed:
            self._acknowledge()
        else:
            self._history()

    def _say(self, kind: str, what: str, body: dict[str, Any], **facts: Any) -> Any:
        """Ask for something that may be refused; return what was answered, nothing if it was."""
        status, answer = self._wire.ask(kind, f"{what} HTTP/1.1", body, **facts)
        if status != 200:
            self._judge(status, answer)
            return {}
        return json.loads(answer)

    def _learn(self, operations: Any) -> None:
        for operation in operations:
            if operation["status"] == "Scheduled":
                self._known[operation["id"]] = operation

    def _one(self) -> str:
        """Return one of the latest operations that it knows of: an older one has its way behind."""
        return self._chance.choice(list(self._known)[-LATEST:])

    def _judge(self, status: int, answer: bytes) -> None:
        if status not in REFUSED:
            self._wire.journal.write("odd", status=status, said=answer.decode())
