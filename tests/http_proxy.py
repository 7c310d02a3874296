"""An HTTP proxy as companies have one: it forwards requests, and opens tunnels for https."""

import contextlib
import socket
import threading

from tcp_proxy import TcpProxy


class HttpProxy(TcpProxy):
    """Passes all that it is asked for on to one server of 127.0.0.1, whatever name it has.

    Args:
        target: The server's port.
        refusal: The status line that it answers to CONNECT instead of opening a tunnel.
    """

    def __init__(self, target: int, *, refusal: str = "") -> None:
        super().__init__(target)
        self._refusal = refusal
        self.url = f"http://127.0.0.1:{self.port}"
        self.asked: list[list[str]] = []
        """The lines of each request's head."""

    def _serve(self, client: socket.socket) -> None:
        threading.Thread(target=self._answer, args=(client,), daemon=True).start()

    def _answer(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            read = b""
            while b"\r\n\r\n" not in read:
                read += client.recv(65536)
            head, _, body = read.partition(b"\r\n\r\n")
            lines = head.decode().split("\r\n")
            self.asked.append(lines)
            method, target, version = lines[0].split(" ")
            if method == "CONNECT" and self._refusal:
                client.sendall(f"HTTP/1.1 {self._refusal}\r\n\r\n".encode())
                return
            with socket.create_connection(("127.0.0.1", self._target)) as server:
                if method == "CONNECT":
                    client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                else:
                    path = "/" + target.split("/", 3)[3]
                    passed = [f"{method} {path} {version}", *lines[1:]]
                    server.sendall("\r\n".join(passed).encode() + b"\r\n\r\n" + body)
                back = threading.Thread(target=_pass, args=(server, client), daemon=True)
                back.start()
                _pass(client, server)
                back.join()


def _pass(of: socket.socket, to: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := of.recv(65536):
            to.sendall(piece)
        to.shutdown(socket.SHUT_WR)
