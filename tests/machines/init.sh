#!/bin/busybox sh
# The first program of the machine: loads what the kernel has as modules, lays the machine's own
# disk over the host's root, which is read-only, and hands over to systemd.
busybox mkdir -p /proc /sys /dev /host /disk /new
busybox mount -t proc proc /proc
busybox mount -t sysfs sys /sys
busybox mount -t devtmpfs dev /dev
for module in $(busybox cat /modules/order); do
    busybox insmod "/modules/$module.ko" || busybox echo "no module $module"
done

busybox ip link set lo up
busybox ip address add 169.254.169.15/24 dev eth0
busybox ip link set eth0 up

busybox mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=512000 host /host
busybox mount -t ext4 /dev/vda /disk
busybox mkdir -p /disk/upper /disk/work
busybox mount -t overlay -o lowerdir=/host,upperdir=/disk/upper,workdir=/disk/work root /new

# Once: a machine of its own, which has nothing of the host's units, state and settings.
if [ ! -e /disk/made ]; then
    cd /new
    busybox rm -rf etc/systemd/system etc/rc?.d etc/forewarn var/lib/forewarn var/lib/forewarn-agent var/lib/private
    busybox rm -rf var/log/journal .dockerenv run/.containerenv run/systemd
    busybox mkdir -p etc/systemd/system-generators var/log/journal opt/forewarn
    for generator in lib/systemd/system-generators/*; do
        case $generator in *-debug-generator) continue ;; esac # the kernel's line is read by it
        busybox ln -sf /dev/null "etc/systemd/system-generators/${generator##*/}"
    done
    busybox cp -a /made/. .
    busybox sync
    busybox touch /disk/made
    busybox sync
    cd /
fi

# The very programs under test, at a place that no hardening of a unit hides.
while read -r from to; do
    busybox mkdir -p "/new$to"
    busybox mount --bind "/new$from" "/new$to"
done </binds
busybox mount -t tmpfs tmp /new/tmp
for kept in proc sys dev; do
    busybox mount --move "/$kept" "/new/$kept"
done
exec busybox switch_root /new /lib/systemd/systemd
