"""The alert rules and the dashboard: read by promtool, and each alert fires where it must."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

import stories
from forewarn.maintenance.alerts import AlertKind
from forewarn.server.guest.limits import Reason
from house.tree import ROOT

ALERTS: Final = ROOT / "packaging" / "prometheus-alerts.yml"
DASHBOARD: Final = json.loads((ROOT / "packaging" / "grafana-dashboard.json").read_text())
RULES: Final = [
    rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]
]
QUERIES: Final = [
    target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())
]
METRICS: Final = {
    name
    for page in ("metrics", "agent-metrics", "relay-metrics")
    for name in re.findall(
        r"^### `(\w+)`$", (ROOT / "docs" / "reference" / f"{page}.md").read_text(), re.MULTILINE
    )
}
NEEDS_PROMTOOL: Final = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="needs promtool (Debian's package prometheus)"
)

SERVICE: Final = '{instance="one", job="forewarn"}'
CALM: Final = {
    f"forewarn_build_info{SERVICE}": "1",
    f"forewarn_ready{SERVICE}": "1",
    f"forewarn_machines{SERVICE}": "100",
    f"forewarn_machines_listening{SERVICE}": "100",
    f"forewarn_replicas{SERVICE}": "1",
    f"forewarn_replica_behind_seconds{SERVICE}": "1",
    f"forewarn_guest_connections{SERVICE}": "100",
    'forewarn_maintenances{state="running"}': "1",
    'forewarn_maintenances{state="halted"}': "0",
    'forewarn_relay_serving{instance="h1"}': "1",
    'forewarn_relay_state_saved{instance="h1"}': "1",
    'forewarn_agent_healthy{instance="web-0"}': "1",
    'forewarn_agent_endpoint_up{instance="web-0"}': "1",
    'forewarn_agent_name_known{instance="web-0"}': "1",
    'forewarn_agent_stuck{instance="web-0"}': "0",
    'up{instance="web-0", job="forewarn-agent"}': "1",
}
"""Series, each a constant or a counter as promtool writes them, when all is well."""

((_ROWS,),) = (each.values for each in stories.stories_beside(__file__, "alerts.txt"))
TROUBLE: Final = {
    row.split()[0]: dict(re.findall(r"(\w+\{.*?\}) (\S+)", row.replace("{SERVICE}", SERVICE)))
    for _, row in _ROWS
    if row and not row.startswith("#")
}
"""Series that are otherwise when an alert must fire."""


def test_every_query_asks_for_metrics_and_labels_that_there_are() -> None:
    for query in (*QUERIES, *(rule["expr"] for rule in RULES)):
        asked = set(re.findall(r"\b((?:forewarn|process)_\w+)", query))
        assert {re.sub(r"_bucket$", "", name) for name in asked} <= METRICS, query
        for pattern in re.findall(r'kind=~?"([^"]+)"', query):
            assert set(pattern.split("|")) <= {*AlertKind}, query
        for pattern in re.findall(r'reason=~?"([^"]+)"', query):
            assert any(re.fullmatch(pattern, reason) for reason in Reason), query


def test_each_alert_of_the_service_has_a_rule_but_what_operators_hold() -> None:
    found = " ".join(rule["expr"] for rule in RULES)
    named = {each for kinds in re.findall(r'kind=~?"([^"]+)"', found) for each in kinds.split("|")}
    by_other_metrics = {AlertKind.HALTED, AlertKind.STORE_DOWN, AlertKind.REPLICA_LOST}
    assert {*AlertKind} - named == by_other_metrics | {AlertKind.HELD}


def test_panels_and_alerts_have_names_of_their_own() -> None:
    panels = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(panels)) == len(panels) > 20
    assert [rule["alert"] for rule in RULES] == [*TROUBLE]
    for rule in RULES:
        assert rule["labels"]["severity"] in {"page", "ticket"}
        assert rule["annotations"].keys() == {"summary", "action"}


def test_the_docs_name_no_alert_that_has_no_rule() -> None:
    pages = [page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md")]
    named = {name for page in pages for name in re.findall(r"`(Forewarn[A-Z][a-z]\w+)`", page)}
    rules = {rule["alert"] for rule in RULES}
    assert named
    assert named <= rules


def test_the_guide_says_of_each_alert_of_the_service_what_to_do() -> None:
    guide = (ROOT / "docs" / "guides" / "operating.md").read_text(encoding="utf-8")
    table = guide.partition("\n## What needs you\n")[2].partition("\n## ")[0]
    firsts = re.findall(r"(?m)^\| (`[^|]+) \|", table)
    assert sorted(re.findall(r"`([\w-]+)`", " ".join(firsts))) == sorted(AlertKind)


@NEEDS_PROMTOOL
def test_prometheus_reads_every_query_of_the_dashboard(tmp_path: Path) -> None:
    rules = [
        {"record": f"query:{number}", "expr": re.sub(r"\$\w+", "any", query)}
        for number, query in enumerate(QUERIES)
    ]
    file = tmp_path / "queries.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    _promtool("check", "rules", str(file))


@NEEDS_PROMTOOL
def test_each_alert_fires_in_its_trouble_and_none_when_all_is_well(tmp_path: Path) -> None:
    tests = [_firing("", {}), *(_firing(name, trouble) for name, trouble in TROUBLE.items())]
    file = tmp_path / "tests.yml"
    file.write_text(json.dumps({"rule_files": [str(ALERTS)], "tests": tests}))
    _promtool("check", "rules", str(ALERTS))
    _promtool("test", "rules", str(file))


def _firing(name: str, trouble: dict[str, str]) -> dict[str, Any]:
    """Return a test of promtool's: two hours later this alert fires; none without a name."""
    series = {kind: values for kind, values in (CALM | trouble).items() if values != "gone"}
    named = f'alertname="{name}",' if name else ""
    return {
        "name": name or "calm",
        "interval": "1m",
        "input_series": [
            {"series": kind, "values": values if "x" in values else f"{values}x240"}
            for kind, values in series.items()
        ],
        "promql_expr_test": [
            {
                "expr": f'count by (alertname) (ALERTS{{{named}alertstate="firing"}})',
                "eval_time": "2h",
                "exp_samples": (
                    [{"labels": f'{{alertname="{name}"}}', "value": 1}] if name else []
                ),
            }
        ],
    }


def _promtool(*arguments: str) -> None:
    ran = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
