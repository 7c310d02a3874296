#!/bin/sh
# Ask for a guest's document: `ask` by the address of guests, `ask VM` at the service's default listener.
path='metadata/scheduledevents?api-version=2020-07-01'
[ $# = 0 ] && url="http://169.254.169.254/$path" || url="http://127.0.0.1:8170/vm/$1/$path"
exec busybox wget -qO- --header "Metadata: true" "$url"
