#!/bin/sh
# Adds a host to a cluster of Skep at its first boot. Runs as user data of a cloud, from cloud-init,
# or by hand. All templates contain this file unchanged (`cargo xtask tidy` compares them). In front
# of it, they have lines that set these variables:
#
# SKEP_ROLES       one or more of: management metadata storage client
# SKEP_MANAGEMENT  address of management, the same on all hosts
# SKEP_TOKEN       join token skep1-ID-SECRET; the script ignores `@` and all that follows
# SKEP_FORMAT      two numbers of servers: metadata, storage. Each may be a sum, such as 1+3. This
#                  host formats the cluster when these servers have registered. Empty: another host
#                  formats it
# SKEP_DISKS       auto: all blank disks, but no logical volumes. auto COUNT: the same, but first
#                  waits for COUNT of them. none: directories on the root disk. Otherwise the names
#                  of devices, which may be logical volumes
# SKEP_DOMAIN      failure domain of the servers of this host. auto: that of the cloud. Empty: the
#                  host by itself
# SKEP_MOUNT       mount point of clients
# SKEP_FEATURES    any of: tune monitor job-accounting
# SKEP_PACKAGE     URL of a .deb, .rpm or .tar.gz. Empty: the image contains the program
# SKEP_SHA256      SHA-256 of the package
# SKEP_PROFILES    scripts that run at the end, each as URL#SHA256
#
# The script formats only disks without any data, and can run again after an interruption. It fails
# if a step is not complete after SKEP_PATIENCE seconds. It prints the reason of each failure, and
# cloud-init reports the failure.
set -eu
umask 077
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH LC_ALL=C
: "${SKEP_PATIENCE:=1800}"
die() { echo "skep-node: $*" >&2; exit 1; }
make_dir() { (umask 022; mkdir -p "$1"); }
say() { echo "skep-node: $*"; }
has() { case " $1 " in *" $2 "*) ;; *) return 1 ;; esac; } # list, item
has_systemd() { [ -d /run/systemd/system ]; }
is_mounted() { awk -v at="$1" '$2 == at { found = 1 } END { exit !found }' /proc/mounts; }
await() { # description, command...
  what=$1; shift
  until "$@"; do
    [ "$(date +%s)" -lt "$deadline" ] || die "$what within $SKEP_PATIENCE s"
    sleep 1
  done
}
# Runs a command that makes an object. If an earlier run has made it, the command ends with code 7.
make_once() { # command...
  status=0
  text=$("$@" 2>&1) || status=$?
  case $status in 0 | 7) ;; *) die "'$*' failed: $text" ;; esac
}
install_packages() {
  if command -v apt-get >/dev/null; then
    apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -qy install "$@"
  elif command -v dnf >/dev/null; then dnf -qy install "$@"
  elif command -v zypper >/dev/null; then zypper -nq install "$@"
  else die "cannot install $*: found none of apt-get, dnf and zypper"; fi
}
fetch() { # URL, SHA-256, file
  case "$2" in *[!0-9a-f]* | '') die "cannot use $1: its SHA-256 is missing or invalid" ;; esac
  download() { curl -fsSL --connect-timeout 10 --max-time 600 -o "$3" "$1"; }
  await "cannot download $1" download "$@"
  [ "$(sha256sum <"$3" | cut -c1-64)" = "$2" ] || die "cannot use $1: its SHA-256 is not $2"
}

check_variables() {
  [ -n "$SKEP_ROLES" ] || die "SKEP_ROLES is empty: name one or more roles"
  for item in $SKEP_ROLES; do
    has "management metadata storage client" "$item" || die "unknown role '$item' in SKEP_ROLES"
  done
  for item in $SKEP_FEATURES; do
    has "tune monitor job-accounting" "$item" || die "unknown feature '$item' in SKEP_FEATURES"
  done
  echo "$SKEP_TOKEN" | grep -Eq '^skep1-[0-9a-f]{32}-[0-9a-f]{64}(@.*)?$' ||
    die "SKEP_TOKEN is not of the form skep1-ID-SECRET; \`skep cluster token\` prints it"
  echo "$SKEP_MANAGEMENT" | grep -Eq '^[A-Za-z0-9.-]+$' ||
    die "SKEP_MANAGEMENT '$SKEP_MANAGEMENT' is neither an IPv4 address nor a name"
  case "$SKEP_DOMAIN" in
    *[!A-Za-z0-9._-]*) die "invalid SKEP_DOMAIN '$SKEP_DOMAIN': expected letters, digits and ._-" ;;
  esac
  deadline=$(($(date +%s) + SKEP_PATIENCE))
  points=
}
install_program() {
  if [ ! -x /usr/bin/skep ]; then
    [ -n "$SKEP_PACKAGE" ] || die "the image has no /usr/bin/skep, and SKEP_PACKAGE is empty"
    directory=$(mktemp -d)
    file=$directory/${SKEP_PACKAGE##*/}
    fetch "$SKEP_PACKAGE" "$SKEP_SHA256" "$file"
    # apt reads the package with the rights of another user.
    chmod 755 "$directory"; chmod 644 "$file"
    case "$file" in
      *.deb | *.rpm) install_packages "$file" ;;
      *.tar.gz)
        tar -C "$directory" -xf "$file" --no-same-owner
        "$directory"/skep-*/install.sh --prefix /usr ;;
      *) die "cannot install $SKEP_PACKAGE: expected .deb, .rpm or .tar.gz" ;;
    esac
    rm -r "$directory"
  fi
  for name in mount.skep mount.fuse.skep umount.fuse.skep; do
    [ -e "/sbin/$name" ] || ln -s /usr/bin/skep "/sbin/$name"
  done
  if [ "$(cat /proc/sys/kernel/io_uring_disabled 2>/dev/null || echo 0)" != 0 ]; then
    echo 'kernel.io_uring_disabled = 0' >/etc/sysctl.d/60-skep.conf
    sysctl -q -p /etc/sysctl.d/60-skep.conf
  fi
  make_dir /srv/skep
  mkdir -p /etc/skep
  echo "${SKEP_TOKEN%%@*}@$SKEP_MANAGEMENT:7400" >/etc/skep/token
}

# Prints the disks without data and partitions, and the disks that an earlier run has formatted.
usable_disks() {
  for entry in /sys/block/*; do
    name=${entry##*/}; device=/dev/$name
    case "$name" in loop* | ram* | zram* | sr* | fd* | dm-* | md*) continue ;; esac
    [ -b "$device" ] && [ "$(cat "$entry/ro")" = 0 ] || continue
    [ "$(cat "$entry/size")" -ge 524288 ] || continue
    [ -z "$(ls -d "$entry/$name"*/partition 2>/dev/null)" ] || continue
    [ -z "$(ls "$entry/holders" 2>/dev/null)" ] || continue
    is_ours "$device" || is_blank "$device" || continue
    echo "$device"
  done
}
is_ours() { [ "$(blkid -p -s LABEL -o value "$1" 2>/dev/null)" = skep-target ]; }
is_blank() {
  ! grep -q "^$1 " /proc/mounts /proc/swaps && [ -z "$(blkid -p -o export "$1" 2>/dev/null)" ] &&
    [ "$(head -c 1048576 "$1" | tr -d '\000' | head -c 1 | wc -c)" = 0 ]
}
# Formats and mounts the disks. Sets `points` to their mount points.
prepare_disks() {
  if [ "$SKEP_DISKS" = none ]; then points=/srv/skep/targets; make_dir "$points"; return; fi
  command -v mkfs.xfs >/dev/null || install_packages xfsprogs
  : >>/etc/fstab
  disks=$SKEP_DISKS
  case "$disks" in
    auto) disks=$(usable_disks) ;;
    'auto '*)
      count=${disks#auto }
      has_disks() { disks=$(usable_disks); [ "$(echo "$disks" | wc -w)" -ge $((count)) ]; }
      await "this host did not get $count blank disks" has_disks ;;
  esac
  [ -n "$disks" ] || die "this host has no blank disk: attach one, or set SKEP_DISKS to none"
  for device in $disks; do
    [ -b "$device" ] || die "cannot use $device: it is no block device"
    if ! is_ours "$device"; then
      is_blank "$device" || die "cannot use $device: it holds data; erase it, or leave it out"
      mkfs.xfs -q -L skep-target "$device"
    fi
    # A disk keeps its mount point if it has another name after a boot.
    uuid=$(blkid -p -s UUID -o value "$device")
    point=$(awk -v id="UUID=$uuid" '$1 == id { print $2; exit }' /etc/fstab)
    if [ -z "$point" ]; then
      point=/srv/skep/disks/$(echo "${device#/dev/}" | tr / -)
      ! grep -q " $point " /etc/fstab || point=$point-${uuid%%-*}
      echo "UUID=$uuid $point xfs noatime,nofail 0 0" >>/etc/fstab
    fi
    make_dir "$point"
    is_mounted "$point" || mount -t xfs -o noatime "$device" "$point"
    points="$points $point"
  done
}

# Prints the failure domain of this instance in its cloud: its zone, and in this zone the fault
# domain (Azure) or the partition (AWS), as far as the metadata service of the cloud has them.
cloud_domain() {
  at=http://169.254.169.254
  ask() { curl -fs --noproxy '*' --connect-timeout 2 --max-time 5 "$@"; }
  azure() { ask -H Metadata:true "$at/metadata/instance/compute/$1?$version"; }
  aws() { ask -H "X-aws-ec2-metadata-token: $key" "$at/latest/meta-data/placement/$1"; }
  version='api-version=2021-02-01&format=text' rack=
  if rack=$(azure platformFaultDomain) && zone=$(azure zone); then
    zone=${zone:+zone-$zone} rack=${rack:+fault-$rack}
  elif key=$(ask -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' "$at/latest/api/token") &&
    zone=$(aws availability-zone); then
    if rack=$(aws partition-number); then rack=partition-$rack; else rack=; fi
  else return 1; fi
  name=$zone${zone:+${rack:+-}}$rack
  case "$name" in '' | *[!A-Za-z0-9._-]*) return 1 ;; esac
  echo "$name"
}
choose_domain() {
  if [ "$SKEP_DOMAIN" != auto ] || [ "$SKEP_ROLES" = client ]; then return; fi
  if SKEP_DOMAIN=$(cloud_domain || { sleep 2; cloud_domain; }); then
    say "the failure domain is $SKEP_DOMAIN"
  else
    SKEP_DOMAIN=
    say "no cloud has replied with a failure domain, so this host is one by itself"
  fi
}
# Writes the settings of a service, initialises it, and starts it.
start_service() { # kind, port, directories for its targets
  kind=$1 port=$2; shift 2
  config=/etc/skep/$kind-skep.toml targets=
  for directory in "$@"; do targets="$targets\"$directory/$kind\", "; done
  {
    if [ -n "$targets" ]; then echo "targets = [${targets%, }]"; fi
    printf '[node]\ndirectory = "/srv/skep/%s"\n' "$kind"
    if [ "$kind" = management ]; then echo "advertise = [\"$SKEP_MANAGEMENT\"]"; fi
    if [ -n "$SKEP_DOMAIN" ]; then echo "domain = \"$SKEP_DOMAIN\""; fi
  } >"$config"
  # New targets can only be initialised while the service does not run.
  for directory in "$@"; do
    [ -e "$directory/$kind/skep-identity" ] || stop_service "$kind" "$kind@skep"
  done
  is_running "$kind" "$kind@skep" ||
    make_once skep "$kind" --init --config "$config" --token-file /etc/skep/token
  run_service "$kind" "$kind@skep" --config "$config"
  serves() {
    awk -v port=":$(printf %04X "$port")" '$4 == "0A" && index($2, port) { found = 1 }
      END { exit !found }' /proc/net/tcp /proc/net/tcp6 2>/dev/null
  }
  await "$kind did not listen on port $port" serves
  say "$kind serves"
}
is_running() { # kind, unit
  if has_systemd; then
    pid=$(systemctl show --property=MainPID --value "skep-$2.service") && [ "${pid:-0}" != 0 ]
  else
    kill -0 "$(cat "/run/skep/$1.pid" 2>/dev/null || echo none)" 2>/dev/null
  fi
}
stop_service() { # kind, unit
  is_running "$@" || return 0
  if has_systemd; then systemctl stop "skep-$2.service"; return; fi
  pid=$(cat "/run/skep/$1.pid")
  kill "$pid"
  has_ended() { ! grep -qas . "/proc/$pid/cmdline"; }
  await "$1 did not stop" has_ended
  rm "/run/skep/$1.pid"
}
run_service() { # kind, unit, options of the service
  unit=skep-$2.service; kind=$1; shift 2
  if has_systemd; then
    systemctl daemon-reload
    systemctl enable --now --quiet skep.target
    systemctl enable --now --quiet --no-block "$unit"
    return
  fi
  # Without systemd, as in a container, nothing starts the service again after a crash.
  mkdir -p /run/skep /var/log/skep
  is_running "$kind" && return
  setsid skep "$kind" "$@" </dev/null >>"/var/log/skep/$kind.log" 2>&1 &
  echo $! >"/run/skep/$kind.pid"
}
# shellcheck disable=SC2086 # lists of directories
start_servers() {
  choose_domain
  if has "$SKEP_ROLES" management; then start_service management 7400; fi
  if ! has "$SKEP_ROLES" metadata && ! has "$SKEP_ROLES" storage; then return; fi
  prepare_disks
  metadata=$points storage=$points
  # If the host has both kinds of servers and several disks, the first disk is for metadata. Targets
  # stay where they are: a disk that was added later may be the first one.
  if has "$SKEP_ROLES" metadata && has "$SKEP_ROLES" storage; then
    set -- $points
    metadata='' storage=''
    for point in "$@"; do
      [ ! -e "$point/metadata/skep-identity" ] || metadata="$metadata $point"
    done
    : "${metadata:=$1}"
    for point in "$@"; do
      if has "$metadata" "$point" && [ ! -e "$point/storage/skep-identity" ]; then continue; fi
      storage="$storage $point"
    done
    : "${storage:=$metadata}"
  fi
  if has "$SKEP_ROLES" metadata; then start_service metadata 7410 $metadata; fi
  if has "$SKEP_ROLES" storage; then start_service storage 7420 $storage; fi
}
format_cluster() { # numbers of metadata and storage servers
  registered() { # kind
    skep target list --cluster "$SKEP_MANAGEMENT" --output ndjson 2>/dev/null |
      grep '"reachability":"Online"' | grep "\"kind\":\"$1\"" |
      sed 's/.*"node":\([0-9]*\).*/\1/' | sort -u | wc -l
  }
  has_all() { [ "$(registered metadata)" -ge $(($1)) ] && [ "$(registered storage)" -ge $(($2)) ]; }
  await "not all of $1 metadata and $2 storage servers have registered" has_all "$@"
  make_once skep cluster format --cluster "$SKEP_MANAGEMENT"
  say "the cluster is formatted"
}
mount_client() {
  [ -e /dev/fuse ] || modprobe fuse
  make_dir "$SKEP_MOUNT"
  options=nosuid,nodev,token_file=/etc/skep/token
  if has "$SKEP_FEATURES" job-accounting; then options=$options,job_accounting; fi
  line="$SKEP_MANAGEMENT:7400 $SKEP_MOUNT skep"
  boot=_netdev,nofail,retry=forever,x-systemd.mount-timeout=infinity
  grep -q "^$line " /etc/fstab || echo "$line $boot,$options 0 0" >>/etc/fstab
  if has_systemd; then systemctl daemon-reload; fi
  is_mounted "$SKEP_MOUNT" || mount -t skep -o "retry=$SKEP_PATIENCE,$options" \
    "$SKEP_MANAGEMENT:7400" "$SKEP_MOUNT" || die "cannot mount the cluster on $SKEP_MOUNT"
  say "the cluster is mounted on $SKEP_MOUNT"
}
apply_features() {
  if has "$SKEP_FEATURES" tune; then
    set -- --role "$(echo "$SKEP_ROLES" | tr ' ' ,)"
    for point in $points; do set -- "$@" --target "$point"; done
    skep tune apply "$@" || say "some settings were not changed"
  fi
  if has "$SKEP_FEATURES" monitor && has "$SKEP_ROLES" management; then
    echo 'directory = "/srv/skep/monitor"' >/etc/skep/monitor.toml
    mkdir -p /srv/skep/monitor
    run_service monitor monitor --config /etc/skep/monitor.toml --token-file /etc/skep/token
  fi
  for profile in $SKEP_PROFILES; do
    file=$(mktemp)
    fetch "${profile%%#*}" "${profile##*#}" "$file"
    sh "$file" || die "the profile ${profile%%#*} failed"
    rm "$file"
  done
}

check_variables
install_program
start_servers
# shellcheck disable=SC2086 # two numbers
if [ -n "$SKEP_FORMAT" ]; then format_cluster $SKEP_FORMAT; fi
if has "$SKEP_ROLES" client; then mount_client; fi
apply_features
say "ready"
