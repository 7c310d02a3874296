"""The installed units under a real systemd, in a namespace: started, asked, stopped, removed."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from end_to_end import installed

SECONDS = 240
"""An end to waiting: all of it takes a quarter of a minute."""

INSTALLED = "/opt/forewarn/bin/forewarn"
SCRIPT = f"""
trap 'systemctl --no-block --force exit' EXIT
set -ex
{INSTALLED} serve --install
{INSTALLED} agent install
{INSTALLED} relay install
systemctl enable --now forewarn
systemctl is-active forewarn
test "$(systemctl show -P ExecMainStatus forewarn)" = 0
test "$(stat -L -c %U /var/lib/forewarn/forewarn.db)" = forewarn
{INSTALLED} fleet list
printf '[client]\\nendpoint = "http://127.0.0.1:8170"\\n' >/etc/forewarn/agent.toml
systemctl enable --now forewarn-agent
systemctl is-active forewarn-agent
{INSTALLED} agent status
test -d /var/lib/forewarn-agent
{INSTALLED} agent install --uninstall
{INSTALLED} serve --uninstall
if systemctl is-active forewarn forewarn-agent; then false; fi
test -e /var/lib/forewarn/forewarn.db
{INSTALLED} serve --install
systemctl start forewarn.socket forewarn
{INSTALLED} serve --uninstall --purge
{INSTALLED} agent install --uninstall --purge
{INSTALLED} relay install --uninstall --purge
if systemctl is-active forewarn forewarn.socket; then false; fi
if ls -d /etc/forewarn /var/lib/forewarn* /var/lib/private/forewarn*; then false; fi
if grep forewarn /etc/passwd /etc/group; then false; fi
echo it is all undone
"""
BOOT = """
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
cd "$1/root"
rm -rf etc/machine-id etc/forewarn etc/systemd/system/*.wants etc/systemd/system/forewarn*
rm -rf var/lib/forewarn* var/lib/private/forewarn*
for name in systemd-networkd systemd-networkd-wait-online ifupdown-wait-online networking; do
    ln -sf /dev/null "etc/systemd/system/$name.service"
done
mkdir -p opt/forewarn
cp -a "$2/." opt/forewarn
cp "$3" script
printf '[Unit]\\nRequires=try.service\\n' >etc/systemd/system/try.target
printf '[Service]\\nType=oneshot\\nExecStart=/bin/sh /script\\n' >etc/systemd/system/try.service
printf 'StandardOutput=file:/told\\nStandardError=file:/told\\n' >>etc/systemd/system/try.service
timeout "$4" systemd-nspawn --quiet --directory="$1/root" --register=no --keep-unit \\
    --private-network --link-journal=no --console=pipe --boot -- --unit=try.target \\
    >/dev/null 2>&1 </dev/null || true
cat told
"""


def may_boot() -> bool:
    return os.geteuid() == 0 and shutil.which("systemd-nspawn") is not None


@pytest.mark.soak
@pytest.mark.timeout(2 * SECONDS)
@pytest.mark.skipif(not may_boot(), reason="only root boots a systemd, by systemd-nspawn")
def test_what_is_installed_starts_answers_stops_and_is_undone(tmp_path: Path) -> None:
    python = installed.system_python()
    if python is None:
        pytest.skip("there is no Python outside home folders")
    folders = {name: tmp_path / name for name in ("wheel", "root", "disk")}
    for folder in folders.values():
        folder.mkdir()
    machine = installed.Machine(folders["root"], installed.built(folders["wheel"]), python)
    machine.bring_dependencies()
    program = machine.environment / "bin" / "forewarn"
    program.write_text(program.read_text().replace(str(folders["root"]), ""))
    script = tmp_path / "script"
    script.write_text(SCRIPT)
    argv = ["unshare", "--mount", "sh", "-ec", BOOT, "sh"]
    argv += [*map(str, (folders["disk"], machine.environment, script, SECONDS))]
    ran = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert "\nit is all undone\n" in ran.stdout, ran.stdout + ran.stderr
