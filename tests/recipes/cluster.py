"""A stand-in for the API server of a Kubernetes cluster with one node, as far as kubectl asks it.

A real cluster is none that a test could start here. What is asked of it and how it answers is from
the reference of Kubernetes' API; `kubectl` is the real one.
"""

import http.server
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NODE = socket.gethostname().lower()

RESOURCES = (
    ("nodes", "Node", False),
    ("pods", "Pod", True),
    ("pods/eviction", "Eviction", True),
)
VERBS = ["create", "delete", "get", "list", "patch"]

KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{{name: it, cluster: {{server: "{url}"}}}}]
contexts: [{{name: it, context: {{cluster: it, user: it}}}}]
users: [{{name: it, user: {{}}}}]
current-context: it
"""


class Cluster(http.server.ThreadingHTTPServer):
    """A node with pods, which end as soon as they are evicted unless they are protected."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.lock = threading.RLock()
        self.spec: dict[str, Any] = {}
        self.is_ready = True
        self.pods: dict[str, dict[str, Any]] = {}
        self.protected: set[str] = set()
        """Pods that a disruption budget keeps."""
        self.evicted: list[tuple[str, dict[str, Any]]] = []
        """Each with the options of its deletion."""
        self.refused = threading.Event()
        """An eviction was refused."""
        self.asked: set[tuple[str, str]] = set()
        """The verbs of all requests for resources, each with its resource."""
        self.looked = threading.Event()
        """The node was read."""
        self.kubeconfig = folder / "kubeconfig"
        url = f"http://127.0.0.1:{self.server_port}"
        self.kubeconfig.write_text(KUBECONFIG.format(url=url), encoding="utf-8")

    def put(self, name: str, *, owner: str = "ReplicaSet") -> None:
        """Have a pod on the node; without an owner it belongs to no controller."""
        owned = {"apiVersion": "apps/v1", "kind": owner, "name": "its-owner", "uid": "1"}
        self.pods[name] = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": "shop",
                "uid": name,
                "ownerReferences": [owned | {"controller": True}] if owner else [],
            },
            "spec": {"nodeName": NODE, "containers": []},
            "status": {"phase": "Running"},
        }

    @property
    def node(self) -> dict[str, Any]:
        ready = {"type": "Ready", "status": str(self.is_ready)}
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": NODE, "uid": "u-1"},
            "spec": dict(self.spec),
            "status": {"conditions": [{"type": "DiskPressure", "status": "False"}, ready]},
        }


class _Request(http.server.BaseHTTPRequestHandler):
    server: Cluster
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # a body would wait 40 ms for the client to have seen its head

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self._note("get")
        with self.server.lock:
            if path == "/version":
                self._answer(200, {"major": "1", "minor": "32", "gitVersion": "v1.32.0"})
            elif path == "/api":
                self._answer(200, {"kind": "APIVersions", "versions": ["v1"]})
            elif path == "/apis":
                self._answer(200, {"kind": "APIGroupList", "groups": [_group("policy")]})
            elif path in {"/api/v1", "/apis/policy/v1"}:
                self._answer(200, _resources(path))
            elif path == f"/api/v1/nodes/{NODE}":
                self.server.looked.set()
                self._answer(200, self.server.node)
            elif path == "/api/v1/pods":
                self._answer(200, self._listed())
            elif (pod := self.server.pods.get(path.rpartition("/")[2])) and "/pods/" in path:
                self._answer(200, pod)
            elif "/daemonsets/" in path:
                self._answer(200, {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {}})
            else:
                self._answer(404, _status(404, "NotFound", f"{path} not found"))

    def do_PATCH(self) -> None:
        patch = self._body()["spec"]
        self._note("patch")
        with self.server.lock:
            self.server.spec = {k: v for k, v in (self.server.spec | patch).items() if v}
            self._answer(200, self.server.node)

    def do_POST(self) -> None:
        body = self._body()
        self._note("create")
        with self.server.lock:
            name = body["metadata"]["name"]
            if name in self.server.protected:
                self.server.refused.set()
                message = "Cannot evict pod as it would violate the pod's disruption budget."
                self._answer(429, _status(429, "TooManyRequests", message))
                return
            del self.server.pods[name]
            self.server.evicted.append((name, body.get("deleteOptions") or {}))
            self._answer(201, _status(201, "", ""))

    def _note(self, verb: str) -> None:
        parts = self.path.partition("?")[0].split("/")
        for resource in ("nodes", "eviction", "pods", "daemonsets"):
            if resource in parts[3:]:
                name = "pods/eviction" if resource == "eviction" else resource
                is_list = verb == "get" and parts[-1] == resource
                self.server.asked.add(("list" if is_list else verb, name))
                return

    def _listed(self) -> dict[str, Any]:
        pods = list(self.server.pods.values())
        return {"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": pods}

    def _body(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def _answer(self, status: int, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def _group(name: str) -> dict[str, Any]:
    version = {"groupVersion": f"{name}/v1", "version": "v1"}
    return {"name": name, "versions": [version], "preferredVersion": version}


def _resources(path: str) -> dict[str, Any]:
    core = path == "/api/v1"
    found = [
        {"name": name, "kind": kind, "namespaced": namespaced, "verbs": VERBS}
        | ({"group": "policy", "version": "v1"} if kind == "Eviction" else {})
        for name, kind, namespaced in (RESOURCES if core else ())
    ]
    version = "v1" if core else "policy/v1"
    return {"kind": "APIResourceList", "groupVersion": version, "resources": found}


def _status(code: int, reason: str, message: str) -> dict[str, Any]:
    outcome = "Success" if code < 300 else "Failure"
    told = {"status": outcome, "code": code, "reason": reason, "message": message}
    return {"apiVersion": "v1", "kind": "Status", "metadata": {}} | told


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    server = Cluster(folder)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
