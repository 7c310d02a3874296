"""A web server as people run it, in a process of its own: it finishes its requests on SIGTERM.

`/name` answers with its name and keeps the connection; `/long` goes on with its answer, a line
each twentieth of a second, for as long as the file `long` lies in its folder.
"""

import contextlib
import http.client
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import patience
from end_to_end.agents import until
from ports import free_port

PROGRAM = """
import http.server, os, pathlib, signal, sys, threading

name, port, folder = sys.argv[1], int(sys.argv[2]), pathlib.Path(sys.argv[3])
every = 0.05


class Page(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # a body would wait 40 ms for the client to have seen its head

    def do_GET(self):
        self.send_response(200)
        if self.path == "/long":
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.tell(name + " begins")
            while (folder / "long").exists():
                self.tell("on")
                threading.Event().wait(every)
            self.tell(name + " ends")
            self.wfile.write(b"0\\r\\n\\r\\n")
            return
        self.send_header("Content-Length", str(len(name)))
        self.end_headers()
        self.wfile.write(name.encode())

    def tell(self, line):
        self.wfile.write(b"%x\\r\\n%s\\n\\r\\n" % (len(line) + 1, line.encode()))

    def log_message(self, *args):
        pass


class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, *args):
        pass  # who hangs up in the middle is no fault of it

    daemon_threads = False  # closing waits for what is under way


server = Server(("127.0.0.1", port), Page)


def end(*_):
    threading.Thread(target=server.shutdown).start()


signal.signal(signal.SIGTERM, end)
(folder / "pid").write_text(str(os.getpid()))
server.serve_forever(poll_interval=0.02)
server.server_close()
"""


class Web:
    """One such server.

    Args:
        folder: A folder of its own.
        name: What it answers.
    """

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(exist_ok=True)
        self.name, self.port, self.folder = name, free_port(), folder
        self.pid_file = folder / "pid"
        self._long = folder / "long"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def argv(self) -> list[str]:
        """What starts it."""
        return [sys.executable, "-c", PROGRAM, self.name, str(self.port), str(self.folder)]

    def start(self) -> "Web":
        """Start it, and wait until it answers."""
        self._process = subprocess.Popen(self.argv)
        until(lambda: asked(self.port) == self.name)
        return self

    def hold(self) -> None:
        self._long.touch()

    def release(self) -> None:
        self._long.unlink(missing_ok=True)

    @property
    def status(self) -> int | None:
        """How it ended; None while it runs."""
        assert self._process is not None
        return self._process.poll()

    def kill(self) -> None:
        """End it at once; its pid file stays."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def close(self) -> None:
        """End it, whoever has started it last."""
        self.release()
        self.kill()
        with contextlib.suppress(OSError, ValueError):
            os.kill(int(self.pid_file.read_text()), signal.SIGKILL)
        self.pid_file.unlink(missing_ok=True)


def asked(port: int) -> str:
    """Return who answers at a port of this machine by a connection of its own; `""` if nobody."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=patience.SECONDS)
    try:
        connection.request("GET", "/name", headers={"Connection": "close"})
        answer = connection.getresponse()
        return answer.read().decode() if answer.status == 200 else ""
    except (OSError, http.client.HTTPException):
        return ""
    finally:
        connection.close()


def long_answer(port: int, began: threading.Event) -> bool:
    """Ask for a long answer, tell when it begins, and return whether it came whole."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=patience.SECONDS)
    with contextlib.closing(connection):
        connection.request("GET", "/long")
        answer, line = connection.getresponse(), ""
        try:
            while further := answer.readline().decode().strip():
                line = further
                began.set()
        except (OSError, http.client.HTTPException):
            return False
        return line.endswith("ends")
