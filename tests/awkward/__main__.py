"""Run one awkward server: `python -m awkward NAME`, with tests/ on the path.

Its first line on stdout is its address. What a judge wants to know goes to the record, a JSON
line each: what was approved, where a redirect was followed, how much an endless answer got rid of.
"""

import argparse
import contextlib
import json
import socket
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path

from awkward.conversation import Conversation, Over
from awkward.servers import SERVERS, Host, name_of_machine
from awkward.story import Story


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="awkward", description=__doc__)
    parser.add_argument("name", choices=sorted(SERVERS))
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--scale", type=float, default=1.0, help="seconds of its own in a real one")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--state", help="how far the story had gone when it died")
    parser.add_argument("--down", type=float, default=0.0, help="seconds before it listens")
    return parser.parse_args()


def listen(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(64)
    return listener


def serve(connection: socket.socket, host: Host) -> None:
    """Answer the requests of one connection until it is over."""
    talk = Conversation(connection)
    with connection, contextlib.suppress(Over):
        while True:
            request = talk.request()
            if request.path.rstrip("/").endswith("/metadata/scheduledevents"):
                SERVERS[host.name](talk, request, host)
            else:
                name_of_machine(talk, request)


def watch_elsewhere(listener: socket.socket, host: Host) -> None:
    """Write down who comes here: a redirect leads here, and nobody should follow it."""
    while True:
        connection, _ = listener.accept()
        host.note(followed=True)
        connection.close()


def main() -> None:
    given = arguments()
    threading.Event().wait(given.down)
    listener = listen(given.port)
    now = datetime.now(UTC).replace(microsecond=0)
    story = Story(**json.loads(given.state)) if given.state else Story(origin=now.isoformat())
    host = Host(given.name, story, given.record, given.scale)
    host.port = listener.getsockname()[1]
    elsewhere = listen(0)
    host.elsewhere = f"http://127.0.0.1:{elsewhere.getsockname()[1]}"
    threading.Thread(target=watch_elsewhere, args=(elsewhere, host), daemon=True).start()
    if not given.state:
        sys.stdout.write(f"http://127.0.0.1:{host.port}\n")
        sys.stdout.flush()
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve, args=(connection, host), daemon=True).start()


main()
