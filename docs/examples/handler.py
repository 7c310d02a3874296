import contextlib
import subprocess
import sys

import forewarn

with contextlib.suppress(KeyboardInterrupt), forewarn.Client() as client:  # Ctrl-C ends it
    for change in client.watch(mine=True, since="handler.state"):
        try:
            if change.appeared and not change.event.started:
                subprocess.run(["./drain"], check=True)
                client.approve(change.event)
            elif change.last:
                subprocess.run(["./undrain"], check=True)
        except (OSError, subprocess.SubprocessError, forewarn.ClientError) as error:
            print(f"{change.event.event_type}: {error}", file=sys.stderr)
