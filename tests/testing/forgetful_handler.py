"""A handler that has in memory only what it drained, and drains for what has started."""

import contextlib
import subprocess
import sys

import forewarn

PACE = forewarn.Pace(poll_seconds=0.15)
in_hand = set()
with contextlib.suppress(KeyboardInterrupt), forewarn.Client(pace=PACE) as client:  # Ctrl-C ends it
    for change in client.watch(mine=True):
        try:
            if change.appeared:
                in_hand.add(change.event.event_id)
                subprocess.run(["./drain"], check=True)
                client.approve(change.event)
            elif change.gone:
                in_hand.discard(change.event.event_id)
                if not in_hand:
                    subprocess.run(["./undrain"], check=True)
        except (OSError, subprocess.SubprocessError, forewarn.ClientError) as error:
            sys.stderr.write(f"{change.event.event_type}: {error}\n")
