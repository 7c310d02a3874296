"""What takes a machine out of use before maintenance, and back into it as it was.

HAProxy: drains a server by the runtime API, which takes one line a connection and answers with
text; `set server` answers nothing when it was done (Management Guide, section 9.3). A server that
an administrator has set to `maint` or `drain` before, or to `maint` meanwhile, is left so: it gets
no new sessions already, and `drain` would let those in again that are bound to it by a cookie.

Kubernetes: drains a node by kubectl, which finds the cluster by its own rules: `kubeconfig`,
KUBECONFIG, or the service account of the pod that the agent runs in. A node that somebody had
cordoned is drained too, for its pods may still run, and it stays cordoned afterwards.
"""

import csv
import io
import socket
from typing import Final

import msgspec

from forewarn import clock
from forewarn.agent.actions import program
from forewarn.agent.actions.action import Action, ActionFailed, ActionStopped, hang_up
from forewarn.agent.rules import HaproxySettings, KubernetesSettings
from forewarn.client import transport

ANSWER_SECONDS: Final = 5.0
"""For one answer: HAProxy gives it at once, or is in trouble."""

ANSWER_BYTES: Final = 16 * 1024 * 1024
"""The longest answer that is read: the statistics of ten thousand servers."""

LOOK_SECONDS: Final = 0.5
"""Between two looks at the sessions that are left, or at a server that is to come up."""

READY: Final = "ready"
MAINT: Final = "maint"
MAINTENANCE: Final = 0x01
DRAINED: Final = 0x08
"""Of a server's administrative state: what an administrator forced by the API or the page."""

UP: Final = frozenset({"1", "2"})
"""Of a server's operational state: starting or running. Without checks it always is."""


class HaproxyAction(Action[HaproxySettings]):
    """Notes how a server is, drains it, and waits for its last session."""

    def prepare(self) -> str:
        row = self._row()
        state = _state(row)
        self.run.note({"state": state, "up": _is_up(row)})
        if state == READY:
            self._set("drain")
        left: int | None = None
        try:
            while self.settings.wait_sessions and (left := self._sessions()):
                self.run.wait(LOOK_SECONDS)
        except ActionStopped as cut:
            message = f"sessions left: {'not counted yet' if left is None else left}"
            raise ActionStopped(message) from cut
        return ""

    def recover(self) -> str:
        facts = self.run.begun.facts or {}
        before = facts.get("state", "")
        if not before:
            return ""  # where nothing was noted nothing was changed
        if before != READY:
            return f"{self.settings.server} was set to {before}, and is left so"
        if (now := _state(self._row())) == MAINT:  # an administrator's: we set `drain`
            return f"{self.settings.server} is set to {now} by now, and is left so"
        self._set(READY)
        if facts.get("up"):
            self._wait_until_up()
        return f"{self.settings.server} is set to {READY} again"

    def _wait_until_up(self) -> None:
        """Wait until the checks let the server have sessions: then the agent says `back`."""
        try:
            while _state(row := self._row()) == READY and not _is_up(row):
                self.run.wait(LOOK_SECONDS)
        except ActionStopped as cut:
            raise ActionStopped(f"HAProxy's checks still find {self.settings.server} down") from cut

    def _row(self) -> dict[str, str]:
        """Return what `show servers state` says of the server."""
        backend, _, server = self.settings.server.partition("/")
        lines = self._ask(f"show servers state {backend}").splitlines()
        names = next((line[2:].split() for line in lines if line.startswith("# ")), [])
        for line in lines:
            row = dict(zip(names, line.split(), strict=False))
            if row.get("srv_name") == server:
                return row
        raise ActionFailed(f"HAProxy has no server {self.settings.server}")

    def _sessions(self) -> int:
        table = self._ask("show stat").removeprefix("# ")
        for row in csv.DictReader(io.StringIO(table)):
            if f"{row['pxname']}/{row['svname']}" == self.settings.server:
                return int(row["scur"])
        raise ActionFailed(f"HAProxy has no server {self.settings.server} any more")

    def _set(self, state: str) -> None:
        if answer := self._ask(f"set server {self.settings.server} state {state}").strip():
            raise ActionFailed(answer)

    def _ask(self, line: str) -> str:
        try:
            connection = transport.connect(
                self.settings.address or self.settings.socket, ANSWER_SECONDS
            )
            with connection, self.run.on_stop(lambda: hang_up(connection)):
                connection.sendall(line.encode() + b"\n")
                answer = b""
                while chunk := connection.recv(65536):
                    answer += chunk
                    if len(answer) > ANSWER_BYTES:
                        message = f"HAProxy's answer to {line!r} is over {ANSWER_BYTES} bytes"
                        raise ActionFailed(message)
        except OSError as error:
            if self.run.stopped:
                raise ActionStopped from error
            message = f"HAProxy's API at {self.settings.socket} does not answer: {error}"
            raise ActionFailed(message) from error
        if self.run.stopped:  # who is hung up on reads an end, as if the answer were whole
            raise ActionStopped
        return answer.decode("utf-8", "replace")


def _state(row: dict[str, str]) -> str:
    """Return what a server is set to: `ready`, `drain` or `maint`."""
    admin = int(row["srv_admin_state"])
    return MAINT if admin & MAINTENANCE else "drain" if admin & DRAINED else READY


def _is_up(row: dict[str, str]) -> bool:
    return row["srv_op_state"] in UP


REQUEST_SECONDS: Final = 10
"""For one request to the API server, which answers at once or is in trouble."""

NODE_LOOK_SECONDS: Final = 2.0
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
            return f"node {node} was cordoned before: it stays cordoned"
        try:
            while not self._look(node).is_ready:
                self.run.wait(NODE_LOOK_SECONDS)
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
        raise ActionFailed(f"kubectl returned nothing about node {node}: {said}")

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
            return f"could not write the event: {failed}"
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
