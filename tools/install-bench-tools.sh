#!/bin/sh
# Installs the programs that docs/operations/benchmark-recipes.md runs: MPICH, IOR with mdtest,
# IOzone and fio. Each comes from the packages of the distribution, if it has one. Otherwise it is
# built from the source of a release, whose SHA-256 the script checks before it unpacks anything.
#
# The built-in benchmarks (`skep bench`) need none of these programs.
set -eu

usage() {
    cat <<'END'
usage: install-bench-tools.sh [OPTIONS] [PROGRAM...]

Installs benchmark programs: mpich, ior (with mdtest), iozone, fio. Without PROGRAM: all of them.

  --dry-run               print the commands, and run none of them
  --from-source           build the programs, even if the distribution has packages
  --prefix DIR            directory of programs that are built (default: /usr/local)
  --source PROGRAM=URL,SHA256
                          build PROGRAM from this archive (.tar, .tar.gz, .tar.bz2, .tar.xz)
  --jobs NUMBER           processes that compile at the same time (default: the processors)
  --help

Packages need root. A build needs a compiler, make, tar and curl or wget; IOR also needs autoconf,
automake, libtool and pkg-config, which the script installs if the distribution has them.

Example: install-bench-tools.sh --dry-run ior fio
END
}

# The sources of releases. The checksums come from Spack's package recipes
# (https://github.com/spack/spack-packages).
mpich_url=https://www.mpich.org/static/downloads/4.2.3/mpich-4.2.3.tar.gz
mpich_sum=7a019180c51d1738ad9c5d8d452314de65e828ee240bcb2d1f80de9a65be88a8
ior_url=https://github.com/hpc/ior/archive/4.0.0.tar.gz
ior_sum=cb17f6b0d17fb98dae28abaa116fd3adde411f52d45ff9efb125efc791b97463
iozone_url=https://www.iozone.org/src/current/iozone3_506.tar
iozone_sum=114ce5c071873b9a2c7ba6e73d05d5ef7e66564392acbfcdc0b3261db10fcbe7
# There is no known checksum of a release of fio, so a build needs --source fio=URL,SHA256.
fio_url=
fio_sum=

is_dry_run=no
from_source=no
prefix=/usr/local
jobs=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)
programs=

fail() {
    echo "install-bench-tools.sh: $1" >&2
    exit "${2:-1}"
}

is_program() {
    case $1 in mpich | ior | iozone | fio) return 0 ;; *) return 1 ;; esac
}

# Runs a command, or prints it in a dry run.
run() {
    echo "+ $*"
    if [ "$is_dry_run" = no ]; then "$@"; fi
}

value() {
    [ $# -ge 2 ] || fail "option $1 needs a value; --help lists the options" 2
    printf '%s' "$2"
}

# Uses the archive in an argument such as ior=https://host/ior.tar.gz,SHA256.
set_source() {
    name=${1%%=*} rest=${1#*=}
    url=${rest%,*} sum=${rest##*,}
    is_program "$name" || fail "invalid --source '$1': unknown program '$name'" 2
    case $sum in
        *[!0-9a-f]* | '') fail "invalid --source '$1': expected PROGRAM=URL,SHA256" 2 ;;
    esac
    [ ${#sum} -eq 64 ] || fail "invalid --source '$1': a SHA-256 has 64 hexadecimal digits" 2
    eval "${name}_url=\$url ${name}_sum=\$sum ${name}_is_given=yes"
}

while [ $# -gt 0 ]; do
    case $1 in
        --dry-run) is_dry_run=yes ;;
        --from-source) from_source=yes ;;
        --prefix) prefix=$(value "$@") || exit 2 && shift ;;
        --jobs) jobs=$(value "$@") || exit 2 && shift ;;
        --source) argument=$(value "$@") || exit 2 && set_source "$argument" && shift ;;
        --help | -h) usage && exit 0 ;;
        -*) fail "unknown option '$1'; --help lists the options" 2 ;;
        mdtest) programs="$programs ior" ;;
        *)
            is_program "$1" || fail "unknown program '$1': expected mpich, ior, iozone or fio" 2
            programs="$programs $1"
            ;;
    esac
    shift
done
[ -n "$programs" ] || programs="mpich ior iozone fio"
case $jobs in *[!0-9]* | '' | 0) fail "invalid --jobs '$jobs': expected a number" 2 ;; esac

manager=none
for name in apt-get dnf zypper pacman; do
    if command -v "$name" >/dev/null 2>&1; then manager=$name && break; fi
done

# Whether the distribution has a package.
has_package() {
    case $manager in
        apt-get) apt-cache show --no-all-versions "$1" >/dev/null 2>&1 ;;
        dnf) dnf -q list "$1" >/dev/null 2>&1 ;;
        zypper) zypper -q search --match-exact "$1" >/dev/null 2>&1 ;;
        pacman) pacman -Si "$1" >/dev/null 2>&1 ;;
        *) return 1 ;;
    esac
}

install_packages() {
    case $manager in
        apt-get)
            run env DEBIAN_FRONTEND=noninteractive \
                apt-get install -y --no-install-recommends "$@"
            ;;
        dnf) run dnf install -y "$@" ;;
        zypper) run zypper --non-interactive install "$@" ;;
        pacman) run pacman -S --noconfirm --needed "$@" ;;
    esac
}

# Installs the packages of this list that the distribution has.
install_existing() {
    existing=
    for package in "$@"; do
        if has_package "$package"; then existing="$existing $package"; fi
    done
    # Names of packages have no spaces, so the list is split on purpose.
    # shellcheck disable=SC2086
    if [ -n "$existing" ]; then install_packages $existing; fi
}

# Prints the packages of a program. The distribution must have the first one.
packages_of() {
    case $manager,$1 in
        apt-get,mpich) echo mpich libmpich-dev ;;
        dnf,mpich) echo mpich mpich-devel ;;
        zypper,mpich) echo mpich mpich-devel ;;
        pacman,mpich) echo mpich ;;
        dnf,ior) echo ior-mpich ;;
        *,ior) echo ior ;;
        apt-get,iozone) echo iozone3 ;;
        *,iozone) echo iozone ;;
        *,fio) echo fio ;;
    esac
}

download() {
    if command -v curl >/dev/null 2>&1; then
        run curl -fsSL --retry 3 -o "$2" "$1"
    else
        run wget -q -O "$2" "$1"
    fi
}

# Downloads, checks and unpacks the archive of a program. The archive's files come to the directory
# $work/$name.
unpack() {
    name=$1 url=$2 sum=$3
    [ -n "$url" ] ||
        fail "no package and no known release of $name: name one with --source $name=URL,SHA256"
    download "$url" "$work/$name.archive"
    if [ "$is_dry_run" = yes ]; then
        echo "+ check that $work/$name.archive has the SHA-256 $sum"
    else
        found=$(sha256sum "$work/$name.archive" | cut -d ' ' -f 1)
        [ "$found" = "$sum" ] ||
            fail "cannot use $url: its SHA-256 is $found, and $sum was expected"
    fi
    run mkdir -p "$work/$name"
    run tar -x -f "$work/$name.archive" -C "$work/$name" --strip-components 1
}

build_mpich() {
    unpack mpich "$mpich_url" "$mpich_sum"
    install_existing gcc g++ gcc-c++ make
    run cd "$work/mpich"
    run ./configure --prefix="$prefix" --disable-fortran --with-device=ch4:ofi
    run make -j "$jobs"
    run make install
}

# Builds IOR and mdtest, which are in one source.
build_ior() {
    unpack ior "$ior_url" "$ior_sum"
    case $manager in
        apt-get) install_existing gcc make autoconf automake libtool pkg-config ;;
        *) install_existing gcc make autoconf automake libtool pkgconf pkgconf-pkg-config ;;
    esac
    run cd "$work/ior"
    if [ "$is_dry_run" = yes ] || [ ! -x configure ]; then run ./bootstrap; fi
    # The packages of Fedora install MPICH's compiler outside of PATH.
    mpicc=$(PATH="$prefix/bin:$PATH:/usr/lib64/mpich/bin" command -v mpicc || echo mpicc)
    run env MPICC="$mpicc" ./configure --prefix="$prefix" --without-hdf5 --without-ncmpi
    run make -j "$jobs"
    run make install
}

build_iozone() {
    unpack iozone "$iozone_url" "$iozone_sum"
    install_existing gcc make
    case $(uname -m) in
        x86_64) system=linux-AMD64 ;;
        aarch64) system=linux-arm ;;
        *) system=linux ;;
    esac
    run cd "$work/iozone/src/current"
    # The source declares some functions in the style of old compilers.
    flags="-O3 -fcommon -std=gnu17 -Wno-error=implicit-int -Wno-error=implicit-function-declaration"
    run make "CC=cc $flags" "GCC=cc $flags" "$system"
    run install -D -m 0755 iozone "$prefix/bin/iozone"
}

build_fio() {
    unpack fio "$fio_url" "$fio_sum"
    install_existing gcc make libaio-dev libaio-devel
    run cd "$work/fio"
    run ./configure --prefix="$prefix"
    run make -j "$jobs"
    run make install
}

# Whether to build a program although the distribution has a package.
must_build() {
    eval "is_given=\${${1}_is_given:-no}"
    [ "$from_source" = yes ] || [ "$is_given" = yes ]
}

install_program() {
    packages=$(packages_of "$1")
    if ! must_build "$1" && has_package "${packages%% *}"; then
        # shellcheck disable=SC2086
        install_packages $packages
    else
        echo "$1: from the source of a release"
        # The build changes its directory, so it runs in a process of its own.
        (build_"$1")
    fi
}

if [ "$is_dry_run" = yes ]; then
    work=/tmp/skep-bench-tools
else
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
fi
for program in $programs; do install_program "$program"; done
if [ "$is_dry_run" = yes ]; then
    echo "No command was run."
else
    echo "Installed:$programs. Programs that were built are in $prefix/bin."
fi
