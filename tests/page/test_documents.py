"""What a machine's page shows as its document is what the guest plane answers over HTTP."""

import http.client
import json
from pathlib import Path
from typing import Any

from forewarn.control.plane import Plane
from forewarn.protocol.versions import VERSION_BY_NAME
from forewarn.server.guest.listener import Listener
from forewarn.server.guest.plane import GuestPlane
from forewarn.server.sockets import HandedOver
from forewarn.store.sqlite import InMemoryStore
from page.site import Contexts, Site
from server.running import Running, guids, request_reboot, settings_in


class Guarded(Running):
    """A service with a guest plane that guests can ask."""

    def _guests_of(self, plane: Plane) -> Any:
        super()._guests_of(plane)
        watch = self._watch
        return GuestPlane(
            listeners=(Listener(address="127.0.0.1", port=0),),
            limits=self.settings.guest,
            rules=self.settings.guest_rules,
            backend=plane,
            time=watch,
            wall=watch,
            request_time=watch,
            on_turn=watch.turn,
            mint=guids(),
            handed_over=HandedOver(),
        )

    def read(self, machine: str, version: str) -> bytes:
        """Ask for a machine's document, as it does."""
        connection = http.client.HTTPConnection(self.opened.guests[0].removeprefix("http://"))
        path = f"/vm/{machine}/metadata/scheduledevents?api-version={version}"
        connection.request("GET", path, headers={"Metadata": "true"})
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        assert answer.status == 200, body
        return body


def test_the_page_shows_what_each_machine_reads(tmp_path: Path, contexts: Contexts) -> None:
    wanted = settings_in(tmp_path, listen="127.0.0.1:0")
    with Guarded(wanted, InMemoryStore()) as running, Site(running, contexts) as site:
        request_reboot(site.root, description="<script>")
        request_reboot(site.root, machines=["batch_0"], event_type="Preempt")
        request_reboot(site.root, machines=["FrontEnd_IN_0"], event_type="Freeze")
        window = site.window()
        for machine in ("web-0", "batch_0", "Bastion", "FrontEnd_IN_0"):
            window.goto(f"{site.url}/machines/{machine}")
            for version in VERSION_BY_NAME:
                read = running.read(machine, version)
                shown = window.locator(f"#document-{version} pre").text_content()
                assert json.loads(str(shown)) == json.loads(read), (machine, version)
                address = f"{site.url}/machines/{machine}/document?version={version}"
                assert window.request.get(address).body() == read
