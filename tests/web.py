"""One HTTP request on a connection of its own, to and from addresses of choice."""

from collections.abc import Mapping
from contextlib import closing
from http.client import HTTPConnection
from typing import NamedTuple

import patience

METADATA = {"Metadata": "true"}


class Told(NamedTuple):
    """What was answered."""

    status: int
    body: str
    headers: dict[str, str]
    """By their names in lower case."""


def ask(
    port: int,
    path: str,
    method: str = "GET",
    body: str | None = None,
    *,
    headers: Mapping[str, str] = METADATA,
    to: str = "127.0.0.1",
    source: str = "",
) -> Told:
    """Ask, by default as a guest does."""
    place = (source, 0) if source else None
    there = HTTPConnection(to, port, patience.SECONDS, source_address=place)
    with closing(there):
        there.request(method, path, body, dict(headers))
        answer = there.getresponse()
        named = {name.lower(): value for name, value in answer.headers.items()}
        return Told(answer.status, answer.read().decode(), named)
