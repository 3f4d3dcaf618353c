# Functions that find the data of a deployment on its host. Variable: list.

# Prints the device that has the file system of a disk, and fails if no device has it. The disk may
# have another name than at its deployment.
device_of() { # device at the deployment, UUID of the file system
  if [ "$(blkid -p -s UUID -o value "$1" 2>/dev/null)" = "$2" ]; then echo "$1"
  elif [ -b "/dev/disk/by-uuid/$2" ]; then readlink -f "/dev/disk/by-uuid/$2"
  else return 1
  fi
}
# Whether a directory may have files. A directory that cannot be read, for example because its disk has
# failed, counts as having files. A missing directory has no files.
has_files() { # directory
  [ -n "$(LC_ALL=C find "$1" -xdev ! -type d 2>&1 | grep -v ': No such file or directory$' |
    head -n 1)" ]
}
# Prints the data that a removal deletes, one path per line: the directory of management, the
# directories of targets, and the mount points of disks, each with its device. Omits directories without
# files. A disk that is not mounted counts as data, because its files cannot be listed. Its line ends
# with `not-mounted`.
stored_data() {
  [ -e "$list" ] || return 0
  if grep -qxF 'dir /srv/skep/management' "$list"; then
    for name in raft-log raft-snapshot; do
      if [ -e "/srv/skep/management/$name" ]; then echo /srv/skep/management; break; fi
    done
  fi
  sed -n 's/^target //p' "$list" | while read -r directory; do
    if has_files "$directory"; then echo "$directory"; fi
  done
  sed -n 's/^disk //p' "$list" | while read -r device uuid point; do
    # A removal erases a disk only if it still has the file system of this deployment.
    device=$(device_of "$device" "$uuid") || continue
    if ! awk -v at="$point" '$2 == at { found = 1 } END { exit !found }' /proc/mounts; then
      echo "$point $device not-mounted"
    elif has_files "$point"; then echo "$point $device"
    fi
  done
}
