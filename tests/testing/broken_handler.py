"""A handler that is right, or has the fault that its argument names."""

import http.client
import json
import os
import subprocess
import sys
import threading
import urllib.request
from datetime import datetime
from pathlib import Path
from typing import Any

FAULT = sys.argv[1]
ENDPOINT = os.environ["FOREWARN_ENDPOINT"]
VERSION = "2017-08-01" if FAULT == "asks-by-an-old-version" else "2020-07-01"
EVENTS = f"{ENDPOINT}/metadata/scheduledevents?api-version={VERSION}"
NAME = f"{ENDPOINT}/metadata/instance/compute/name?api-version=2021-02-01&format=text"
NOTE = Path(os.environ["FOREWARN_FOLDER"], "note")
ANSWER_SECONDS = None if FAULT == "waits-for-ever" else 5.0
POLL_SECONDS = 0.005 if FAULT == "polls-too-often" else 0.2
PAUSE = threading.Event()


def ask(url: str, body: bytes | None = None) -> bytes:
    true = "True" if FAULT == "says-true-in-capitals" else "true"
    request = urllib.request.Request(url, data=body, headers={"Metadata": true})
    with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
        content: bytes = answer.read()
        return content


def until_answered(url: str, body: bytes | None = None) -> bytes:
    while True:
        try:
            return ask(url, body)
        except (OSError, http.client.HTTPException):
            if FAULT == "dies-on-503":
                raise
            PAUSE.wait(POLL_SECONDS)


def look() -> dict[str, Any] | None:
    """Return the events by id; None for an answer that is no document."""
    try:
        events = json.loads(ask(EVENTS))["Events"]
    except (OSError, ValueError, KeyError, http.client.HTTPException):
        if FAULT == "dies-on-503":
            raise
        return None
    normal = str if FAULT == "minds-case" else str.upper
    return {normal(event["EventId"]): event for event in events}


def prepare(event_id: str) -> None:
    body = json.dumps({"StartRequests": [{"EventId": event_id}]}).encode()
    if FAULT == "approves-first":
        until_answered(EVENTS, body)
    if FAULT == "notes-it-beside-the-drain":
        threading.Timer(0.3, NOTE.touch).start()
    is_silent = FAULT == "leaves-no-marks" or NOTE.exists()
    if FAULT == "trusts-a-drain-that-was-cut":
        NOTE.touch()
    program = "true" if is_silent else os.environ["FOREWARN_DRAIN"]
    drained = subprocess.run([program, event_id], check=False)
    if drained.returncode and FAULT != "approves-undrained":
        return
    for _ in range(2 if FAULT == "approves-twice" else 1):
        until_answered(EVENTS, body)


def is_ours(event: dict[str, Any]) -> bool:
    if FAULT == "reads-dates":
        datetime.strptime(event["NotBefore"], "%a, %d %b %Y %H:%M:%S GMT")  # noqa: DTZ007
    if FAULT == "notes-it-beside-the-drain" and NOTE.exists():
        return False
    return event["EventStatus"] == "Scheduled" and (
        name in event["Resources"] or FAULT == "approves-others"
    )


name = until_answered(NAME).decode()
if FAULT == "drains-at-start":
    subprocess.run([os.environ["FOREWARN_DRAIN"]], check=False)
in_hand: set[str] = set()
before: dict[str, Any] = {}
while True:
    listed = look()
    if listed is not None:
        for event_id, event in listed.items():
            if is_ours(event) and event_id not in in_hand:
                in_hand.add(event_id)
                if FAULT == "leaves-zombies" and os.fork() == 0:
                    os._exit(0)
                if FAULT == "drains-beside-its-watch":
                    threading.Thread(target=prepare, args=(event_id,), daemon=True).start()
                else:
                    prepare(event_id)
        over = {each for each in in_hand if each not in listed and each not in before}
        in_hand -= over
        if over and not in_hand and FAULT != "stays-away":
            subprocess.run([os.environ["FOREWARN_UNDRAIN"]], check=False)
        before = listed
    PAUSE.wait(POLL_SECONDS)
