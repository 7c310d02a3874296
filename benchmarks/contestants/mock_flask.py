"""A mock server of Scheduled Events on Flask, as people write them for their tests."""

import sys
import uuid
from typing import Any

from flask import Flask, Response, jsonify, request

app = Flask(__name__)
events: list[dict[str, Any]] = []
state = {"incarnation": 0}


def refusal(why: str) -> tuple[Response, int]:
    return jsonify(error=why), 400


@app.get("/metadata/scheduledevents")
def read() -> Any:
    if request.headers.get("Metadata", "").lower() != "true":
        return refusal("Required metadata header not specified")
    if "api-version" not in request.args:
        return refusal("api-version is invalid or was not specified")
    return jsonify(DocumentIncarnation=state["incarnation"], Events=events)


@app.post("/metadata/scheduledevents")
def approve() -> Any:
    wanted = {each["EventId"] for each in request.get_json(force=True)["StartRequests"]}
    for event in events:
        if event["EventId"] in wanted:
            event.update(EventStatus="Started", NotBefore="")
            state["incarnation"] += 1
    return ""


@app.post("/schedule")
def schedule() -> Any:
    events.append(
        {
            "EventId": str(uuid.uuid4()).upper(),
            "EventStatus": "Scheduled",
            "EventType": "Reboot",
            "ResourceType": "VirtualMachine",
            "Resources": ["web-0"],
            "NotBefore": "Mon, 19 Sep 2016 18:29:47 GMT",
            "Description": "",
            "EventSource": "Platform",
            "DurationInSeconds": -1,
        }
    )
    state["incarnation"] += 1
    return ""


if __name__ == "__main__":
    app.run("127.0.0.1", int(sys.argv[1]), threaded=True)
