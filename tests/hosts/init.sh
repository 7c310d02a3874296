#!/bin/busybox sh
# The guest's first and only program: its network, its power button, and a poll each second.
# The kernel's command line says who it is and how it behaves: hosts/guest.py has the words.
/bin/busybox mkdir -p /proc /sys /dev /tmp /run
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sys /sys
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox --install -s /bin
export PATH=/bin
for module in $(cat /modules/order); do
    insmod "/modules/$module.ko" || echo "no module $module"
done
told() { tr ' ' '\n' </proc/cmdline | sed -n "s/^fw\.$1=//p"; }
hostname "$(told name)"
ip link set lo up
ip address add "$(told address)/24" dev eth0
ip link set eth0 up
ip route add "$(told route)" via "$(told router)"
[ "$(told button)" = ignored ] || acpid -f -c /etc/acpi -l /dev/null &
boot=$(cat /proc/sys/kernel/random/boot_id)
echo "UP $boot"

if [ "$(told agent)" = yes ]; then
    mkdir -p /new
    mount -t ext4 -o ro /dev/vda /new
    for kept in proc sys dev; do mount --bind "/$kept" "/new/$kept"; done
    mount -t tmpfs tmp /new/tmp
    mount -t ext4 /dev/vdb /new/state
    (while :; do
        chroot /new /bin/agent
        echo "AGENT ended with $?"
        sleep 1
    done) &
fi

url='http://169.254.169.254/metadata/scheduledevents?api-version=2020-07-01'
ask() { timeout 15 wget -q -O - --header 'Metadata: true' "$@" "$url" 2>/tmp/error; } # its own -T crashes
# What its guest asked for as it moved was lost with the relay of its old host: clients ask again.
lost() { ! grep -q -e 'server returned' -e 'connect to' /tmp/error && echo "LOST $boot $number" >/dev/console; }
approve=$(told approve)
number=0
while :; do
    number=$((number + 1))
    if document=$(ask) || { lost && document=$(ask); }; then
        echo "POLL $boot $number $document"
    else
        echo "POLL $boot $number ERROR $(cat /tmp/error)"
    fi
    if [ "$approve" = yes ]; then
        case $document in *'"EventStatus":"Scheduled"'*)
            for id in $(echo "$document" | tr ',{' '\n\n' | sed -n 's/^"EventId":"\(.*\)"$/\1/p'); do
                ask --post-data "{\"StartRequests\":[{\"EventId\":\"$id\"}]}" &&
                    echo "APPROVED $boot $id"
            done ;;
        esac
    fi
    sleep 1
done
