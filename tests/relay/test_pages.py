"""The page of the relay's metrics says of each what the code says."""

import re
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from forewarn.relay import relay
from forewarn.relay.relay import RelayStatus
from house import tree

REFERENCE = tree.ROOT / "docs" / "reference"
METRICS = (REFERENCE / "relay-metrics.md").read_text(encoding="utf-8")


def test_each_metric_has_its_heading_and_its_help_and_nothing_else_has() -> None:
    sections = dict(re.findall(r"^### `(\w+)`\n(.+)$", METRICS, re.MULTILINE))
    assert list(sections) == [relay.PREFIX + name for name in relay.FAMILIES]
    for name, help_ in relay.FAMILIES.items():
        assert sections[relay.PREFIX + name].startswith(help_)


def test_a_relays_metrics_are_read_as_prometheus_reads_them() -> None:
    fares = RelayStatus(
        version="1",
        host="h1",
        machines=3,
        serving=True,
        revoked=False,
        age_seconds=0.0,
        replica="https://a:1",
        trouble="",
        saved=True,
        process=1,
    )
    figures: dict[str, Any] = {
        "answers": 2,
        "upstream_failures": 0,
        "approvals": {("approved",): 4},
        "stalled_seconds": 0.0,
        "started_timestamp_seconds": 1.0,
        "machines_seen": 1,
        "guest_connections": 2,
        "guest_connections_accepted": 3,
        "guest_waiters": 0,
        "guest_requests": {("events", "200"): 5},
        "guest_refusals": {("rate",): 6},
    }
    text = relay.metrics_page(fares, figures).decode()
    families = {
        f"{each.name}_total" if each.type == "counter" else each.name: each.samples
        for each in text_string_to_metric_families(text)
    }
    assert set(families) == {relay.PREFIX + name for name in relay.FAMILIES}
    (refusals,) = families[f"{relay.PREFIX}guest_refusals_total"]
    assert (refusals.labels, refusals.value) == ({"reason": "rate"}, 6)
