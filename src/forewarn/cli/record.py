"""`forewarn record`: what this machine's metadata endpoint says, as a scenario for tests."""

import http.client
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TextIO

from forewarn.cli import output
from forewarn.cli.exits import ExitStatus, Failed, handled
from forewarn.cli.options import argument, flag, option

if TYPE_CHECKING:
    from forewarn.client.discovery import EndpointAddress

EVENTS: Final = "/metadata/scheduledevents?api-version=2020-07-01"
NAME: Final = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"

POLL_SECONDS: Final = 1.0
"""Between two questions: as Azure recommends."""

ANSWER_SECONDS: Final = 150.0
"""For an answer: Azure holds the first one back for up to two minutes."""

MAX_ANSWER: Final = 16 * 1024 * 1024
"""The most bytes of an answer: many times what the largest document has."""


class Answered(Exception):  # noqa: N818 - an answer, though not the one that was asked for
    """The endpoint answered, and not with what was asked for; the message says how."""


def record(
    file: Annotated[Path, argument("FILE", "The file to write; it must not exist yet.")],
    *,
    endpoint: Annotated[
        str | None,
        option(
            "--endpoint",
            "URL",
            "The metadata endpoint. Default: FOREWARN_ENDPOINT, else http://169.254.169.254.",
        ),
    ] = None,
    keep_names: Annotated[
        bool, flag("--keep-names", "Keep names and EventIds. Default: made-up ones.")
    ] = False,
    once: Annotated[bool, flag("--once", "End after the first document.")] = False,
) -> None:
    """Record what this machine's endpoint says, until Ctrl-C.

    The file is a scenario that replays it to handlers. Nothing is approved.
    """
    from forewarn import clock
    from forewarn.client import discovery
    from forewarn.testing.record import Recording

    wall = clock.SystemClock()
    try:
        places = discovery.find(endpoint, os.environ, wall.now())
    except discovery.BadAddress as error:
        raise Failed(ExitStatus.USAGE, str(error)) from error
    over = threading.Event()
    with _created(file) as written, handled(lambda *_: over.set(), "SIGINT", "SIGTERM"):
        place = places[0]
        try:
            name = _ask(place, NAME)[0].decode()
        except (OSError, http.client.HTTPException, Answered, UnicodeDecodeError) as error:
            output.note(f"this machine's name is not known: {error}")
            name = ""
        recording = Recording(name, keep_names=keep_names)
        written.write(recording.beginning())
        said = ""
        while not over.is_set():
            trouble = ""
            try:
                body, headers = _ask(place, EVENTS)
                found = recording.answer(body, headers, wall.now())
                if found:
                    written.write(found)
                    written.flush()
                    output.note("recorded a document")
                    if once:
                        return
            except (OSError, http.client.HTTPException, Answered, ValueError) as error:
                trouble = f"{place}: {error}"
            if trouble and trouble != said:
                output.note(trouble)
            said = trouble
            over.wait(POLL_SECONDS)


def _created(file: Path) -> TextIO:
    try:
        return file.open("x", encoding="utf-8")
    except OSError as error:
        message = f"cannot write {file}: {error.strerror}"
        raise Failed(ExitStatus.USAGE, message) from error


def _ask(place: "EndpointAddress", path: str) -> tuple[bytes, tuple[tuple[str, str], ...]]:
    connection = http.client.HTTPConnection(place.host, place.port, timeout=ANSWER_SECONDS)
    try:
        connection.request("GET", place.prefix + path, headers={"Metadata": "true"})
        answer = connection.getresponse()
        body = answer.read(MAX_ANSWER)
        if answer.status != 200:
            raise Answered(f"status {answer.status}")
        return body, tuple(answer.getheaders())
    finally:
        connection.close()
