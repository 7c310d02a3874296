"""Drains a node of Kubernetes by kubectl; afterwards it takes pods again, if it did before.

kubectl finds the cluster by its own rules: `kubeconfig`, KUBECONFIG, or the service account of the
pod that the agent runs in. A node that somebody had cordoned is drained too, for its pods may still
run, and it stays cordoned afterwards.
"""

import socket
from typing import Final

import msgspec

from forewarn import clock
from forewarn.agent.action_settings import KubernetesSettings
from forewarn.agent.actions import program
from forewarn.agent.actions.action import Action, ActionFailed, ActionStopped

REQUEST_SECONDS: Final = 10
"""For one request to the API server, which answers at once or is in trouble."""

LOOK_SECONDS: Final = 2.0
"""Between two looks at a node that is to become Ready: its kubelet reports every ten seconds."""

MARK: Final = "forewarn|"
"""What the line that is read of kubectl's output begins with; warnings may stand around it."""

LOOK: Final = (
    f"jsonpath={MARK}{{.spec.unschedulable}}|"
    '{.status.conditions[?(@.type=="Ready")].status}|'
    '{range .spec.taints[*]}{.key}:{.effect} {end}{"\\n"}'
)


class _Node(msgspec.Struct, frozen=True):
    """What concerns the action of a node."""

    is_cordoned: bool
    is_ready: bool
    taints: frozenset[str]
    """As `key:effect`."""


class KubernetesAction(Action[KubernetesSettings]):
    """Notes how a node is, cordons and drains it, and undoes what it changed."""

    def prepare(self) -> str:
        settings, node = self.settings, self._name()
        seen = self._look(node)
        taint = self._taint()
        facts = {"cordoned": seen.is_cordoned, "tainted": _key(taint) in seen.taints}
        self.run.note({"node": node, **facts})
        unwritten = self._write_event(node)
        if taint:
            self._kubectl("taint", "nodes", node, taint, "--overwrite")
        if not settings.drain:
            self._kubectl("cordon", node)
            return unwritten
        limits = [f"--timeout={max(1, int(self.run.seconds_left))}s"]
        if settings.grace_seconds is not None:
            limits.append(f"--grace-period={settings.grace_seconds}")
        if settings.pod_selector:
            limits.append(f"--pod-selector={settings.pod_selector}")
        if settings.force:
            limits += ["--force", "--delete-emptydir-data"]
        self._kubectl("drain", node, "--ignore-daemonsets", *limits)
        return unwritten

    def recover(self) -> str:
        facts = self.run.begun.facts
        if not facts:
            return ""  # where nothing was noted nothing was changed
        node, taint = facts["node"], self._taint()
        if taint and not facts["tainted"] and _key(taint) in self._look(node).taints:
            self._kubectl("taint", "nodes", node, f"{_key(taint)}-")
        if facts["cordoned"]:
            return f"node {node} was cordoned before, and is left so"
        try:
            while not self._look(node).is_ready:
                self.run.wait(LOOK_SECONDS)
        except ActionStopped as cut:
            raise ActionStopped(f"node {node} is not Ready") from cut
        self._kubectl("uncordon", node)
        return f"node {node} is schedulable again"

    def _name(self) -> str:
        """Return the node's name; without one, the name that a kubelet gives itself."""
        return self.run.filled(self.settings.node) or socket.gethostname().lower()

    def _taint(self) -> str:
        return self.run.filled(self.settings.taint)

    def _look(self, node: str) -> _Node:
        said = self._kubectl("get", "node", node, "--output", LOOK)
        for line in said.splitlines():
            if line.startswith(MARK):
                cordoned, ready, taints = line.removeprefix(MARK).split("|")
                return _Node(cordoned == "true", ready == "True", frozenset(taints.split()))
        raise ActionFailed(f"kubectl says nothing of node {node}: {said}")

    def _write_event(self, node: str) -> str:
        """Let `kubectl describe node` show why; a cluster that refuses it is drained without."""
        if not self.settings.event:
            return ""
        told = self.run.variables()
        now = clock.SystemClock().now().strftime("%Y-%m-%dT%H:%M:%SZ")
        when = f", not before {told['not_before']}" if told["not_before"] else ""
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{node}.", "namespace": "default"},
            "involvedObject": {"kind": "Node", "name": node, "uid": node},  # as kubelets do
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
            "type": "Warning",
            "reason": told["event_type"],
            "message": f"{told['event_type']} of {told['resources']}{when}: {told['description']}",
            "source": {"component": "forewarn-agent", "host": node},
        }
        try:
            self._kubectl(
                "create", "--validate=false", "--filename=-", stdin=msgspec.json.encode(event)
            )
        except ActionFailed as failed:
            return f"no event was written: {failed}"
        return ""

    def _kubectl(self, *arguments: str, stdin: bytes = b"") -> str:
        settings = self.settings
        where = [f"--kubeconfig={settings.kubeconfig}"] if settings.kubeconfig else []
        argv = [settings.kubectl, *where, f"--request-timeout={REQUEST_SECONDS}s", *arguments]
        status, said = program.execute(argv, self.run, stdin=stdin)
        if status:
            raise ActionFailed(f"kubectl {arguments[0]} ended with {status}: {said}")
        return said


def _key(taint: str) -> str:
    """Return a taint without its value, by which it is found and removed."""
    key, _, effect = taint.rpartition(":")
    return f"{key.partition('=')[0]}:{effect}"
