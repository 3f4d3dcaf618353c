# Removes all that the list of the deployment names. The list itself is removed last, so that a
# removal can run again after an interruption. Variables: MOUNT, and KEEP_DATA, which is `yes` if no data
# may be deleted. The functions of stored.sh precede.

# Removes the lock of the deployment, and the sockets and results of mounts that have ended. Other mounts
# of this host still use their sockets.
leave_run_directory() {
  for file in /run/skep/mount-*; do
    pid=${file##*/mount-}
    if [ ! -d "/proc/${pid%%.*}" ]; then rm -f "$file"; fi
  done
  rm -f /run/skep/deploy.lock /run/skep/unit
  rmdir /run/skep 2>/dev/null || true
}
if [ ! -e "$list" ]; then leave_run_directory; exit 0; fi
[ "$(sed -n 's/^cluster //p' "$list" | head -n 1)" = "$CLUSTER" ] ||
  die "the host belongs to another cluster: $(head -n 1 "$list")"
if [ "$KEEP_DATA" = yes ]; then
  stored=$(stored_data)
  [ -z "$stored" ] ||
    die "the removal would delete data of the cluster: $(echo "$stored" | tr '\n' ';')" \
      "to delete the data, add --destroy-data"
fi
for kind in storage metadata management; do stop_service "$kind"; done
if is_recorded 'file /etc/skep/monitor.toml'; then stop_service monitor; fi
if grep -q '^tuned ' "$list"; then restore_tuning; fi
unmount_cluster "$MOUNT"
# Services, mounts and commands of a cluster with several management nodes write its addresses and its
# cluster map to files with the id of the cluster.
id=$(sed -n '1s/^skep1-\([0-9a-f]\{1,\}\)-.*/\1/p' /etc/skep/token 2>/dev/null || true)
if [ -n "$id" ]; then
  rm -f "/var/cache/skep/$id".*
  rmdir /var/cache/skep 2>/dev/null || true
fi
# Delete the data of targets now, while their disks are still mounted.
sed -n 's/^target //p' "$list" | while read -r directory; do
  case "$directory" in /?*) ;; *) continue ;; esac
  [ ! -d "$directory" ] || find "$directory" -xdev -mindepth 1 -delete
done
if [ -e /etc/fstab ] && grep -q '^# skep deploy: begin$' /etc/fstab; then
  write_fstab </dev/null
fi
sed -n 's/^disk //p' "$list" | while read -r device uuid point; do
  if is_mounted "$point"; then umount "$point"; fi
  device=$(device_of "$device" "$uuid") || continue
  # Erase a disk only if it still has the file system that this deployment has created.
  if [ "$(blkid -p -s UUID -o value "$device" 2>/dev/null)" = "$uuid" ]; then
    wipefs --quiet --all "$device"
    dd if=/dev/zero of="$device" bs=1M count=2 conv=fsync status=none
  fi
done
# Whether services that this deployment has not started run on this host or start at its next boot, such
# as those of another cluster or a monitor of the administrator. The services of this deployment are
# disabled already.
has_other_services() {
  has_systemd || return 1
  states=active,activating,reloading,deactivating
  found=$(systemctl list-units --plain --no-legend --state="$states" 'skep-*.service')
  [ -z "$found" ] || return 0
  for link in /etc/systemd/system/*.wants/skep-*.service; do
    case "$link" in *"@$CLUSTER.service") continue ;; esac
    [ ! -L "$link" ] || return 0
  done
  return 1
}
# Whether a file of this deployment is also used by such services: a unit, the user of the units, or the
# program.
is_shared() { # path
  case "$1" in
    /etc/systemd/system/*.service.d/*) return 1 ;;
    /etc/systemd/system/* | /etc/sysusers.d/skep.conf | /usr/bin/skep | /sbin/*mount.*) ;;
    *) return 1 ;;
  esac
}
others=no
if has_other_services; then others=yes
# Stopping the target also stops other services.
elif has_systemd; then systemctl disable --now --quiet skep.target 2>/dev/null || true
fi
# The directories of services contain only files of these services, so delete them with all contents.
for kind in monitor storage metadata management; do
  is_recorded "dir /srv/skep/$kind" && rm -rf "/srv/skep/$kind"
done
sed '1!G;h;$!d' "$list" | while read -r kind path; do
  case "$kind" in
    file)
      if [ "$others" = yes ] && is_shared "$path"; then continue; fi
      rm -f "$path" "$path.skep-new" "$path.old" ;;
    dir) rmdir "$path" 2>/dev/null || true ;;
  esac
done
if has_systemd; then systemctl daemon-reload; fi
created=no
if is_recorded 'dir /etc/skep'; then created=yes; fi
rm -f "$list" "$list.new"
if [ "$created" = yes ]; then rmdir /etc/skep 2>/dev/null || true; fi
leave_run_directory
