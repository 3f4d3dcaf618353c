# Prints the state of a host, one fact per line: name, tab, value. Changes nothing.
# Variables: CLUSTER, DISKS (each as DEVICE=UUID=POINT, with the UUID of its file system and its mount
# point), DIRECTORIES (each as SERVICE:PATH), MOUNT, UNITS_OPTIONS. The functions of units.sh, stored.sh
# and disks.sh precede.
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH LC_ALL=C
fact() { printf '%s\t%s\n' "$1" "$2"; }
list=/etc/skep/deploy.list
recorded() { [ -e "$list" ] && grep -qxF "$1" "$list"; }
fact kernel "$(uname -r)"
fact machine "$(uname -m)"
fact memory_kib "$(awk '/^MemTotal:/ { print $2 }' /proc/meminfo)"
fact uring_disabled "$(cat /proc/sys/kernel/io_uring_disabled 2>/dev/null || echo 0)"
if [ -d /run/systemd/system ]; then
  fact systemd yes
  # shellcheck disable=SC2086 # one option or none
  if has_old_units $UNITS_OPTIONS; then fact old_units yes; fi
fi
if [ -e /dev/fuse ] || modprobe --dry-run --quiet fuse 2>/dev/null; then fact fuse yes; fi
for tool in flock setsid sha256sum awk mount umount; do
  command -v "$tool" >/dev/null || fact missing "$tool"
done
# Whether a device is mounted. The mount table may have another name of it: it shows the logical
# volume /dev/vg0/target as /dev/mapper/vg0-target.
mounted() { # device
  number=$(device_number "$1") || return 1
  awk -v number="$number" '$3 == number { found = 1 } END { exit !found }' /proc/self/mountinfo
}
if [ -n "$DISKS" ]; then
  for tool in blkid wipefs mkfs.xfs; do command -v "$tool" >/dev/null || fact missing "$tool"; done
fi
if [ -e /usr/bin/skep ]; then
  fact program "$(sha256sum </usr/bin/skep | cut -c1-64)"
  recorded "file /usr/bin/skep" && fact program_is_ours yes
  fact version "$(/usr/bin/skep --version 2>/dev/null | head -n 1)"
fi
for item in $DISKS; do
  device=${item%%=*} own=${item#*=} disk=${item%%=*} point=${item##*=}
  own=${own%%=*}
  if reason=$(failed_mount "$point"); then fact disk "$device failed $reason"; continue; fi
  uuid=$(blkid -p -s UUID -o value "$device" 2>/dev/null)
  # After a boot, the disk of the target may have another name, and another disk may have this name.
  if [ "$uuid" != "$own" ] && [ -b "/dev/disk/by-uuid/$own" ]; then
    disk=/dev/disk/by-uuid/$own uuid=$own
  fi
  if [ ! -b "$disk" ]; then fact disk "$device missing"; continue; fi
  [ -n "$uuid" ] && fact disk_uuid "$device $uuid"
  if mounted "$disk"; then fact disk "$device mounted"
  elif [ -n "$(ls "/sys/class/block/$(basename "$(readlink -f "$disk")")/holders" 2>/dev/null)" ]
  then fact disk "$device in-use"
  elif contents=$(blkid -p -o export "$disk" 2>/dev/null | sed -n 's/^\(PT\)\{0,1\}TYPE=//p' | head -n 1) \
    && [ -n "$contents" ]; then fact disk "$device holds $contents"
  elif [ "$(head -c 1048576 "$disk" | tr -d '\000' | head -c 1 | wc -c)" != 0 ]
  then fact disk "$device holds unknown-data"
  else fact disk "$device empty"
  fi
done
for item in $DIRECTORIES; do
  kind=${item%%:*} directory=${item#*:}
  # A target was initialised in the directory, and is not there any more.
  if recorded "target $directory" && recorded "initialised $kind" && ! recorded "changed $kind" &&
    [ ! -e "$directory/skep-identity" ]; then fact directory "$directory lost"
  elif [ ! -e "$directory" ]; then fact directory "$directory missing"
  elif [ ! -d "$directory" ]; then fact directory "$directory no-directory"
  elif recorded "target $directory"; then fact directory "$directory ours"
  # The service of this host has made the target for `skep target add`.
  elif [ -e "$directory/skep-identity" ] &&
    grep -qxF "$directory" "/srv/skep/$kind/added-targets" 2>/dev/null
  then fact directory "$directory ours"
  elif [ -e "$directory/skep-identity" ]; then fact directory "$directory target"
  elif [ -n "$(ls -A "$directory" | grep -vx lost+found)" ]; then fact directory "$directory data"
  else fact directory "$directory empty"
  fi
done
for kind in management metadata storage monitor; do
  case "$kind" in
    monitor)
      config=/etc/skep/monitor.toml unit=skep-monitor
      if [ -e "$config" ] && ! recorded "file $config"; then fact foreign monitor; continue; fi ;;
    *) config=/etc/skep/$kind-$CLUSTER.toml unit=skep-$kind@$CLUSTER ;;
  esac
  # `changed` means that the directories of the service were not initialised with this file yet. The
  # next deployment then continues as if the file were missing.
  if [ -e "$config" ] && ! recorded "changed $kind"; then
    fact config "$kind $(sha256sum <"$config" | cut -c1-64)"
  fi
  if [ -e "/srv/skep/$kind/skep-identity" ]; then
    # A deployment may have been interrupted after it created the directory and before it initialised
    # the service. Then report neither fact, so that the next deployment continues.
    if recorded "initialised $kind"; then fact initialised "$kind"
    # A copy from `skep cluster restore` that did not start yet.
    elif [ "$kind" = management ] && [ -e /srv/skep/management/restored ]; then
      fact restored "$kind"
    elif ! recorded "dir /srv/skep/$kind"; then fact foreign "$kind"
    fi
  fi
  if [ -d /run/systemd/system ]; then
    drop_in=/etc/systemd/system/$unit.service.d/disks.conf
    [ -e "$drop_in" ] && fact drop_in "$kind $(sha256sum <"$drop_in" | cut -c1-64)"
    pid=$(systemctl show --property=MainPID --value "$unit" 2>/dev/null)
  else
    pid=$(cat "/run/skep/$kind.pid" 2>/dev/null)
  fi
  case "$(tr '\000' ' ' 2>/dev/null <"/proc/${pid:-0}/cmdline")" in
    *" $kind --config $config "*)
      case "$(readlink "/proc/$pid/exe")" in
        *"(deleted)") fact running "$kind old" ;;
        *) fact running "$kind new" ;;
      esac ;;
  esac
done
fact fstab "$(sed -n '/^# skep deploy: begin$/,/^# skep deploy: end$/p' /etc/fstab 2>/dev/null |
  grep -v '^# skep deploy: ' | sha256sum | cut -c1-64)"
if [ -e /etc/skep/token ]; then
  # Only the addresses, because the rest of the token is secret.
  fact token_addresses "$(sed -n '1s/^[^@]*@//p' /etc/skep/token)"
fi
[ -e /etc/skep/token ] && { recorded "file /etc/skep/token" && fact token ours || fact token foreign; }
recorded formatted && fact formatted yes
if tuned=$(grep '^tuned ' "$list" 2>/dev/null); then fact tuned "${tuned#tuned }"
elif [ -e /var/lib/skep/tune/state.json ]; then fact tuned_by_hand yes
fi
[ -e "$list" ] && fact deployed "$(sed -n 's/^cluster //p' "$list" | head -n 1)"
stored_data | while IFS= read -r path; do fact stored "$path"; done
awk '{ print $5, $0 }' /proc/self/mountinfo | while read -r point rest; do
  [ "$point" = "$MOUNT" ] || continue
  case "$rest" in *" - fuse.skep "*) fact mount skep ;; *) fact mount other ;; esac
done
awk '$4 == "0A" { split($2, part, ":"); print part[2] }' /proc/net/tcp /proc/net/tcp6 2>/dev/null |
  sort -u | while read -r port; do fact listening "$((0x$port))"; done
fact clock "$(date +%s.%N)"
