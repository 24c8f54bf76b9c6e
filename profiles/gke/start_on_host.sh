#!/bin/sh
# The launcher of several hosts (scripts/tpulm/core/processes.py): run command $2 on host $1, 0 being this one.
# The pods of the other hosts wait for it in the folder that all see, and leave what it said and its exit code there.
[ "$1" = 0 ] && exec sh -c "$2"
host=.hosts/$1
mkdir -p .hosts
printf '%s\n' "$2" >"$host.partial"
mv "$host.partial" "$host.command"
until [ -e "$host.exit" ]; do sleep 1; done
cat "$host.errors" >&2
exit "$(cat "$host.exit")"
