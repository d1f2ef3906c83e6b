#!/usr/bin/env bash
# Installs what mrclab needs on Debian 12+ / Ubuntu 22.04+: system packages and a virtual environment.
#   tools/setup.sh VENV [EXTRA...]
# Without EXTRA: what a run and the live page need. An EXTRA (dev, training) adds that extra of pyproject.toml, `frr` Debian's
# FRRouting; `quick` leaves the compiler out, which takes longest: the core is pure Python then. Run by `make`; does nothing if everything is in place. One line says what is wrong and how to mend it.
set -euo pipefail
venv=${1:?usage: tools/setup.sh VENV [EXTRA...]}
shift
root=$(cd "$(dirname "$0")/.." && pwd)
extras=testbed,live quick=
for extra in "$@"; do
    case $extra in
        frr) ;;
        quick) quick=yes ;;
        *) extras+=,$extra ;;
    esac
done
[[ -n $quick ]] || extras+=,compiler

fail() { echo "mrclab setup: $*" >&2; exit 3; }
say() { echo "mrclab setup: $* (after ${SECONDS} s)" >&2; }

# Commands that must be there, and the package each comes from.
declare -A needs=([ip]=iproute2 [tc]=iproute2 [tcpdump]=tcpdump [ethtool]=ethtool [ping]=iputils-ping)
packages=()
for command in "${!needs[@]}"; do
    PATH=$PATH:/usr/sbin:/sbin command -v "$command" >/dev/null || packages+=("${needs[$command]}")
done
[[ " $* " != *" frr "* || -x /usr/lib/frr/zebra ]] || packages+=(frr)

# The newest Python that will do. Ubuntu 22.04's own is 3.10, which is too old: it has 3.11 beside it.
python=
for candidate in python3 python3.13 python3.12 python3.11; do
    if command -v "$candidate" >/dev/null && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        python=$candidate
        break
    fi
done
# The MRC core is compiled if that can be done, and works without: a compiler that cannot be had is no failure.
compiler=()
command -v gcc >/dev/null || compiler+=(gcc libc6-dev)
[[ -e /usr/include/infiniband/verbs.h ]] || compiler+=(libibverbs-dev) # for the C libraries of `mrclab exec`
interpreter=()
if [[ -z $python ]]; then
    python=python3
    if command -v python3 >/dev/null; then python=python3.11; fi
    interpreter=("$python" "$python-venv")
    compiler+=("$python-dev")
else
    version=python$("$python" -c 'import sys; print(f"{sys.version_info.major}.{sys.version_info.minor}")')
    "$python" -c 'import ensurepip' 2>/dev/null || interpreter=("$version-venv")
    "$python" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' ||
        compiler+=("$version-dev")
fi
[[ -z $quick ]] || compiler=()
mapfile -t packages < <(printf '%s\n' "${packages[@]}" | sort -u | sed '/^$/d')

# dpkg need not wait for the disk after each file: what a power cut spoils is installed again.
apt_install() {
    apt-get install -y -qq --no-install-recommends -o Dpkg::Options::=--force-unsafe-io "$@" >/dev/null
}
can_apt=
if [[ $EUID == 0 ]] && command -v apt-get >/dev/null; then can_apt=yes; fi
needed=("${interpreter[@]}" "${packages[@]}")
debian() { # the Debian packages but for the interpreter, which is there
    ((${#packages[@]} + ${#compiler[@]})) || return 0
    apt_install "${packages[@]}" "${compiler[@]}" && return
    ((${#packages[@]} == 0)) || apt_install "${packages[@]}" || fail "apt-get could not install ${packages[*]}"
    echo "mrclab setup: no ${compiler[*]} to be had: the MRC core will run in pure Python, slower" >&2
}
if ((${#needed[@]})) || { ((${#compiler[@]})) && [[ -n $can_apt ]]; }; then
    command -v apt-get >/dev/null || fail "no apt-get here: install ${needed[*]} (or their likes) by hand, then run make again"
    [[ $EUID == 0 ]] || fail "not root: run 'sudo apt-get install ${needed[*]} ${compiler[*]}' or run make as root"
    say "1 of 3: Debian packages ${needed[*]} ${compiler[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq -o Acquire::Languages=none || fail "apt-get update failed: is this machine's package source reachable?"
    ((${#interpreter[@]} == 0)) || apt_install "${interpreter[@]}" || fail "apt-get could not install ${interpreter[*]}"
elif ((${#compiler[@]})); then
    echo "mrclab setup: install ${compiler[*]} to have the MRC core compiled; it works without, slower" >&2
    packages=() compiler=()
fi

[[ -x $venv/bin/python ]] || "$python" -m venv "$venv" || fail "could not make a virtual environment in $venv"
say "2 of 3: Python packages [$extras], some 200 MB"
pip=("$venv/bin/python" -m pip --quiet --disable-pip-version-check)
install() { # by uv if it is there, else by pip
    if ((${#uv[@]})) && "${uv[@]}" "$@" >&2; then return; fi
    "${pip[@]}" install "$@" >&2 || fail "pip could not install the packages of pyproject.toml: is this machine's package index reachable?"
}
# The compiler's packages first, then a line: the core compiles while the others are fetched.
python_packages() {
    # uv installs in parallel. It does not read pip's configuration, so a machine with an index of its own keeps pip.
    uv=()
    if [[ -z ${MRCLAB_PIP:-}${PIP_INDEX_URL:-} ]] && ! "${pip[@]}" config list | grep -q 'index-url'; then
        [[ -x $venv/bin/uv ]] || "${pip[@]}" install uv >&2 2>/dev/null || true
        [[ ! -x $venv/bin/uv ]] || uv=("$venv/bin/uv" --quiet --no-progress --cache-dir "$venv/.uv" pip install --python "$venv/bin/python")
    fi
    mapfile -t early < <("$venv/bin/python" -c '
import sys, tomllib
project = tomllib.load(open(sys.argv[1], "rb"))["project"]
needs = project["optional-dependencies"]["compiler"]
print(*needs, *(need for need in project["dependencies"] if need.startswith("zlib-ng")), sep="\n")' "$root/pyproject.toml")
    if [[ -z $quick ]]; then
        install "${early[@]}"
        echo early
    fi
    install -e "$root[$extras]"
    rm -rf "$venv/.uv"
    say "Python packages are installed"
}
# At the same time: Debian's packages, and Python's.
exec {told}< <(python_packages)
packaging=$!
debian
compiling=
if read -r _ <&"$told" && command -v gcc >/dev/null; then
    say "3 of 3: compiling the MRC core while the other packages are installed"
    PYTHONPATH=$root "$venv/bin/python" -m mrclab.hosts.compile &
    compiling=$!
fi
wait "$packaging" || exit 3
[[ -z $compiling ]] || wait "$compiling" || true
say "done"
[[ -n $quick ]] || touch "$venv/.ready"
for extra in "$@"; do touch "$venv/.with-$extra"; done
