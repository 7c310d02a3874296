"""docs/guides/kubernetes.md as it stands: its script, and a real kubectl."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import patience
from patience import until
from recipes import cluster, commands, pages
from recipes.cluster import Cluster

SCRIPT = pages.block("kubernetes", "sh")
RULES = pages.block("kubernetes", "toml")
needs_kubectl = pytest.mark.skipif(not shutil.which("kubectl"), reason="kubectl is not installed")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Cluster]:
    with cluster.cluster(tmp_path) as made:
        yield made


def begin(node: Cluster, *arguments: str) -> subprocess.Popen[str]:
    """Run the script of the page."""
    folder = node.kubeconfig.parent
    places = {"/etc/forewarn/": f"{folder}/", "/var/lib/forewarn-agent/": f"{folder}/"}
    script = pages.placed(SCRIPT, places).replace("sleep 2", "sleep 0.1")
    given = {**os.environ, "HOME": str(folder)}  # kubectl keeps a cache there
    return subprocess.Popen(["sh", "-c", script, "node.sh", *arguments], env=given, text=True)


def run(node: Cluster, *arguments: str) -> None:
    assert begin(node, *arguments).wait(patience.SECONDS) == 0


@needs_kubectl
def test_a_node_is_drained_and_takes_pods_again(node: Cluster) -> None:
    node.put("web-1")
    node.put("node-exporter", owner="DaemonSet")
    node.put("by-hand", owner="")
    run(node, "drain", "--grace-period=15")
    assert node.spec["unschedulable"] is True
    assert sorted(name for name, _ in node.evicted) == ["by-hand", "web-1"]
    assert {options["gracePeriodSeconds"] for _, options in node.evicted} == {15}
    run(node, "drain")  # once more, as an agent that was killed in the middle
    run(node, "uncordon")
    assert node.spec == {}
    assert set(node.pods) == {"node-exporter"}


@needs_kubectl
def test_the_page_gives_the_rights_that_it_takes(node: Cluster) -> None:
    manifests = yaml.safe_load_all(pages.block("kubernetes", "yaml"))
    [rules] = [each["rules"] for each in manifests if each["kind"] == "ClusterRole"]
    node.put("web-1")
    node.put("node-exporter", owner="DaemonSet")
    run(node, "drain")
    run(node, "uncordon")
    given = {(verb, name) for rule in rules for name in rule["resources"] for verb in rule["verbs"]}
    assert node.asked == given


@needs_kubectl
def test_a_node_that_was_cordoned_is_drained_and_stays_cordoned(node: Cluster) -> None:
    node.spec["unschedulable"] = True
    node.put("web-1")
    run(node, "drain")
    assert not node.pods
    run(node, "uncordon")
    assert node.spec["unschedulable"] is True


@needs_kubectl
def test_a_disruption_budget_keeps_a_pod_until_the_script_is_ended(node: Cluster) -> None:
    node.put("web-1")
    node.protected.add("web-1")
    draining = begin(node, "drain")
    assert node.refused.wait(patience.SECONDS)
    draining.kill()
    draining.wait()
    assert set(node.pods) == {"web-1"}


@needs_kubectl
def test_a_node_takes_pods_again_only_when_it_is_ready(node: Cluster) -> None:
    run(node, "drain")
    node.is_ready = False
    node.looked.clear()
    uncordoning = begin(node, "uncordon")
    assert node.looked.wait(patience.SECONDS)
    assert node.spec["unschedulable"] is True
    node.is_ready = True
    assert uncordoning.wait(patience.SECONDS) == 0
    until(lambda: node.spec == {})


@pytest.mark.parametrize("line", commands.named("kubernetes"))
def test_every_command_of_the_page_runs(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = commands.run(line, RULES, tmp_path, capsys)
    assert "drain the node" in said or "node.sh drain" in said
