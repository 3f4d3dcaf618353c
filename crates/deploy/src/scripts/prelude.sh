# Functions that the scripts of all steps use. Variable: CLUSTER. Before a step creates a file or a
# directory, it adds the path to a list. So even after an interruption, `remove` finds the path.
set -eu
umask 077
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH LC_ALL=C
die() { printf '%s\n' "$*" >&2; exit 1; }
mkdir -p /run/skep
exec 9>/run/skep/deploy.lock
flock -w 120 9 || die "another deployment has been working on this host for 120 s"
list=/etc/skep/deploy.list
is_recorded() { [ -e "$list" ] && grep -qxF "$1" "$list"; }
record() {
  if [ ! -e "$list" ]; then
    created=
    [ -d /etc/skep ] || { mkdir -m 700 /etc/skep; created='dir /etc/skep'; }
    printf 'cluster %s\n%s\n' "$CLUSTER" "$created" >"$list.new"
    sync "$list.new"
    mv "$list.new" "$list"
  fi
  is_recorded "$1" || { printf '%s\n' "$1" >>"$list"; sync "$list"; }
}
# Removes an entry from the list.
forget() { # entry
  # The exit code 1 means that no other entry is left.
  grep -vxF "$1" "$list" >"$list.new" || [ $? = 1 ]
  sync "$list.new"
  mv "$list.new" "$list"
}
make_dir() { # path, mode
  [ -d "$1" ] && return
  make_dir "$(dirname "$1")" 755
  record "dir $1"
  mkdir -p -m "$2" "$1"
}
# Replaces the contents of a file by standard input. If the file existed before the deployment, it is
# not recorded, so a removal does not delete it. The new file has the owner and the group of the old
# one, which the unit of a service may have set.
write_file() { # path, mode
  make_dir "$(dirname "$1")" 755
  [ -e "$1" ] || record "file $1"
  cat >"$1.skep-new"
  if [ -e "$1" ]; then chown --reference="$1" "$1.skep-new"; fi
  chmod "$2" "$1.skep-new"
  sync "$1.skep-new"
  mv "$1.skep-new" "$1"
}
has_systemd() { [ -d /run/systemd/system ]; }
# Prints the name of the systemd unit of a service.
unit_of() { # kind
  if [ "$1" = monitor ]; then echo skep-monitor; else echo "skep-$1@$CLUSTER"; fi
}
# Prints the path of the configuration file of a service.
config_of() { # kind
  if [ "$1" = monitor ]; then echo /etc/skep/monitor.toml
  else echo "/etc/skep/$1-$CLUSTER.toml"; fi
}
# Prints the pid of a service on a host without systemd. Fails if the service does not run.
service_pid() { # kind
  pid=$(cat "/run/skep/$1.pid" 2>/dev/null) || return 1
  case "$(tr '\000' ' ' 2>/dev/null <"/proc/$pid/cmdline")" in
    *" $1 --config $(config_of "$1") "*) echo "$pid" ;;
    *) return 1 ;;
  esac
}
# Prints the seconds since the boot of the host. Used for time limits, because the time of day may
# jump.
uptime_seconds() { read -r seconds _ </proc/uptime; echo "${seconds%.*}"; }
# Runs a command again and again until it succeeds. The total time is limited, and not the number of
# attempts, because a single attempt may take long.
await() { # seconds, description, command...
  deadline=$(($(uptime_seconds) + $1)); what=$2; shift 2
  until "$@"; do
    [ "$(uptime_seconds)" -lt "$deadline" ] || die "$what"
    sleep 0.2
  done
}
# Runs a command that makes an object. If an earlier run of the script has made it, the command ends
# with the exit code 7 (docs/operations/output.md).
make_once() { # command...
  status=0
  text=$("$@" 2>&1) || status=$?
  case $status in 0 | 7) ;; *) die "$text" ;; esac
}
stop_service() { # kind
  if has_systemd; then
    unit=$(unit_of "$1").service
    # This command also fails if the host has no such unit.
    systemctl disable --now "$unit" 2>/dev/null || true
    case "$(systemctl show --property=ActiveState --value "$unit" 2>/dev/null)" in
      inactive | failed) ;;
      *) die "cannot stop the unit $unit; 'systemctl status $unit' shows its state" ;;
    esac
    return
  fi
  pid=$(service_pid "$1") || { rm -f "/run/skep/$1.pid"; return 0; }
  kill "$pid" 2>/dev/null || true
  is_gone() { ! service_pid "$1" >/dev/null; }
  await 90 "$1 (process $pid) did not stop within 90 s" is_gone "$1"
  rm -f "/run/skep/$1.pid"
}
# Time limit for the start of a unit, in seconds. It is long, because a service may have to read a large
# log first.
START_LIMIT=600
start_service() { # kind, port
  if has_systemd; then
    unit=$(unit_of "$1").service
    systemctl daemon-reload
    # The target is ready only when all its services are ready, so do not wait for the target.
    systemctl enable --now --no-block --quiet skep.target
    status=0
    timeout "$START_LIMIT" systemctl enable --now --quiet "$unit" || status=$?
    case $status in
      0) return ;;
      124) what="is not ready after $START_LIMIT s: it waits for management or for a disk" ;;
      *) what='did not start' ;;
    esac
    journalctl --no-pager -n 5 -u "$unit" >&2 || true
    die "the unit $unit $what"
  fi
  service_pid "$1" >/dev/null && return
  make_dir /var/log/skep 700
  log=/var/log/skep/$1-$CLUSTER.log
  [ -e "$log" ] || record "file $log"
  token=
  if [ "$1" = monitor ]; then token='--token-file /etc/skep/token'; fi
  # shellcheck disable=SC2086 # $token is two words or none
  setsid /usr/bin/skep "$1" --config "$(config_of "$1")" $token \
    </dev/null >>"$log" 2>&1 9>&- &
  echo "$!" >"/run/skep/$1.pid"
  port=$2
  serves() {
    case "$(cut -d ' ' -f 3 "/proc/$!/stat" 2>/dev/null)" in
      '' | Z) tail -n 3 "$log" >&2; die "the service $1 stopped during its start; its log is $log" ;;
    esac
    awk -v port=":$(printf %04X "$port")" '$4 == "0A" && index($2, port) { found = 1 }
      END { exit !found }' /proc/net/tcp /proc/net/tcp6 2>/dev/null
  }
  await 60 "$1 did not listen on port $port within 60 s; log: $log" serves "$1"
}
is_mounted() { awk -v at="$1" '$2 == at { found = 1 } END { exit !found }' /proc/mounts; }
# Whether the visible file system on a directory is Skep.
is_skep_mount() {
  awk -v at="$1" '$2 == at { type = $3 } END { exit type != "fuse.skep" }' /proc/mounts
}
# Unmounts the cluster, if it is mounted. umount(8) also fails if the mount has ended, but metadata has
# not confirmed its last changes. It then prints this reason.
unmount_cluster() { # mount point
  is_skep_mount "$1" || return 0
  umount "$1" && return
  ! is_skep_mount "$1" || die "$1 is in use; 'fuser -vm $1' lists the programs"
  exit 1
}
# Replaces the lines of the deployment in /etc/fstab by standard input. Fails if the end of these lines
# is not marked.
write_fstab() {
  [ -e /etc/fstab ] || { record "file /etc/fstab"; : >/etc/fstab; chmod 644 /etc/fstab; }
  awk '/^# skep deploy: begin$/ { skip = 1 } !skip { print } /^# skep deploy: end$/ { skip = 0 }
    END { exit skip }' /etc/fstab >/etc/fstab.skep-new || {
    rm -f /etc/fstab.skep-new
    die "cannot change /etc/fstab: it has the line '# skep deploy: begin' and no line" \
      "'# skep deploy: end' after it; insert this line after the lines of the deployment"
  }
  body=$(cat)
  if [ -n "$body" ]; then
    printf '# skep deploy: begin\n%s\n# skep deploy: end\n' "$body" >>/etc/fstab.skep-new
  fi
  chmod --reference=/etc/fstab /etc/fstab.skep-new
  chown --reference=/etc/fstab /etc/fstab.skep-new
  sync /etc/fstab.skep-new
  mv /etc/fstab.skep-new /etc/fstab
  if has_systemd; then systemctl daemon-reload; fi
}
