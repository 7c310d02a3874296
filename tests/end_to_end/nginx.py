"""A real nginx with a block of a guide."""

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import patience
import ports

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")


def configured(folder: Path, block: str, more: str = "") -> list[str]:
    """Write a configuration with a block; return the command that runs nginx by it."""
    assert NGINX is not None
    temporary = "".join(
        f"{kind}_temp_path {folder}/{kind};\n"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    configuration = folder / "nginx.conf"
    configuration.write_text(
        f"{more}daemon off;\nmaster_process off;\npid {folder}/nginx.pid;\n"
        f"error_log {folder}/nginx.log;\nevents {{}}\n"
        f"http {{\naccess_log off;\n{temporary}{block}}}\n"
    )
    return [NGINX, "-p", str(folder), "-c", str(configuration)]


@contextlib.contextmanager
def serving(folder: Path, block: str, address: str, port: int) -> Iterator[None]:
    """Run nginx with a block, which has it listen at this address; yield once it does."""
    running, log = subprocess.Popen(configured(folder, block)), folder / "nginx.log"
    try:

        def answers() -> bool:
            assert running.poll() is None, log.read_text()
            return ports.answers(port, address)

        patience.until(answers, log.read_text)
        yield
    finally:
        running.terminate()
        running.wait()
