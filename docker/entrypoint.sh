#!/bin/sh
# Runs the command; afterwards the results belong to whoever owns the checkout, not to root.
# LOCAL_UID and LOCAL_GID name somebody else.
# Docker mounts /proc/sys read-only; a namespace of the fabric turns its own IPv6 off there.
mount -o remount,rw /proc/sys 2>/dev/null || echo "mrclab: /proc/sys stays read-only: use the docker-compose.yml" >&2
trap : INT TERM # the command gets these, too, and takes its testbed down
"$@"
code=$?
if [ -d /mrclab/results ]; then
    uid=${LOCAL_UID:-$(stat -c %u /checkout 2>/dev/null || echo 0)}
    gid=${LOCAL_GID:-$(stat -c %g /checkout 2>/dev/null || echo 0)}
    chown -R "$uid:$gid" /mrclab/results || echo "mrclab: could not give the results to $uid:$gid" >&2
fi
exit "$code"
