# Functions that check the disks of a host.

# Prints the number of a block device, as in the kernel's list of mounts.
device_number() { # device
  hex=$(stat -L -c '%t %T' "$1" 2>/dev/null) || return 1
  echo "$((0x${hex% *})):$((0x${hex#* }))"
}
# Time limit for a read of a disk, in seconds. If the kernel does not let the read end, timeout(1) waits
# for the kernel, and only the time limit of the script that reads the facts applies.
READ_LIMIT=20
# Prints why the file system of a disk that is mounted on a directory does not work. Fails if it works,
# or if no disk is mounted there. After an error, XFS shuts down, and then each read of a directory
# fails. Before that, directories in the page cache can be read although the device does not work, so
# this function also reads the device.
failed_mount() { # mount point
  # If several file systems are mounted there, the last line is the visible one.
  found=$(awk -v at="$1" '
    $5 == at { for (i = 7; i < NF && $i != "-"; i++); found = $3 " " $(i + 2) }
    END { print found }' /proc/self/mountinfo)
  number=${found%% *} source=${found#* }
  # A file system without a device has the major number 0.
  case "$number" in '' | 0:*) return 1 ;; esac
  if [ -d /sys/dev/block ] && [ ! -e "/sys/dev/block/$number" ]; then
    echo "its device ($source) is gone"
    return
  fi
  status=0
  text=$(timeout "$READ_LIMIT" ls -A "$1" 2>&1 >/dev/null) || status=$?
  # Another disk may have the name of the device since then.
  if [ "$status" = 0 ] && [ "$(device_number "$source")" = "$number" ]; then
    options='of=/dev/null bs=64k count=1 iflag=direct status=none'
    # shellcheck disable=SC2086 # several words
    text=$(timeout "$READ_LIMIT" dd if="$source" $options 2>&1) || status=$?
    # A container may mount a disk without the permission to read its device.
    case "$status $text" in
      *'error reading'* | *'No such device'* | '124 '*) ;;
      *) status=0 ;;
    esac
  fi
  case "$status" in
    0) return 1 ;;
    124)
      busy='if the disk is only busy, repeat the command later'
      echo "a read does not end within $READ_LIMIT s ($busy)" ;;
    *) echo "a read fails (${text##*: })" ;;
  esac
}
