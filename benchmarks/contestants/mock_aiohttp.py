"""A mock server of Scheduled Events on aiohttp, as people write them for their tests."""

import sys
import uuid
from typing import Any

from aiohttp import web

events: list[dict[str, Any]] = []
state = {"incarnation": 0}


async def read(request: web.Request) -> web.Response:
    if request.headers.get("Metadata", "").lower() != "true":
        return web.json_response({"error": "Required metadata header not specified"}, status=400)
    if "api-version" not in request.query:
        return web.json_response({"error": "api-version is invalid"}, status=400)
    return web.json_response({"DocumentIncarnation": state["incarnation"], "Events": events})


async def approve(request: web.Request) -> web.Response:
    wanted = {each["EventId"] for each in (await request.json())["StartRequests"]}
    for event in events:
        if event["EventId"] in wanted:
            event.update(EventStatus="Started", NotBefore="")
            state["incarnation"] += 1
    return web.Response()


async def schedule(_: web.Request) -> web.Response:
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
    return web.Response()


app = web.Application()
app.router.add_get("/metadata/scheduledevents", read)
app.router.add_post("/metadata/scheduledevents", approve)
app.router.add_post("/schedule", schedule)

if __name__ == "__main__":
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None)
