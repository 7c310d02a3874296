"""Draining a node by a real kubectl, which asks a stand-in for the API server."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import patience
from agent import cluster
from agent.cluster import NODE, Cluster
from agent.workplace import Done
from forewarn.agent.actions.action import ActionFailed
from forewarn.agent.rules import RuleAction
from forewarn.settings import SettingsError, convert
from recipes import pages

pytestmark = pytest.mark.skipif(not shutil.which("kubectl"), reason="kubectl is not installed")


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setenv("HOME", str(tmp_path))  # kubectl keeps a cache there
    with cluster.cluster(tmp_path) as made:
        yield made


def done(cluster: Cluster, **terms: object) -> Done:
    return Done(kubernetes={"node": NODE, "kubeconfig": str(cluster.kubeconfig), **terms})


def test_a_node_is_drained_and_made_schedulable_again(node: Cluster) -> None:
    node.put("web-1")
    node.put("node-exporter", owner="DaemonSet")
    node.put("by-hand", owner="")
    drained = done(node)
    drained.prepare()
    assert node.spec["unschedulable"] is True
    assert sorted(name for name, _ in node.evicted) == ["by-hand", "web-1"]
    assert set(node.pods) == {"node-exporter"}
    drained.recover()
    assert node.spec == {}


def test_the_page_gives_the_rights_that_it_takes(node: Cluster) -> None:
    manifests = yaml.safe_load_all(pages.block("kubernetes", "yaml"))
    [rules] = [each["rules"] for each in manifests if each["kind"] == "ClusterRole"]
    node.put("web-1")
    node.put("node-exporter", owner="DaemonSet")
    drained = done(node, taint="maintenance:NoSchedule")
    drained.prepare()
    drained.recover()
    given = {(verb, name) for rule in rules for name in rule["resources"] for verb in rule["verbs"]}
    assert node.asked == given


def test_a_node_that_was_cordoned_is_drained_and_stays_cordoned(node: Cluster) -> None:
    node.spec["unschedulable"] = True
    node.put("web-1")
    drained = done(node)
    drained.prepare()
    assert not node.pods
    drained.recover()
    assert node.spec["unschedulable"] is True


def test_a_node_may_be_cordoned_only(node: Cluster) -> None:
    node.put("web-1")
    drained = done(node, drain=False)
    drained.prepare()
    assert node.spec["unschedulable"] is True
    assert set(node.pods) == {"web-1"}
    drained.recover()
    assert node.spec == {}


def test_limits_reach_the_pods(node: Cluster) -> None:
    node.put("web-1", app="web")
    node.put("cache-1", app="cache")
    done(node, grace_seconds=7, pod_selector="app=web").prepare()
    [(name, options)] = node.evicted
    assert (name, options["gracePeriodSeconds"]) == ("web-1", 7)


def test_a_pod_without_a_controller_is_kept_where_nothing_is_forced(node: Cluster) -> None:
    node.put("by-hand", owner="")
    with pytest.raises(ActionFailed, match="by-hand"):
        done(node, force=False).prepare()
    assert set(node.pods) == {"by-hand"}


def test_a_disruption_budget_keeps_a_pod_until_the_action_is_stopped(node: Cluster) -> None:
    node.put("web-1")
    node.protected.add("web-1")
    drained = done(node)
    begun = drained.begin()
    assert node.refused.wait(patience.SECONDS)
    assert begun.stop().startswith("cut")
    assert set(node.pods) == {"web-1"}
    drained.recover()
    assert node.spec == {}


def test_a_taint_is_set_and_removed(node: Cluster) -> None:
    other = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}
    node.spec["taints"] = [other]
    tainted = done(node, taint="maintenance=$event_type:NoExecute")
    tainted.prepare()
    assert node.taints == {"gpu=yes:NoSchedule", "maintenance=Reboot:NoExecute"}
    tainted.recover()
    assert node.taints == {"gpu=yes:NoSchedule"}


def test_a_taint_that_was_there_before_stays(node: Cluster) -> None:
    node.spec["taints"] = [{"key": "maintenance", "value": "x", "effect": "NoExecute"}]
    tainted = done(node, taint="maintenance=$event_type:NoExecute")
    tainted.prepare()
    tainted.recover()
    assert node.taints == {"maintenance=Reboot:NoExecute"}


def test_an_event_says_why(node: Cluster) -> None:
    done(node).prepare()
    [event] = node.events
    assert event["reason"] == "Reboot"
    assert event["involvedObject"] == {"kind": "Node", "name": NODE, "uid": NODE}


@pytest.mark.parametrize("terms", [{"event": False}, {}])
def test_a_node_is_drained_without_an_event(node: Cluster, terms: dict[str, object]) -> None:
    node.forbids_events = True
    said = done(node, **terms).prepare()
    assert node.spec["unschedulable"] is True
    assert ("Forbidden" in said) is (not terms)


def test_a_node_takes_pods_again_when_it_is_ready(node: Cluster) -> None:
    drained = done(node)
    drained.prepare()
    node.is_ready = False
    node.looked.clear()
    begun = drained.begin(undo=True)
    assert node.looked.wait(patience.SECONDS)
    assert node.spec["unschedulable"] is True
    node.is_ready = True
    assert begun.end().startswith("done")
    assert node.spec == {}


def test_a_node_that_does_not_become_ready_stays_cordoned(node: Cluster) -> None:
    drained = done(node)
    drained.prepare()
    node.is_ready = False
    node.looked.clear()
    begun = drained.begin(undo=True)
    assert node.looked.wait(patience.SECONDS)
    assert begun.stop().startswith("cut")
    assert node.spec["unschedulable"] is True


def test_an_unknown_node_and_a_cluster_that_is_away_fail(node: Cluster, tmp_path: Path) -> None:
    with pytest.raises(ActionFailed, match="other"):
        done(node, node="other").prepare()
    with pytest.raises(ActionFailed, match="kubectl get"):
        done(node, kubeconfig=str(tmp_path / "none")).prepare()


def test_what_was_never_noted_is_not_undone(node: Cluster) -> None:
    node.spec["unschedulable"] = True
    assert done(node).recover() == ""
    assert node.spec["unschedulable"] is True


@pytest.mark.parametrize(
    "terms",
    [
        {"node": "-x"},
        {"taint": "x"},
        {"taint": "a=b:Never"},
        {"taint": "-a:NoExecute"},
        {"node": "$no"},
        {"grace_seconds": -1},
    ],
)
def test_wrong_settings_are_refused(terms: dict[str, object]) -> None:
    with pytest.raises(SettingsError):
        convert({"kubernetes": terms}, RuleAction, [])
