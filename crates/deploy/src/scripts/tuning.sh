# Functions that change the settings of the kernel and restore them. The list of the deployment has
# the line `tuned ROLES`, which names the roles and the directories of targets for which the host
# was tuned. `tuned unfinished` means that a change began.
set_tuned() { # the rest of the line; empty removes the line
  grep -v '^tuned ' "$list" >"$list.new" || [ $? = 1 ]
  [ -z "$1" ] || printf 'tuned %s\n' "$1" >>"$list.new"
  sync "$list.new"
  mv "$list.new" "$list"
}
# Changes the settings for one role, and then those of the disk of each target.
tune() { # role, directories of targets
  role=$1; shift
  tune_once --role "$role"
  for directory in "$@"; do tune_once --role "$role" --target "$directory"; done
}
tune_once() { # options of `skep tune apply`
  status=0
  text=$(/usr/bin/skep tune apply "$@" 2>&1) || status=$?
  # The exit codes are listed in docs/operations/output.md.
  case "$status $*" in
    0\ *) ;;
    # The directory of the target is not on a local disk.
    4\ *' --target '*) ;;
    # A virtual machine or a container may refuse single values. `skep tune check` lists these.
    6\ *) ;;
    *) die "$text" ;;
  esac
}
restore_tuning() {
  if [ -e /var/lib/skep/tune/state.json ]; then
    text=$(/usr/bin/skep tune undo 2>&1) ||
      die "cannot restore the settings of the kernel: $text; repair this and run the command" \
        "again, or move /var/lib/skep/tune/state.json away, which leaves the settings as they are"
  fi
  set_tuned ''
}
