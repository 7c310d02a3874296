"""The usual loop: asks once a second, and compares with what it saw before. A loop of ours."""

import sys
import time

import requests

url = f"{sys.argv[1]}/metadata/scheduledevents?api-version=2020-07-01"
seen: set[tuple[str, str]] = set()
while True:
    document = requests.get(url, headers={"Metadata": "true"}, timeout=10).json()
    listed = {(event["EventId"], event["EventStatus"]) for event in document["Events"]}
    if listed != seen:
        sys.stdout.write(f"{time.monotonic_ns()}\n")
        sys.stdout.flush()
        seen = listed
    time.sleep(1)
