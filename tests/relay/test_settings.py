"""The relay's settings and metrics: which addresses it takes, and what its page says."""

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from forewarn.relay import relay
from forewarn.relay.settings import PORT, replica
from guest.room import EVENTS, get
from house import tree
from relay.running import relayed


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("https://forewarn-1.example", f"https://forewarn-1.example:{PORT}"),
        ("https://[fd00::1]:443/", "https://[fd00::1]:443"),
        ("http://127.0.0.1:80", "http://127.0.0.1:80"),
        ("http://localhost", f"http://localhost:{PORT}"),
    ],
)
def test_an_address_of_a_replica_is_a_url_with_a_port_of_its_own(url: str, address: str) -> None:
    assert str(replica(url)) == address


@pytest.mark.parametrize(
    "url",
    [
        "",
        "forewarn-1.example:8173",
        "ftp://forewarn-1.example",
        "https://",
        "https://forewarn-1.example:0",
        "https://forewarn-1.example:65536",
        "https://forewarn 1.example",
        "https://forewarn-1.example\n",
        "https://ann:secret@forewarn-1.example",
        "https://forewarn-1.example/v1",
        "https://forewarn-1.example?x=1",
        "http://10.0.0.1",
        "http://forewarn-1.example",
    ],
)
def test_what_is_no_address_of_a_replica_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="invalid URL"):
        replica(url)


# Its metrics.

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
