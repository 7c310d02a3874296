"""Reads by each version and approves by it, by urllib alone: `python client.py URL`."""

import datetime as dt
import json
import sys
import urllib.request

VERSIONS = (
    *("2017-03-01", "2017-08-01", "2017-11-01", "2019-01-01"),
    *("2019-04-01", "2019-08-01", "2020-07-01"),
)
PREVIEW = VERSIONS[0]


def ask(url: str, body: bytes | None = None) -> bytes:
    # The preview's published client approves without the header.
    headers = {} if body and PREVIEW in url else {"Metadata": "true"}
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=60) as answer:
        return bytes(answer.read())


for version in VERSIONS:
    url = sys.argv[1].replace(VERSIONS[-1], version)
    (event,) = json.loads(ask(url))["Events"]
    form = "%Y-%m-%dT%H:%M:%SZ" if version == PREVIEW else "%a, %d %b %Y %H:%M:%S GMT"
    if event["EventStatus"] == "Scheduled":
        dt.datetime.strptime(event["NotBefore"], form)  # noqa: DTZ007 - as clients do
    assert event["Resources"][0].startswith("_") is (version == PREVIEW)
    approval = '{"StartRequests":[{"EventId":"' + event["EventId"] + '"}]}'
    assert ask(url, approval.encode()) == b""
