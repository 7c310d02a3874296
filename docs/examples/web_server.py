"""A web server that fails its health check before its machine goes down."""

import http.server
import logging
import os
import signal
import threading

import forewarn

PORT = int(os.environ.get("WEB_PORT", "8080"))
NOTICED_SECONDS = float(os.environ.get("WEB_NOTICED_SECONDS", "15"))
"""How long the load balancer takes to see a failing health check and to send no more requests."""

log = logging.getLogger("web")
going_down: set[str] = set()
"""The events for which this machine is out of service."""


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        healthy = self.path != "/healthz" or not going_down
        body = b"ok\n" if healthy else b"maintenance\n"
        self.send_response(200 if healthy else 503)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        log.debug(format, *arguments)


def watch(client: forewarn.Client, closing: threading.Event) -> None:
    """Leave the balancer's rotation for each event that concerns this machine, then approve."""
    for change in client.watch(mine=True):
        event = change.event
        if change.gone:
            going_down.discard(event.event_id)
            log.info("in service" if not going_down else "still out of service")
        elif change.appeared and not event.started:
            going_down.add(event.event_id)
            log.info("out of service for a %s", event.event_type)
            if closing.wait(NOTICED_SECONDS):
                continue
            try:
                client.approve(event)
                log.info("approved")
            except forewarn.ClientError as error:
                log.warning("not approved, so it starts by its notice: %s", error)


def main() -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", PORT), Handler)
    client, closing = forewarn.Client(), threading.Event()
    watching = threading.Thread(target=watch, args=(client, closing))
    watching.start()

    def stop(*_: object) -> None:
        closing.set()
        client.close()
        threading.Thread(target=server.shutdown).start()  # it waits for serve_forever to end

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    server.serve_forever()
    watching.join()
    server.server_close()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    main()
