#!/bin/sh
# Leaves a line for its begin and one for its end, each synced, with the boot that it ran in.
boot=$(cat /proc/sys/kernel/random/boot_id)
echo "$1 begins $boot" >>/var/log/actions.log && sync /var/log/actions.log
sleep 0.3
echo "$1 ends $boot" >>/var/log/actions.log && sync /var/log/actions.log
