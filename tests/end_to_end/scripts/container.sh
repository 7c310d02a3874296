# The page container.md, whose blocks stand for their names.
set -ex
trap 'podman logs --latest; podman rm --force --all' EXIT
ip link set lo up
for address in 169.254.169.254 10.0.0.10; do ip address add $address/32 dev lo; done
ask() { curl -s -S -f --interface 10.0.0.10 --retry 60 --retry-delay 1 --retry-connrefused \
    -H Metadata:true "http://$1/metadata/scheduledevents?api-version=2020-07-01"; }
same() { test "$(ask $1 | jq -r .Events[].EventId)" = "$event"; }
ended() { test "$(podman inspect --format '{{.State.ExitCode}}' $1)" = 0; }
@try_it@
until podman healthcheck run forewarn; do sleep 1; done
test "$(podman exec forewarn id -u)" = 8170
for place in / /etc/forewarn /opt/forewarn /var/lib; do
    if podman exec forewarn touch $place/here; then exit 1; fi
done
@operate@
event=$(ask 10.0.0.10:8170 | jq -r .Events[].EventId)
test "$event"
podman kill --signal STOP forewarn
if podman healthcheck run forewarn; then exit 1; fi
podman kill --signal CONT forewarn
podman stop forewarn
ended forewarn
podman start forewarn
same 10.0.0.10:8170
@upgrade@
same 10.0.0.10:8170
podman rm --force forewarn
@production@
same 169.254.169.254
podman stop forewarn
ended forewarn
@emulator@
ask 127.0.0.1:8170/vm/web-0
podman stop emulator
ended emulator
echo all of the page was run
