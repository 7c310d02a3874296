"""Sends Forewarn's news to people: to Slack, Teams, mail, a phone, whatever apprise knows.

    pip install apprise standardwebhooks
    forewarn webhook add people http://127.0.0.1:8099/ --type operation.failed > webhook.secret
    python3 chat.py 8099 webhook.secret slack://TokenA/TokenB/TokenC mailto://user:pass@example.com

A request is accepted once apprise has told everybody; until then Forewarn sends it again.
"""

import http.server
import pathlib
import sys

import apprise
import standardwebhooks

PORT, SECRET, *URLS = sys.argv[1:]
verifier = standardwebhooks.Webhook(pathlib.Path(SECRET).read_text().strip())
people = apprise.Apprise()
if not URLS or not all(people.add(url) for url in URLS):
    sys.exit("expected URLs that apprise knows: https://github.com/caronc/apprise/wiki")


def line(item: dict) -> str:
    """Say in one line what happened: `operation 12.1 queued: Reboot of web-0, waits for 11.1`."""
    data = item["data"]
    names = data.get("machines") or data.get("scopes") or [data.get("host") or ""]
    if data.get("machine_count", 0) > 3:
        names = [f"{data['machine_count']} machines"]
    what = " of ".join(filter(None, (data.get("event_type"), ", ".join(names))))
    by = f"by {data['by']}" if data.get("by") else ""
    detail, reason = data.get("status_detail", ""), data.get("reason", "")
    if reason in detail:  # a stuck host's says it all
        reason = ""
    facts = ", ".join(filter(None, (what, detail, by, reason)))
    verb = item["type"].partition(".")[2].replace("_", " ")
    return f"{item['subject']} {verb}" + (f": {facts}" if facts else "")


class Receiver(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            item = verifier.verify(body, dict(self.headers))
        except standardwebhooks.WebhookVerificationError:
            self.send_error(401)
            return
        told = people.notify(body=line(item), body_format=apprise.NotifyFormat.TEXT)
        self.send_response(204 if told else 503)
        self.end_headers()


http.server.HTTPServer(("127.0.0.1", int(PORT)), Receiver).serve_forever()
