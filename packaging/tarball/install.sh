#!/bin/sh
# Installs Skep from the directory of this script, upgrades it, or removes it.
#
# PREFIX/share/skep/installed is the list of the files that belong to the installation. Before the
# script writes a file, it adds the path to the list. So after an interruption, the next run upgrades
# or removes all of these files. The script never replaces a file that is not in the list.
set -eu
umask 022

usage() {
  cat <<'END'
Usage: install.sh [--prefix DIRECTORY] [--root DIRECTORY] [--no-system]
       install.sh --uninstall [--prefix DIRECTORY] [--root DIRECTORY]

  --prefix DIRECTORY  install below this directory (default /usr/local)
  --root DIRECTORY    the root directory of the host (default /), to build an image
  --no-system         install nothing outside of the prefix: no units of systemd, no user for
                      services, no helpers of mount in /sbin. Users without root need this
  --uninstall         remove an installation. Settings in /etc/skep and data stay
END
}
die() { echo "install.sh: $*" >&2; exit 1; }
has_line() { [ -e "$2" ] && grep -qxF -e "$1" "$2"; } # line, file

# Sets `units` and `users`, the directories of the prefix in which systemd looks for units and for
# users that it creates.
find_units() {
  case $prefix in
    /usr | /usr/local) units=$prefix/lib/systemd/system users=$prefix/lib/sysusers.d ;;
    *) units=/etc/systemd/system users=/etc/sysusers.d ;;
  esac
}
# Prints two paths for each file: its path in the tarball, and its path on the host. The program is the
# last file. So if it is installed, all other files are installed too.
list_files() {
  (cd "$here" && find lib share ! -type d) | LC_ALL=C sort | while read -r file; do
    case $file in
      lib/systemd/system/*) [ "$system" = no ] || echo "$file $units/${file##*/}" ;;
      lib/sysusers.d/*) [ "$system" = no ] || echo "$file $users/${file##*/}" ;;
      *) echo "$file $prefix/$file" ;;
    esac
  done
  echo "install.sh $prefix/share/skep/install.sh"
  if [ "$system" = yes ]; then
    for name in mount.skep mount.fuse.skep umount.fuse.skep; do echo "- /sbin/$name"; done
  fi
  echo "bin/skep $prefix/bin/skep"
}
# Fails if a file that this script would install already belongs to another installation.
check_conflicts() {
  others=$(while read -r _ file; do
    [ -e "$root$file" ] || [ -L "$root$file" ] || continue
    has_line "file $file" "$list" || echo "  $file"
  done <"$work/files")
  [ -z "$others" ] || die "cannot install Skep in $root$prefix: these files exist already:
$others
They belong to another installation. Remove it first (apt remove skep, dnf remove skep, or
install.sh --uninstall with its --prefix), or choose another --prefix"
}
# Creates a directory and the missing directories above it, and adds the new directories to the list.
make_directory() {
  [ ! -d "$root$1" ] || return 0
  case ${1%/*} in '') ;; *) make_directory "${1%/*}" ;; esac
  echo "directory $1" >>"$list"
  mkdir "$root$1"
}
# Installs one file under a temporary name, and then renames it. So the file of a running program is
# replaced, but not changed.
install_file() { # path in the tarball, path on the host
  make_directory "${2%/*}"
  has_line "file $2" "$list" || echo "file $2" >>"$list"
  new=$root${2%/*}/.skep-install
  rm -f "$new"
  case $1 in
    -) ln -s "$prefix/bin/skep" "$new" ;;
    lib/systemd/*)
      sed -e "s|/usr/bin/skep|$prefix/bin/skep|g" -e "s|file:/usr/share/|file:$prefix/share/|g" \
        "$here/$1" >"$new" ;;
    *) cp "$here/$1" "$new" ;;
  esac
  mv -f "$new" "$root$2"
}
# Removes the files that are in the list, but not in the new installation.
remove_obsolete() {
  sed 's/^[^ ]* /file /' "$work/files" >"$work/wanted"
  while read -r kind file; do
    [ "$kind" = file ] || continue
    has_line "file $file" "$work/wanted" || rm -f "$root$file"
  done <"$list"
  { grep '^directory ' "$list" || true; cat "$work/wanted"; } >"$list.new"
  mv "$list.new" "$list"
}
# Creates the user of the services. In an image, systemd creates the user at the first boot.
create_user() {
  if [ "$system" = no ] || [ -n "$root" ] || id skep >/dev/null 2>&1; then return; fi
  systemd-sysusers skep.conf 2>/dev/null ||
    useradd --system --user-group --no-create-home --shell /usr/sbin/nologin skep ||
    echo "install.sh: cannot create the user skep: create it before you start a unit" >&2
}
reload_systemd() {
  if [ -z "$root" ] && [ -d /run/systemd/system ]; then systemctl daemon-reload || true; fi
}

install_all() {
  [ -x "$here/bin/skep" ] || die "$here has no bin/skep: run the script of an unpacked tarball"
  version=$("$here/bin/skep" --version 2>&1) ||
    die "cannot run $here/bin/skep on this host ($(uname -m)): $version"
  if [ "$system" = yes ] && [ "$(id -u)" != 0 ] && [ -z "$root" ]; then
    die "not root: run it as root, or install into a directory of yours with --no-system --prefix"
  fi
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  list_files >"$work/files"
  check_conflicts
  # The list is in a directory of the installation, so find the missing directories before the list
  # can be written.
  missing=$(parent=$prefix/share/skep
    while [ -n "$parent" ] && [ ! -d "$root$parent" ]; do
      echo "directory $parent"
      parent=${parent%/*}
    done)
  mkdir -p "$root$prefix/share/skep"
  if [ -n "$missing" ]; then echo "$missing" | LC_ALL=C sort >>"$list"; fi
  while read -r from to; do install_file "$from" "$to"; done <"$work/files"
  remove_obsolete
  create_user
  reload_systemd
  echo "$version is installed: $root$prefix/bin/skep"
}

uninstall_all() {
  [ -e "$list" ] || die "no installation in $root$prefix: $list does not exist. Name its directory \
with --prefix"
  if [ -z "$root" ] && [ -d /run/systemd/system ] && grep -q '^file .*\.target$' "$list"; then
    systemctl stop skep.target skep-monitor.service 'skep-*@*.service' || true
  fi
  # Remove the list last, so that an interrupted removal can run again.
  sed -n 's/^file //p' "$list" | while read -r file; do
    rm -f "$root$file" "$root${file%/*}/.skep-install"
  done
  directories=$(sed -n 's/^directory //p' "$list" | LC_ALL=C sort -ru)
  rm -f "$list" "$list.new"
  for directory in $directories; do rmdir "$root$directory" 2>/dev/null || true; done
  reload_systemd
  echo "Skep is removed from $root$prefix. Settings in /etc/skep, data and their user skep stay"
}

main() {
  here=$(cd "$(dirname "$0")" && pwd -P)
  prefix='' root='' system=yes action=install_all
  while [ $# -gt 0 ]; do
    case $1 in
      --prefix | --root)
        [ $# -ge 2 ] || die "$1 needs a directory"
        if [ "$1" = --prefix ]; then prefix=$2; else root=$2; fi
        shift ;;
      --no-system) system=no ;;
      --uninstall) action=uninstall_all ;;
      --help | -h) usage; exit 0 ;;
      *) usage >&2; die "unknown option '$1'" ;;
    esac
    shift
  done
  root=${root%/}
  # If this script is an installed copy, the prefix is the one in which the copy is.
  if [ -z "$prefix" ]; then
    case $here in
      "$root"/*/share/skep) prefix=${here%/share/skep}; prefix=${prefix#"$root"} ;;
      *) prefix=/usr/local ;;
    esac
  fi
  prefix=${prefix%/}
  case $prefix in
    /*) ;;
    *) die "invalid --prefix '$prefix': expected an absolute path, and not the root directory" ;;
  esac
  case $prefix in
    *[!A-Za-z0-9/._-]* | */../* | */.. | *//*)
      die "invalid --prefix '$prefix': expected only letters, digits and . _ - between slashes" ;;
  esac
  [ -z "$root" ] || [ -d "$root" ] || die "invalid --root '$root': it is no directory"
  list=$root$prefix/share/skep/installed
  find_units
  $action
}
main "$@"
exit
