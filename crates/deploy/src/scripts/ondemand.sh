# The actions on one host of a file system on demand. Variables: NAME (of the file system), RUN (16
# hexadecimal digits that identify this start; empty means all runs of the name), HOST (address of
# this host in the list), HOSTS (the list, for messages), TOKEN, FIRST (address of the first host),
# IS_FIRST, SERVERS (number of hosts), DIRECTORY, MOUNT, PORT, OWNER (user id, or empty), PATIENCE
# (seconds), SOURCES (paths that a start needs, one per line), STAGE_OUT (copies that must be made
# before a removal, one SOURCE:DESTINATION per line), DISCARD (`all`: a removal may delete all data;
# `saved`: the requested copies have been made; otherwise a removal fails if copies are requested).
#
# A start creates a run. A run has one directory, PARENT/NAME.RUN. The path of this directory is in
# the arguments of all processes of the run, and is the source of its mount. So even after an
# interruption, a removal finds exactly the processes and mounts of the run. Each start and each
# removal of a run locks its directory (descriptor 8). At its beginning, a start also locks PARENT
# (descriptor 9). Each removal has a shared lock on PARENT.
#
# The script runs as root on hosts with other users. These users have no access to PARENT, and
# check_path refuses paths that they could replace. `stat` and `rm` do not follow symbolic links.
#
# `set -e` has no effect in a function that a condition calls. So each step of a removal has
# `|| die`.
set -eu
umask 077
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH LC_ALL=C
unset CDPATH
sockets=/run/skep
identity="$(uname -n) $(cat /etc/machine-id 2>/dev/null || true)"
boot=$(cat /proc/sys/kernel/random/boot_id)
# Time limit for the processes of a run to end, in seconds.
REMOVAL=30
die() { printf '%s\n' "$*" >&2; exit 1; }
after() { echo $(($(date +%s) + $1)); }
await() { # time limit, description, command...
  limit=$1 what=$2; shift 2
  until "$@"; do
    [ "$(date +%s)" -lt "$limit" ] || die "$what in time"
    sleep 0.1
  done
}

# Ends the script unless a path is a directory that belongs to root.
check_directory() { # description, path
  facts=$(stat -c '%u %a %F' "$2" 2>/dev/null) || die "$1 $2 does not exist or is not readable"
  owner=${facts%% *} kind=${facts#* * } mode=${facts#* } mode=${mode%% *}
  [ "$kind" = directory ] ||
    die "$1 $2 is a $kind: expected a directory; name the real path of the directory"
  [ "$owner" = 0 ] ||
    die "$1 $2 belongs to user $owner, who could replace its contents; name another directory"
}
# Ends the script if a user other than root can replace an entry of a directory on a path.
check_path() { # description, path
  walked='' rest=${2#/}
  while :; do
    check_directory "$1" "${walked:-/}"
    # In a directory with the sticky bit, users cannot replace the entries of others.
    if [ $((0$mode & 022)) != 0 ] && [ $((0$mode & 01000)) = 0 ]; then
      die "$1: users can replace the entries of ${walked:-/} (mode $mode): run" \
        "\`chmod go-w ${walked:-/}\`, or name another directory"
    fi
    [ -n "$rest" ] || break
    walked=$walked/${rest%%/*}
    case "$rest" in */*) rest=${rest#*/} ;; *) rest='' ;; esac
  done
}
check_mount_point() {
  above=${MOUNT%/*}
  check_path 'mount point' "${above:-/}"
  if top=$(top_mount "$MOUNT"); then
    # The mount is of an earlier start of the same name, which was interrupted. `remove_remains`
    # unmounts it.
    case "${top#fuse.skep }" in "$parent/$NAME".*) return ;; esac
    die "$MOUNT is a mount point already ($top); choose another mount point with --mount"
  fi
  if [ -e "$MOUNT" ] || [ -L "$MOUNT" ]; then check_directory 'mount point' "$MOUNT"; fi
}
# Ends the script if users other than root have access to the directory of all runs.
check_parent() {
  check_directory directory "$parent"
  [ "$mode" = 700 ] ||
    die "directory $parent has the mode $mode: expected 700; remove this directory, or" \
      "name another one with --directory"
}

# Locks the directory of all runs. For a start (-x), creates the directory if it is missing. For a
# removal (-s), fails if the directory is missing.
lock_parent() { # -x or -s
  limit=$(after "$PATIENCE")
  until [ "$(date +%s)" -ge "$limit" ]; do
    if [ "$1" = -x ]; then mkdir "$parent" 2>/dev/null || true; fi
    if [ ! -e "$parent" ] && [ ! -L "$parent" ]; then
      [ "$1" = -s ] || die "cannot create the directory $parent"
      return 1
    fi
    check_parent
    command exec 9<"$parent" || continue
    flock "$1" -w "$PATIENCE" 9 ||
      die "another skep ondemand uses $parent for $PATIENCE s; try again"
    # The removal of the last run may have removed the directory before this process has locked it.
    # While this process has the lock, no other command removes the directory.
    if [ "$parent" -ef /proc/self/fd/9 ]; then check_parent; return 0; fi
  done
  die "cannot lock $parent in time; try again"
}

# Prints the mounts of this host: mount point, type, source. Of several mounts on one directory, the
# last one is visible. A user can choose type and source of a FUSE mount, but not the user id that
# the kernel shows. So only mounts of root count as mounts of Skep.
mounts() {
  awk '{
    for (i = 7; i < NF && $i != "-"; i++);
    type = $(i + 1)
    if (type == "fuse.skep" && ("," $(i + 3) ",") !~ /,user_id=0,/) type = "fuse.user"
    print $5, type, $(i + 2)
  }' /proc/self/mountinfo
}
# Prints type and source of the visible mount on a directory. Fails if nothing is mounted there.
top_mount() { # mount point
  mounts | awk -v at="$1" '$1 == at { top = $2 " " $3 } END { print top; exit top == "" }'
}
# Prints the processes of all runs: pid, command, directory of the run. Leaves out processes of other
# users, and processes in containers, which are also in the host's list of processes.
processes() {
  network=$(readlink /proc/self/ns/net)
  for process in $(grep -ls '^skep' /proc/[0-9]*/comm | sed 's/comm$/cmdline/' |
    xargs -r grep -lasF -- "$parent/"); do
    process=${process%/cmdline}
    [ "$(stat -c %u "$process" 2>/dev/null)" = 0 ] || continue
    [ "$(readlink "$process/ns/net" 2>/dev/null)" = "$network" ] || continue
    { tr '\000' '\n' <"$process/cmdline"; } 2>/dev/null |
      awk -v pid="${process#/proc/}" -v parent="$parent/" '
        NR == 2 { command = $0 }
        index($0, parent) == 1 {
          run = substr($0, length(parent) + 1)
          sub("/.*", "", run)
          if (run ~ /^[a-z0-9-]+[.][0-9a-f]+$/) { print pid, command, parent run; exit }
        }'
  done
}
processes_of() { processes | awk -v run="$1" '$3 == run'; } # directory of a run
# Prints the directories of the runs of NAME. A run may have lost its directory, its processes or its
# mount, so this function searches for all three.
runs() {
  {
    for found in "$parent/$NAME".*; do if [ -d "$found" ]; then echo "$found"; fi; done
    processes | awk '{ print $3 }'
    mounts | awk '$2 == "fuse.skep" { print $3 }'
  } | awk -v prefix="$parent/$NAME." -v run="$RUN" '
    index($0, prefix) == 1 {
      digits = substr($0, length(prefix) + 1)
      if (digits ~ /^[0-9a-f]+$/ && (run == "" || run == digits)) print
    }' | sort -u
}
fact() { cat "$1/$2" 2>/dev/null || true; } # directory of a run, name
# Whether another host has created the directory of a run. Then the directory is on a shared file
# system.
is_foreign() { # directory of a run
  address=$(fact "$1" address)
  if [ -z "$address" ]; then return 1; fi
  [ "$(fact "$1" identity)" != "$identity" ] || { [ "$1" = "$run" ] && [ "$address" != "$HOST" ]; }
}
refuse_shared() { # directory of a run
  die "$1 belongs to host $(fact "$1" address) ($(fact "$1" identity)): $DIRECTORY is on a shared" \
    "file system; name a directory on a local disk with --directory. If this host has a new name," \
    "remove $1/address instead"
}
# Whether copies out of the file system of a run must be made before its removal.
is_unsaved() { [ -e "$1/complete" ] && [ -s "$1/stage-out" ]; } # directory of a run
# Whether a run is from before the last boot of this host, so its processes and its mount have ended.
is_from_before() { [ "$(fact "$1" boot)" != "$boot" ]; } # directory of a run
# Ends the script if a start of the same name has succeeded, and its run was not removed since. After a
# boot of this host, a run without data that must be copied does not count.
refuse_second() { # directory of a run
  [ -e "$1/complete" ] || return 0
  since="since $(fact "$1" started) on hosts $(fact "$1" hosts)"
  if is_from_before "$1"; then
    ! is_unsaved "$1" ||
      die "$NAME existed $since until this host was restarted, and its data is not staged out" \
        "($(head -n 1 "$1/stage-out")): the data is in $1. To save the data, start the" \
        "services again" \
        "(docs/operations/ondemand.md, \"After a boot\"); \`skep ondemand stop --discard\` deletes" \
        "the data"
    return 0
  fi
  [ -n "$(processes_of "$1")" ] ||
    die "$NAME exists $since, but its processes on this host were killed; stop $NAME first" \
      "(\`skep ondemand stop\`)"
  die "$NAME is running $since; stop $NAME first (\`skep ondemand stop\`)"
}

unmount() { # directory of a run
  mounts | awk -v run="$1" '$2 == "fuse.skep" && $3 == run { print $1 }' | while read -r point; do
    top=$(top_mount "$point") || continue
    [ "$top" = "fuse.skep $1" ] ||
      die "cannot unmount $point: another file system ($top) is mounted over this directory;" \
        "unmount that file system first"
    # Unmount by force, because the data are deleted anyway. Without its services, the mount could
    # not write.
    umount -i -c -f -l "$point" || die "cannot unmount $point"
  done
}
end_processes() { # directory of a run
  processes_of "$1" | while read -r pid _; do kill -9 "$pid" 2>/dev/null || true; done
}
have_ended() { # directory of a run
  end_processes "$1"
  [ -z "$(processes_of "$1")" ]
}
# Removes a run. The caller has locked its directory, if there is one.
remove() { # directory of a run
  rm -f "$1/complete" || die "cannot change $1"
  mount_pids=$(processes_of "$1" | awk '$2 == "mount" { print $1 }')
  unmount "$1" || exit 1
  # The process of the mount ends by itself after the unmount. Kill all other processes.
  tries=20
  while [ "$tries" -gt 0 ] && processes_of "$1" | grep -q ' mount '; do
    tries=$((tries - 1)); sleep 0.1
  done
  await "$(after $REMOVAL)" "the processes of $1 did not end" have_ended "$1"
  # One of these processes may have mounted the file system just before its end.
  unmount "$1" || exit 1
  # Mount processes that were killed have not removed their sockets. A mount without its services has
  # stored a result for `skep umount`.
  for pid in $mount_pids $(fact "$1" mount-pid); do
    # A process that still runs has arguments. A process that has ended has none, even if its parent
    # has not waited for it yet.
    grep -qas . "/proc/$pid/cmdline" || rm -f "$sockets/mount-$pid.sock" "$sockets/mount-$pid.result"
  done
  if [ -e "$1/made-sockets" ]; then rmdir "$sockets" 2>/dev/null || true; fi
  made=$(fact "$1" made-mount-point)
  if [ -n "$made" ]; then rmdir "$made" 2>/dev/null || true; fi
  inside=$(mounts | awk -v prefix="$1/" 'index($1 "/", prefix) == 1 { print $1; exit }')
  [ -z "$inside" ] || die "cannot remove $1: a file system is mounted on $inside; unmount it first"
  rm -rf --one-file-system -- "$1" || die "cannot remove $1"
}
# Prints the text in the file `.skep-hold`. Users create this file in the top directory of the file
# system, so that a removal fails. Fails if there is no such file, or if the file system does not
# answer.
hold_of() { # directory of a run
  point=$(mounts | awk -v run="$1" '$2 == "fuse.skep" && $3 == run { print $1; exit }')
  [ -n "$point" ] && [ "$(top_mount "$point")" = "fuse.skep $1" ] || return 1
  rm -f "$1/held" "$1/looked"
  # Read the file in a separate process. If the services of the file system are dead, this process
  # may not end, even if it is killed.
  {
    hold=$point/.skep-hold
    exists() { [ -e "$hold" ] || [ -L "$hold" ]; }
    # Users own this file. Root must not follow a symbolic link to a file that they may not read.
    read_hold() { dd if="$hold" iflag=nofollow,nonblock bs=200 count=1 >"$1"; }
    if exists && ! read_hold "$1/held"; then
      # Another host may have removed the file. This host caches the name of the file for a second.
      sleep 1.2
      exists || rm -f "$1/held"
    fi
    : >"$1/looked"
  } </dev/null >/dev/null 2>&1 8>&- 9>&- &
  tries=50
  while [ ! -e "$1/looked" ] && [ "$tries" -gt 0 ]; do tries=$((tries - 1)); sleep 0.1; done
  [ -e "$1/held" ] || return 1
  tr -cd '[:print:]' <"$1/held"
}
# Ends the script if the data of a run must be copied before its removal, or if users protect them.
refuse_unsaved() { # directory of a run
  if [ "$DISCARD" = all ] || [ ! -e "$1/complete" ]; then return 0; fi
  if [ "$DISCARD" != saved ] && is_unsaved "$1"; then
    die "the data of $NAME is not staged out ($(head -n 1 "$1/stage-out")): the data is on $MOUNT" \
      "and in $1; stage the data out, or delete the data with --discard"
  fi
  if text=$(hold_of "$1"); then
    die "$MOUNT/.skep-hold protects the data of $NAME (${text:-no reason}): copy the data and" \
      "remove this file, or delete the data with --discard"
  fi
  rm -f "$1/stage-out"
}
# Records the copies that must be made before the removal.
keep() {
  kept=''
  for found in $(runs); do
    [ -e "$found/complete" ] || continue
    { fact "$found" stage-out; printf '%s\n' "$STAGE_OUT"; } |
      awk 'NF && !seen[$0]++' >"$found/new-stage-out"
    mv -f "$found/new-stage-out" "$found/stage-out" || die "cannot write $found/stage-out"
    kept=yes
  done
  [ -n "$kept" ] || die "$NAME is not running here"
}
# Records the user of the job whose script asks for these copies.
keep_user() {
  for found in $(runs); do
    [ -e "$found/complete" ] || continue
    echo "$OWNER" >"$found/job-user" || die "cannot write $found/job-user"
  done
}
# Locks the directory of a run, and removes the run. If its start is still running, ends the start.
stop_run() { # directory of a run
  if is_foreign "$1"; then
    # The removal after a failed start removes only the part that this start has created.
    if [ -n "$RUN" ]; then return 0; fi
    refuse_shared "$1"
  fi
  refuse_unsaved "$1"
  if [ -d "$1" ] && command exec 8<"$1"; then
    if ! flock -n 8; then
      pid=$(fact "$1" starter)
      # The kernel may have given the pid to another process. Only the process of the start has this
      # directory open as descriptor 8.
      if [ -n "$pid" ] && [ "$(readlink "/proc/$pid/fd/8" 2>/dev/null)" = "$1" ]; then
        kill "$pid" 2>/dev/null || true
      fi
      end_processes "$1"
      flock -w "$PATIENCE" 8 || die "another skep ondemand works on $1 for $PATIENCE s; try again"
    fi
  fi
  remove "$1"
  exec 8<&-
}
# Removes the remains of interrupted starts and of crashes of this host. Requires the lock of PARENT.
remove_remains() {
  # Directories with these names belong to starts that have not created a process or a mount yet.
  rm -rf --one-file-system -- "$parent"/.new.*
  for found in "$parent"/*.*; do
    [ -d "$found" ] || continue
    # Of other names, only runs from before the last boot are remains, unless their data must be copied.
    case "$found" in
      "$parent/$NAME".*) ;;
      *) if ! is_from_before "$found" || is_unsaved "$found"; then continue; fi ;;
    esac
    command exec 8<"$found" || continue
    if flock -n 8; then
      remove "$found"
    else
      case "$found" in "$parent/$NAME".*)
        die "another command starts or stops $NAME on this host; try again when it has ended" ;;
      esac
    fi
  done
  exec 8<&-
  # Remove the processes and mounts of runs whose directory is missing.
  for found in $(RUN='' runs); do remove "$found"; done
}

listens() { # port
  awk -v port=":$(printf %04X "$1")" '
    $4 == "0A" && substr($2, length($2) - 4) == port { found = 1 }
    END { exit !found }' /proc/net/tcp /proc/net/tcp6
}
check_ports() {
  last=$((PORT + 2)) port=$PORT
  if [ "$IS_FIRST" != yes ]; then port=$last; fi
  while [ "$port" -le "$last" ]; do
    ! listens "$port" || die "another program listens on port $port; choose other ports with --port"
    port=$((port + 1))
  done
}
# Ends the script if a start cannot succeed on this host. Changes nothing.
check() {
  command -v skep >/dev/null || die "skep is not installed; install its package on all hosts"
  printf '%s\n' "$SOURCES" | while read -r source; do
    [ -z "$source" ] || [ -r "$source" ] ||
      die "cannot stage in $source: it does not exist or is not readable on this host"
  done || exit 1
  if [ -e "$parent" ] || [ -L "$parent" ]; then check_parent; fi
  check_mount_point
  remains=$(RUN='' runs)
  for found in $remains; do refuse_second "$found"; done
  # If there are remains of earlier runs, they may still use the ports. The start removes the remains,
  # and then checks the ports itself.
  [ -n "$remains" ] || check_ports
}
run_service() { # kind, port, options
  kind=$1 port=$2; shift 2
  set -- --directory "$run/$kind" --listen "0.0.0.0:$port" --set node.metrics=none "$@"
  text=$(skep "$kind" --init --token-file "$run/join-token" "$@" 2>&1 8>&-) ||
    die "cannot initialise $kind: $text"
  setsid skep "$kind" "$@" </dev/null >>"$run/$kind.log" 2>&1 8>&- &
  service=$!
  serves() {
    [ -d "/proc/$service" ] || die "$kind ended: $(tail -n 3 "$run/$kind.log")"
    listens "$port"
  }
  await "$deadline" "$kind did not listen on port $port" serves
}
# Creates the directory of the run and locks it. The directory gets its final name only when it
# contains all facts about the run.
make_run() {
  new=$(mktemp -d "$parent/.new.XXXXXX")
  command exec 8<"$new"
  flock -n 8
  echo "$identity" >"$new/identity"
  echo "$HOST" >"$new/address"
  echo "$boot" >"$new/boot"
  echo "$HOSTS" >"$new/hosts"
  date -u +%Y-%m-%dT%H:%M:%SZ >"$new/started"
  echo $$ >"$new/starter"
  echo "$TOKEN@$FIRST:$PORT" >"$new/join-token"
  [ -z "$STAGE_OUT" ] || printf '%s\n' "$STAGE_OUT" >"$new/stage-out"
  if ! mv -T "$new" "$run" 2>/dev/null; then
    rm -rf --one-file-system -- "$new"
    refuse_shared "$run"
  fi
}
start() {
  deadline=$(after "$PATIENCE")
  check
  lock_parent -x
  for found in "$parent"/*.*; do
    if is_foreign "$found"; then refuse_shared "$found"; fi
  done
  for found in $(RUN='' runs); do refuse_second "$found"; done
  remove_remains
  check_ports
  make_run
  # If the start fails or is interrupted, remove all that it has created so far.
  trap 'trap - EXIT HUP INT TERM; remove "$run"; remove_parent' EXIT
  trap 'exit 1' HUP INT TERM
  exec 9<&-
  if [ "$IS_FIRST" = yes ]; then
    run_service management "$PORT" --advertise "$FIRST"
    run_service metadata $((PORT + 1)) --target "$run/metadata-target"
  fi
  run_service storage $((PORT + 2)) --target "$run/storage-target"
  if [ "$IS_FIRST" = yes ]; then
    has_all() {
      [ "$(skep target list --cluster "$run" --output ndjson 2>/dev/null 8>&- |
        grep '"kind":"storage"' | grep -c '"reachability":"Online"')" -ge "$SERVERS" ]
    }
    await "$deadline" "not all of $SERVERS storage servers have registered" has_all
    text=$(skep cluster format --cluster "$run" 2>&1 8>&-) ||
      die "cannot format the file system: $text"
  fi
  # Record the mount point before its creation. So after an interruption, a removal finds it.
  echo "$MOUNT" >"$run/made-mount-point"
  (umask 022; mkdir "$MOUNT") 2>/dev/null || rm -f "$run/made-mount-point"
  # Check the mount point now, after its creation. From now on, users cannot replace it, because it
  # belongs to root, even if the directory above it has the sticky bit.
  check_mount_point
  check_directory 'mount point' "$MOUNT"
  if [ ! -d "$sockets" ]; then : >"$run/made-sockets"; fi
  # The source of the mount is the directory of the run, which contains the token.
  text=$(skep mount --cluster "$run" --retry "$PATIENCE" \
    -o "nosuid,nodev,log_file=$run/mount.log" "$MOUNT" 2>&1 8>&-) ||
    die "cannot mount the file system: $text"
  processes_of "$run" | awk '$2 == "mount" { print $1 }' >"$run/mount-pid"
  if [ "$IS_FIRST" = yes ]; then
    if [ -n "$OWNER" ]; then chown "$OWNER" "$MOUNT"; else chmod 1777 "$MOUNT"; fi
  else
    # Wait until the first host has set the owner. Otherwise the first program of the job on this host
    # could find a directory that belongs to root.
    is_open() {
      if [ -n "$OWNER" ]; then set -- %u "$OWNER"; else set -- %a 1777; fi
      [ "$(stat -c "$1" "$MOUNT" 2>/dev/null)" = "$2" ]
    }
    await "$deadline" "the first host has not opened the file system to the users" is_open
  fi
  : >"$run/complete"
  trap - EXIT HUP INT TERM
}
# Removes the directory of all runs if it is empty and no other command works on a run.
remove_parent() {
  [ -d "$parent" ] && command exec 9<"$parent" || return 0
  if flock -n 9; then
    # Remove the directories of starts that were killed before they had a run.
    rm -rf --one-file-system -- "$parent"/.new.*
    rmdir "$parent" 2>/dev/null || true
  fi
  exec 9<&-
}
stop() {
  lock_parent -s || true
  failed=''
  for found in $(runs); do
    # Use a separate shell for each run. If a run cannot be removed, the other runs are still removed.
    set +e
    (set -e; stop_run "$found")
    # shellcheck disable=SC2181 # As a condition, the shell would continue after its first error.
    if [ $? != 0 ]; then failed=yes; fi
    set -e
  done
  # Release the shared lock of this process, which would prevent the removal of the directory.
  exec 9<&-
  remove_parent
  [ -z "$failed" ] || exit 1
  if top=$(top_mount "$MOUNT"); then
    case "${top#fuse.skep }" in */skep-ondemand/"$NAME".*)
      die "$MOUNT is still mounted (${top#fuse.skep }): name the directory of its start" \
        "with --directory" ;;
    esac
  fi
}
# Prints the storage servers that do not answer, if management runs here and data must be copied.
lost_servers() { # directory of a run
  [ -s "$1/stage-out" ] || return 0
  timeout 10 skep node list --cluster "$1" --output ndjson 2>/dev/null 8>&- |
    awk -F '"' '/"kind":"storage"/ && /"reachability":"Offline"/ {
      for (i = 1; i < NF; i++) if ($i ~ /^(host|addresses)$/ && $(i+1) ~ /^:\[?$/) of[$i] = $(i+2)
      print "lost\t" of["host"] " (" of["addresses"] ")"; split("", of) }'
}
# Prints one fact per line: name, tab, value.
status() {
  for found in $(runs); do
    processes_of "$found" | awk '{ print "runs\t" $2 }'
    mounts | awk -v run="$found" '
      $2 == "fuse.skep" && $3 == run { print "mounted\t" $1; exit }'
    if [ -e "$found/complete" ]; then printf 'since\t%s\n' "$(fact "$found" started)"; fi
    printf 'run\t%s\n' "${found##*.}"
    fact "$found" stage-out | awk 'NF { print "stage-out\t" $0 }'
    fact "$found" job-user | awk 'NF { print "user\t" $0 }'
    fact "$found" hosts | awk 'NF { print "hosts\t" $0 }'
    fact "$found" address | awk 'NF { print "address\t" $0 }'
    if [ -d "$found/metadata-target" ]; then printf 'first\tyes\n'; lost_servers "$found"; fi
    if text=$(hold_of "$found"); then printf 'held\t%s\n' "${text:-no reason}"; fi
  done
  for found in "$parent"/*.*; do
    case "$found" in "$parent/$NAME".*) continue ;; esac
    if is_unsaved "$found" && is_from_before "$found"; then printf 'kept\t%s\n' "$found"; fi
  done
}

[ "$(id -u)" = 0 ] || die "cannot work on this host as user $(id -un): mounts need root"
parent=$DIRECTORY/skep-ondemand
run=$parent/$NAME.$RUN
check_path directory "$DIRECTORY"
