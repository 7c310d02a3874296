#!/bin/sh
# Print properties of a unit in one line, in this order.
unit=$1
shift
for each; do systemctl show -P "$each" "$unit"; done | paste -sd' '
