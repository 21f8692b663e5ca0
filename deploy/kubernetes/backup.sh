#!/bin/bash
# Copies a backup of the server of the overlay "embedded" to a folder of this machine, verifies it, and keeps seven.
# The node needs space for the backup in /tmp.
set -euo pipefail
target=$1
mkdir -p "$target"
partial=$(mktemp -d "$target/partial.XXXXXX")
trap 'rm -r "$partial"' EXIT
kubectl -n zq exec zq-0 -- sh -ec 'mkdir -p /tmp/zq
    trap "rm -r /tmp/zq" EXIT
    zq-server backup /tmp/zq --keep 1 --config /etc/zq/zq.conf >&2
    tar -C /tmp/zq -c .' | tar -C "$partial" -x
zq-server backup verify "$partial"/*Z
mv "$partial"/*Z "$target"
ls -d "$target"/*Z | head -n -7 | xargs --no-run-if-empty rm -r
