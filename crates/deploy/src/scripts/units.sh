# Functions that compare and write the systemd units of a host. The program that is installed on the
# host prints its units, because the program that deploys may be of another version.
# Whether the host has other units than its program. A program that cannot print its units counts as
# having the same.
has_old_units() { # options of `skep deploy units`
  paths=$(/usr/bin/skep deploy units "$@" 2>/dev/null) || return 1
  for path in $paths; do
    wanted=$(/usr/bin/skep deploy units --file "$path" 2>/dev/null | sha256sum)
    [ "$wanted" = "$(sha256sum 2>/dev/null <"$path")" ] || return 0
  done
  return 1
}
# Writes the units, and creates the user that runs the services.
write_units() { # options of `skep deploy units`
  paths=$(/usr/bin/skep deploy units "$@") ||
    die "the program of this host does not print its systemd units: name a newer one with --program"
  for path in $paths; do
    /usr/bin/skep deploy units --file "$path" >/run/skep/unit || die "cannot print $path"
    write_file "$path" 644 </run/skep/unit
  done
  rm -f /run/skep/unit
  id skep >/dev/null 2>&1 || systemd-sysusers skep.conf
}
