"""A host's program whose lines are the test's: what the test sends it says, and the other way."""

import os
import socket
import sys
import threading


def main(place: str, host: str) -> None:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(place)
    connection.sendall(f"{host}\n".encode())

    def listen() -> None:
        for line in sys.stdin.buffer:
            connection.sendall(line)
        connection.shutdown(socket.SHUT_RDWR)

    threading.Thread(target=listen, daemon=True).start()
    while data := connection.recv(65536):
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    os._exit(0)  # the other thread reads


if __name__ == "__main__":
    main(*sys.argv[1:])
