import subprocess

import forewarn

with forewarn.Client() as client:
    for change in client.watch(mine=True):
        if change.appeared:
            subprocess.run(["./drain"], check=True)
            client.approve(change.event)
        elif change.gone:
            subprocess.run(["./undrain"], check=True)
