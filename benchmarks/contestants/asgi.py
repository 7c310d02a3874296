"""The service's own exchange behind uvicorn: what our transport is worth.

Callers are the machines of `FOREWARN_BENCH_MACHINES`, a number, by their loopback addresses; each
reads the same document. It is uvicorn at its fastest: uvloop, httptools, no access log.
"""

import os
import uuid
from typing import Any

from forewarn.protocol import codec, document, exchange
from forewarn.protocol.exchange import HttpRequest, Peer, Reply, Rules
from forewarn.protocol.versions import Version
from service import address_of

CALLERS = {
    address_of(number): f"m{number}"
    for number in range(int(os.environ.get("FOREWARN_BENCH_MACHINES", "0")))
}
RULES = Rules()


class World:
    """What one request is answered from."""

    def __init__(self, address: str) -> None:
        self._address = address

    def caller(self, machine: str | None) -> str | None:
        return machine or CALLERS.get(self._address)

    def retry_after_seconds(self, caller: str) -> int:
        return 0

    def document(self, caller: str, version: Version) -> tuple[int, bytes]:
        return 0, codec.encode_document(document.Document(incarnation=0), version)

    def tree(self, caller: str) -> Any:
        return {}

    def approve(self, caller: str, event_ids: tuple[str, ...]) -> Reply:
        return exchange.approved()


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    body = b""
    more = scope["method"] == "POST"
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    target = scope["raw_path"] + b"?" + scope["query_string"]
    request = HttpRequest(scope["method"].encode(), target, tuple(scope["headers"]), body)
    address = scope["client"][0]
    reply = exchange.respond(request, Peer(address=address, vm_paths=True), RULES, World(address))
    headers = [
        *reply.headers,
        (b"x-ms-request-id", str(uuid.uuid4()).encode()),
        (b"content-length", b"%d" % len(reply.body)),
    ]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})
