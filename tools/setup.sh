#!/usr/bin/env bash
# Installs what mrclab needs on Debian 12+ / Ubuntu 22.04+: system packages and a virtual environment.
#   tools/setup.sh VENV [EXTRA]
# With EXTRA (training) also what that needs besides: an extra of pyproject.toml, and system packages.
# Run by `make`; does nothing where everything is in place. One line says what is wrong and how to mend it.
set -euo pipefail
venv=${1:?usage: tools/setup.sh VENV [EXTRA]}
extra=${2:-}
root=$(cd "$(dirname "$0")/.." && pwd)

fail() { echo "mrclab setup: $*" >&2; exit 3; }

# Commands that must be there, and the package each comes from.
declare -A needs=([mnexec]=mininet [ip]=iproute2 [tc]=iproute2 [tcpdump]=tcpdump [ethtool]=ethtool [ping]=iputils-ping)
packages=()
for command in "${!needs[@]}"; do
    PATH=$PATH:/usr/sbin:/sbin command -v "$command" >/dev/null || packages+=("${needs[$command]}")
done

[[ $extra != training || -x /usr/lib/frr/zebra ]] || packages+=(frr) # its TCP runs over FRRouting

# The newest Python that will do. Ubuntu 22.04's own is 3.10, which is too old: it has 3.11 beside it.
python=
for candidate in python3 python3.13 python3.12 python3.11; do
    if command -v "$candidate" >/dev/null && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        python=$candidate
        break
    fi
done
if [[ -z $python ]]; then
    if command -v python3 >/dev/null && ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        packages+=(python3.11 python3.11-venv)
        python=python3.11
    else
        packages+=(python3 python3-venv)
        python=python3
    fi
elif ! "$python" -c 'import ensurepip' 2>/dev/null; then
    packages+=("$("$python" -c 'import sys; print(f"python{sys.version_info.major}.{sys.version_info.minor}-venv")')")
fi

if ((${#packages[@]})); then
    mapfile -t packages < <(printf '%s\n' "${packages[@]}" | sort -u)
    command -v apt-get >/dev/null || fail "no apt-get here: install ${packages[*]} (or their likes) by hand, then run make again"
    [[ $EUID == 0 ]] || fail "not root: run 'sudo apt-get install ${packages[*]}' or run make as root"
    echo "mrclab setup: installing ${packages[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq || fail "apt-get update failed: is this machine's package source reachable?"
    apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null || fail "apt-get could not install ${packages[*]}"
fi

# The MRC core is compiled where that can be done, and works without; `mrclab exec` needs libibverbs' header: so no failure here is one of the set-up.
if ! command -v gcc >/dev/null || [[ ! -e /usr/include/infiniband/verbs.h ]] || ! "$python" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))'; then
    compiler=(gcc libc6-dev libibverbs-dev "$("$python" -c 'import sys; print(f"python{sys.version_info.major}.{sys.version_info.minor}-dev")')")
    if [[ $EUID == 0 ]] && command -v apt-get >/dev/null; then
        echo "mrclab setup: installing ${compiler[*]}"
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${compiler[@]}" >/dev/null 2>&1 ||
            { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${compiler[@]}" >/dev/null; } ||
            echo "mrclab setup: no ${compiler[*]} to be had: the MRC core will run in pure Python, slower" >&2
    else
        echo "mrclab setup: install ${compiler[*]} to have the MRC core compiled; it works without, slower" >&2
    fi
fi

[[ -x $venv/bin/python ]] || "$python" -m venv "$venv" || fail "could not make a virtual environment in $venv"
echo "mrclab setup: installing Python packages into $venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -e "$root[dev${extra:+,$extra}]" ||
    fail "pip could not install the packages of pyproject.toml: is this machine's package index reachable?"
touch "$venv/.ready"
[[ -z $extra ]] || touch "$venv/.with-$extra"
