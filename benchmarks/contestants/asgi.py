"""The service's own exchange behind uvicorn: what our transport is worth.

Callers are the machines of `FOREWARN_BENCH_MACHINES`, a number, by their loopback addresses; each
reads the same document. It is uvicorn at its fastest: uvloop, httptools, no access log.
"""

import os
import uuid
from typing import Any

from forewarn.protocol import codec, exchange, versions
from forewarn.protocol.exchange import GetDocument, Peer, Rules
from forewarn.protocol.message import HttpRequest, Reply
from service import address_of

CALLERS = {
    address_of(number): f"m{number}"
    for number in range(int(os.environ.get("FOREWARN_BENCH_MACHINES", "0")))
}
RULES = Rules()


def answer(request: HttpRequest, address: str) -> Reply:
    """Return the reply to a poll, judged as the service judges it."""
    peer = Peer(address=address, vm_paths=True)
    asked = exchange.judge(request, peer, RULES)
    if isinstance(asked, Reply):
        return asked
    if asked.machine is None and address not in CALLERS:
        return exchange.unknown_caller(address)
    assert isinstance(asked, GetDocument)
    body = codec.encode_document(versions.EventsDocument(incarnation=0), asked.version)
    return exchange.document_reply(asked, 0, body)


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    body = b""
    more = scope["method"] == "POST"
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    target = scope["raw_path"] + b"?" + scope["query_string"]
    request = HttpRequest(scope["method"].encode(), target, tuple(scope["headers"]), body)
    reply = answer(request, scope["client"][0])
    headers = [
        *reply.headers,
        (b"x-ms-request-id", str(uuid.uuid4()).encode()),
        (b"content-length", b"%d" % len(reply.body)),
    ]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})
