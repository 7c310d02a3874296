"""The installed units under a real systemd, in a namespace: started, asked, stopped."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from end_to_end import installed

INSTALLED = "/opt/forewarn/bin/forewarn"
UNITS = "/etc/systemd/system"
SERVICE = f"""
{INSTALLED} unit service >{UNITS}/forewarn.service
{INSTALLED} unit service --socket >{UNITS}/forewarn.socket
"""
RELAY_SCRIPT = f"""
trap 'systemctl --no-block --force exit' EXIT
set -ex
ip link set lo up
for address in 169.254.169.254 10.0.0.10; do ip address add $address/32 dev lo; done
cat >/ask <<'END'
import http.client
own = ("10.0.0.10", 0)
connection = http.client.HTTPConnection("169.254.169.254", source_address=own)
target = "/metadata/scheduledevents?api-version=2020-07-01"
connection.request("GET", target, headers={{"Metadata": "true"}})
answer = connection.getresponse()
assert answer.status == 200, (answer.status, answer.read())
END
ask() {{ /opt/forewarn/bin/python /ask; }}
process() {{ systemctl show -P MainPID forewarn-relay; }}
until_other() {{ while test "$(process)" -eq "$1"; do sleep 0.2; done; }}
mkdir -p /etc/forewarn
{SERVICE}
{INSTALLED} unit relay >{UNITS}/forewarn-relay.service
{INSTALLED} unit relay --socket >{UNITS}/forewarn-relay.socket
systemctl daemon-reload
printf '\\n[relay]\\nlisten = "127.0.0.1:8173"\\n' >>/etc/forewarn/forewarn.toml
systemctl enable --now forewarn
printf '[[machine]]\\nname = "web-0"\\nhost = "h1"\\naddress = "10.0.0.10"\\n' >/fleet.toml
{INSTALLED} fleet apply /fleet.toml
{INSTALLED} relay token h1 --output /etc/forewarn/relay.token
token=/run/credentials/forewarn-relay.service/relay.token
printf '[upstream]\\nurls = ["http://127.0.0.1:8173"]\\ntoken_file = "%s"\\n' $token \\
    >/etc/forewarn/relay.toml
mkdir -p /etc/systemd/system/forewarn-relay.service.d
printf '[Service]\\nWatchdogSec=10\\nTimeoutAbortSec=2\\n' \\
    >/etc/systemd/system/forewarn-relay.service.d/soon.conf
systemctl daemon-reload
systemctl enable --now forewarn-relay.socket forewarn-relay.service
ask
until systemctl show -P StatusText forewarn-relay | grep "1 machine of h1"; do sleep 0.2; done
test "$(stat -c %U "/proc/$(process)")" = forewarn-relay
test "$(stat -L -c %a /var/lib/forewarn-relay/relay)" = 700
(while test ! -e /over; do ask || touch /refused; done) &
for turn in 1 2 3; do systemctl restart forewarn-relay; ask; done
touch /over
wait
test ! -e /refused
first=$(process)
kill -KILL "$first"
until_other "$first"
ask
frozen=$(process)
kill -STOP "$frozen"
until_other "$frozen"
ask
systemctl show -P NRestarts forewarn-relay
systemctl stop forewarn
systemctl restart forewarn-relay
ask
echo the relay is watched
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
cp "$3" script
printf '[Unit]\\nRequires=try.service\\n' >etc/systemd/system/try.target
printf '[Service]\\nType=oneshot\\nExecStart=/bin/sh /script\\n' >etc/systemd/system/try.service
printf 'StandardOutput=file:/told\\nStandardError=file:/told\\n' >>etc/systemd/system/try.service
timeout "$4" systemd-nspawn --quiet --directory="$1/root" --register=no --keep-unit \\
    --bind="$2:/opt/forewarn" \\
    --private-network --link-journal=no --console=pipe --boot -- --unit=try.target \\
    >/dev/null 2>&1 </dev/null || true
cat told
"""


def may_boot() -> bool:
    return os.geteuid() == 0 and shutil.which("systemd-nspawn") is not None


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the environment of machines with Forewarn, compiled as pip does it."""
    python = installed.system_python()
    if python is None:
        pytest.skip("there is no Python outside home folders")
    wheel = installed.built(tmp_path_factory.mktemp("wheel"))
    machine = installed.Machine(tmp_path_factory.mktemp("machine"), wheel, python)
    machine.bring_dependencies()
    program = machine.environment / "bin" / "forewarn"
    program.write_text(program.read_text().replace(str(machine.root), ""))
    (package,) = machine.environment.glob("lib/python*/site-packages/forewarn")
    subprocess.run([python, "-m", "compileall", "-q", package], check=True)
    return machine.environment


def booted(environment: Path, tmp_path: Path, text: str) -> str:
    """Boot a machine with Forewarn, and return what its script printed."""
    script, disk = tmp_path / "script", tmp_path / "disk"
    script.write_text(text)
    disk.mkdir()
    argv = ["unshare", "--mount", "sh", "-ec", BOOT, "sh"]
    argv += [*map(str, (disk, environment, script, 240))]
    ran = subprocess.run(argv, capture_output=True, text=True, check=False)
    return ran.stdout + ran.stderr


@pytest.mark.soak
@pytest.mark.timeout(480)
@pytest.mark.skipif(not may_boot(), reason="only root boots a systemd, by systemd-nspawn")
def test_a_relay_that_restarts_refuses_nobody_and_one_that_freezes_is_replaced(
    environment: Path, tmp_path: Path
) -> None:
    told = booted(environment, tmp_path, RELAY_SCRIPT)
    assert "\nthe relay is watched\n" in told, told
