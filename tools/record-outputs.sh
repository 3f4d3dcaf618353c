#!/bin/sh
# Records the example output of commands in docs/commands/output, from a cluster of `skep up`.
# Afterwards, `cargo xtask docs` copies the output to the page of each command. The output of
# benchmarks stays as it is, since its figures belong to the host on which it was recorded.
#
# Usage, as root: tools/record-outputs.sh PROGRAM
#
# The cluster runs in namespaces of its own, so it needs no free port and no free directory.
set -eu

if [ $# -eq 0 ]; then
    echo "usage: $0 PROGRAM, as root; PROGRAM is target/release/skep, for example" >&2
    exit 2
fi
if [ "$1" != --inside ]; then
    program=$(realpath "$1")
    output=$(realpath "$(dirname "$0")/../docs/commands/output")
    exec unshare --mount --net --uts -- "$(realpath "$0")" --inside "$program" "$output"
fi
program=$2
output=$3

# The directories below cover /srv and /mnt, which may contain the program and the sources.
work=$(mktemp -d /var/tmp/skep-outputs.XXXXXX)
mkdir "$work/bin" "$work/srv" "$work/output"
cp "$program" "$work/bin/skep"
PATH=$work/bin:$PATH
export PATH
unset SKEP_CLUSTER SKEP_TOKEN_FILE
mount --bind "$work/srv" /srv
for place in /mnt /run /var/cache; do
    mount -t tmpfs tmpfs "$place"
done
hostname vm
ip link set lo up
mkdir /mnt/skep
cd /srv

holder=
clean_up() {
    [ -z "$holder" ] || kill "$holder" 2>/dev/null || true
    skep down --data-dir /srv/skep-data >/dev/null 2>&1 || true
    cd /
    umount /mnt /srv 2>/dev/null || true
    rm -r "$work"
}
trap clean_up EXIT

# Records commands with their output. A refused command is recorded with its message.
record() {
    name=$1
    shift
    for line in "$@"; do
        echo "\$ $line"
        sh -c "$line" 2>&1 || true
    done >"$work/output/$name.txt"
}

record skep-up 'skep up --detach --mount-point /mnt/skep'
until skep health check >/dev/null; do sleep 0.2; done
record skep-health-check 'skep health check'
record skep-health-df 'skep health df'
record skep-target-list 'skep target list'
record skep-group-list 'skep group list'
record skep-node-list 'skep node list'
record skep-node-log-level 'skep node log-level all'
record skep-config-list 'skep config list'
record skep-config-get 'skep config get lease'

mkdir /mnt/skep/results
head -c 10000000 /dev/zero >/mnt/skep/file
record skep-entry-create 'skep entry create --num-targets all /mnt/skep/checkpoint'
record skep-entry-set 'skep entry set --num-targets 8 --chunk-size 1MiB /mnt/skep/results'
record skep-entry-info 'skep entry info /mnt/skep/file'
record skep-entry-map 'skep entry map /mnt/skep/file'

# A program that writes to the file and has a lock on it.
flock --no-fork /mnt/skep/file sleep 1000 3>>/mnt/skep/file &
holder=$!
until skep lock list | grep -q flock; do sleep 0.2; done
client=$(skep client list --columns id --no-header | tr -d ' ')
record skep-entry-who 'skep entry who /mnt/skep/file'
record skep-lock-list 'skep lock list'
record skep-session-list 'skep session list'
record skep-client-list 'skep client list'
record skep-client-files 'skep client files'
record skep-client-evict "skep client evict $client" "skep client evict $client --dry-run" \
    "skep client evict $client --force"
kill "$holder"
wait "$holder" 2>/dev/null || true
holder=

record skep-config-set 'skep config set chunk-size 1MiB'
record skep-down 'skep down'
cd /
umount /mnt
umount /srv
# From here on, /srv is the directory of the host, and `skep down` would stop a cluster there.
trap 'rm -r "$work"' EXIT
cp "$work"/output/*.txt "$output/"
