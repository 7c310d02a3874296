"""The relay's metrics: each has its heading, and Prometheus reads them."""

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from forewarn.relay import relay
from guest.room import EVENTS, get
from house import tree
from relay.running import relayed

PAGE = tree.ROOT / "docs" / "reference" / "relay-metrics.md"


def test_each_metric_has_its_heading_and_its_help_and_nothing_else_has() -> None:
    text = PAGE.read_text(encoding="utf-8")
    sections = dict(re.findall(r"^### `(\w+)`\n(.+)$", text, re.MULTILINE))
    assert list(sections) == [relay.PREFIX + name for name in relay.FAMILIES]
    for name, help_ in relay.FAMILIES.items():
        assert sections[relay.PREFIX + name].startswith(help_)


async def test_a_relays_metrics_are_read_as_prometheus_reads_them(tmp_path: Path) -> None:
    async with relayed(tmp_path) as (_, running):
        assert await running.status() == 200
        assert await running.status(get(EVENTS, "Expect: 200-ok")) == 417
        text = running.relay.metrics(process=1).decode()
    families = {
        f"{each.name}_total" if each.type == "counter" else each.name: each.samples
        for each in text_string_to_metric_families(text)
    }
    assert set(families) == {relay.PREFIX + name for name in relay.FAMILIES}
    requests = families[f"{relay.PREFIX}guest_requests_total"]
    assert {"resource": "events", "status": "200"} in [each.labels for each in requests]
