"""An endpoint that does not wait: one document, for as long as anybody asks, on any connection."""

import socket
import threading

NAME = b"m0"
DOCUMENT = b'{"DocumentIncarnation":0,"Events":[]}'


def serve(connection: socket.socket) -> None:
    read = b""
    with connection:
        while data := connection.recv(65536):
            read += data
            while b"\r\n\r\n" in read:
                head, _, read = read.partition(b"\r\n\r\n")
                body = NAME if b"/compute/name" in head.partition(b"\r\n")[0] else DOCUMENT
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body))
                connection.sendall(body)


listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
while True:
    accepted, _ = listener.accept()
    accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    threading.Thread(target=serve, args=(accepted,), daemon=True).start()
