#!/bin/sh
# Prepares the root directory of a host for an image of a cloud: installs Skep, checks that the
# image has what deploy/user-data/skep-node.sh needs, and removes all that must differ between the
# machines that start from the image. docs/operations/host-images.md has the steps before and after
# it.
#
# The script enables no service. It can run again. It removes nothing before all checks have passed.
set -eu
umask 022
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH LC_ALL=C

usage() {
  cat <<'END'
Usage: prepare.sh --package FILE (--root DIRECTORY | --this-host) [--without-cloud-init]

  --package FILE        the .tar.gz, .deb or .rpm of Skep
  --root DIRECTORY      the root directory of the image, which is mounted there
  --this-host           prepare the running host, of which an image is made then. Afterwards this
                        host has no keys for ssh, and gets new ones at its next boot. The .ssh
                        directories of all users are removed too, so only cloud-init or a console
                        let you in again. Not for a host that stays in use
  --without-cloud-init  accept an image without cloud-init. Then nothing runs the user data
END
}
die() { echo "prepare.sh: $*" >&2; exit 1; }

# Prints the programs that the image lacks, each with its package.
missing_programs() {
  for pair in awk:gawk blkid:util-linux curl:curl mkfs.xfs:xfsprogs mount:mount \
    sha256sum:coreutils cloud-init:cloud-init; do
    program=${pair%%:*}
    if [ "$program" = cloud-init ] && [ "$cloud_init" = no ]; then continue; fi
    for place in usr/bin usr/sbin bin sbin usr/local/bin usr/local/sbin; do
      # A link of an image may lead to a path that exists only inside of the image.
      if [ -e "$root/$place/$program" ] || [ -L "$root/$place/$program" ]; then continue 2; fi
    done
    echo "  $program (package ${pair#*:})"
  done
}
# Whether a path leads into the image. In an image that is mounted on this host, an absolute link
# leads to a file of this host.
in_image() { # path
  case "$(readlink -f "$1")/" in "${real_root%/}"/*) ;; *) return 1 ;; esac
}
# Whether a path is on the file system of the root directory. The home directory of a user may be on
# a file server, where other hosts use it.
on_root_disk() { [ "$(stat -L -c %d "$1")" = "$(stat -L -c %d "$root/")" ]; } # path
check_image() {
  [ -d "$root/etc" ] && [ -d "$root/usr/bin" ] ||
    die "$root/ is not the root directory of a host: it has no etc or no usr/bin"
  real_root=$(readlink -f "$root/")
  for place in /etc /etc/ssh /var /var/lib /var/lib/dbus /var/lib/systemd /var/lib/dhcp /var/cache \
    /var/cache/apt /var/lib/apt /var/log; do
    if [ -e "$root$place" ] && ! in_image "$root$place"; then
      die "$root$place leads out of the image to $(readlink -f "$root$place"), where files of" \
        "this host would be removed; replace the link by a relative one"
    fi
  done
  for place in /etc/skep /srv/skep; do
    if [ -n "$(find "$root$place" -mindepth 1 -maxdepth 1 2>/dev/null | head -n 1)" ]; then
      die "$root$place is not empty: the host belongs to a cluster, and its copies would have the" \
        "same identity; use a host on which Skep never ran, or run \`skep deploy destroy\` first"
    fi
  done
  if [ -e "$root/var/lib/skep/tune/state.json" ]; then
    die "the settings of the kernel were changed here: run \`skep tune undo\` first; the feature" \
      "\`tune\` changes them for the roles of each machine"
  fi
  missing=$(missing_programs)
  [ -z "$missing" ] || die "the image lacks programs; install these packages first:
$missing"
}

install_package() {
  case "$package" in
    *.tar.gz)
      directory=$(mktemp -d)
      trap 'rm -rf "$directory"' EXIT
      tar -C "$directory" -xf "$package" --no-same-owner
      "$directory"/skep-*/install.sh --prefix /usr --root "$root/"
      rm -rf "$directory" ;;
    *.deb) dpkg --root="$root/" --install "$package" ;;
    *.rpm) rpm --root "$root/" --upgrade --replacepkgs "$package" ;;
    *) die "cannot install $package: expected .tar.gz, .deb or .rpm" ;;
  esac
  [ -x "$root/usr/bin/skep" ] || die "$package has not installed /usr/bin/skep"
}

# Removes what must be different on each machine, and what only fills the image. Removes nothing
# outside of the image, and no file of a user on another file system.
remove_identity() {
  # systemd makes a new identity at the boot if the file is empty, and calls it the first boot.
  [ ! -L "$root/etc/machine-id" ] || rm "$root/etc/machine-id"
  : >"$root/etc/machine-id"
  rm -f "$root/var/lib/dbus/machine-id"
  rm -f "$root"/etc/ssh/ssh_host_*_key "$root"/etc/ssh/ssh_host_*_key.pub
  rm -f "$root/var/lib/systemd/random-seed" "$root/var/lib/systemd/credential.secret"
  # cloud-init runs the user data of a machine only if it has no record of the machine yet.
  rm -rf "$root/var/lib/cloud"
  rm -rf "$root/etc/hostname" "$root/var/cache/skep" "$root/var/log/skep"
  for home in "$root"/home/* "$root/root"; do
    [ -d "$home" ] || continue
    if in_image "$home" && on_root_disk "$home"; then
      rm -rf "$home/.ssh" "$home/.bash_history"
    else
      echo "prepare.sh: left $home alone: it is not in the file system of the image"
    fi
  done
  if [ -d "$root/var/log" ]; then
    rm -rf "$root/var/log/journal"
    find "$root/var/log" -xdev -type f -exec sh -c 'for file do : >"$file"; done' sh {} +
  fi
  rm -rf "$root"/var/lib/dhcp/*.leases "$root"/var/lib/apt/lists/*_* "$root"/var/cache/apt/*.bin
  rm -f "$root"/var/cache/apt/archives/*.deb
}

package='' root='' is_chosen=no cloud_init=yes
while [ $# -gt 0 ]; do
  case "$1" in
    --package | --root)
      [ $# -ge 2 ] || die "$1 needs a value"
      if [ "$1" = --package ]; then package=$2; else root=$2 is_chosen=yes; fi
      shift ;;
    --this-host) root=/ is_chosen=host ;;
    --without-cloud-init) cloud_init=no ;;
    --help | -h) usage; exit 0 ;;
    *) usage >&2; die "unknown option '$1'" ;;
  esac
  shift
done
if [ -z "$package" ] || [ "$is_chosen" = no ]; then
  usage >&2
  die "name a package and a root directory"
fi
[ -f "$package" ] || die "cannot read the package $package: there is no such file"
[ -d "$root" ] || die "cannot use --root $root: it is not a directory"
if [ "$is_chosen" = yes ] && [ "$root" -ef / ]; then
  die "--root $root is this running host: write --this-host if you mean that"
fi
root=${root%/}
check_image
install_package
remove_identity
echo "prepare.sh: ${root:-this host} is ready for an image with $(basename "$package")"
