"""A worker that takes no new job while its machine is about to go down, or is down."""

import logging
import queue
import signal
import threading

import forewarn

log = logging.getLogger("worker")


class Worker:
    """Does jobs in a thread of its own, one after the other."""

    def __init__(self) -> None:
        self.jobs: queue.Queue[str] = queue.Queue()
        self._working = threading.Lock()
        self._drained = False
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            job = self.jobs.get()
            with self._working:  # while it is held, no job begins
                log.info("done: %s", job)

    def drain(self, seconds: float | None) -> bool:
        """Let the current job end, and begin no other; tell whether it did in time."""
        timeout = -1 if seconds is None else seconds
        self._drained = self._drained or self._working.acquire(timeout=timeout)
        return self._drained

    def resume(self) -> None:
        if self._drained:
            self._drained = False
            self._working.release()


def main() -> None:
    worker = Worker()
    client = forewarn.Client()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: client.close())  # ends the watch below, at once
    with client:
        for change in client.watch(mine=True):
            event = change.event
            if change.appeared and not event.started:
                left = event.notice_left
                log.info("%s in %s", event.event_type, left)
                seconds = None if left is None else left.total_seconds()
                if not worker.drain(seconds):
                    log.warning("not approved, for the job did not end within the notice")
                    continue
                try:
                    client.approve(event)
                    log.info("approved")
                except forewarn.ClientError as error:
                    log.warning("not approved, so it starts by its notice: %s", error)
            elif change.last:
                worker.resume()
                log.info("back at work")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    main()
