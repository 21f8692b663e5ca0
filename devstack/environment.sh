# SPDX-License-Identifier: Apache-2.0
# Sourced by run, up, test, bench and spark-example. `environment EXTRAS`, as `environment cli,server`, makes the virtual
# environment with these extras, or brings it up to date, and sets $venv. It works again only when setup.cfg, the
# interpreter or this file changed: a stamp in it holds their hash.

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${ZQ_VENV:-$repo/.venv}
[[ $venv == /* ]] || venv=$PWD/$venv

refuse() {
    printf '%s\n' "$1" >&2
    exit 1
}

# running NAME: whether the process that devstack/up started under this name still is that process.
running() {
    local file=$repo/var/devstack/$1.pid
    [[ -f $file ]] && tr '\0' ' ' 2>/dev/null <"/proc/$(<"$file")/cmdline" | grep -qE 'mongod |valkey-server|tests\.(swift|s3)|zq-server'
}

# ready PID URL: wait until the process, and no other program, serves the URL; fails if it ends or takes too long.
ready() {
    "$venv/bin/python" "$repo/devstack/ready.py" "$1" "$2"
}

# The first Python on PATH that is new enough and can make an environment (a pyenv shim may be there and not run).
find_python() {
    local candidate
    python='' old=''
    for candidate in python3.11 python3.12 python3.13 python3 python3.14; do
        "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue
        old=${old:-$candidate}
        "$candidate" -c 'import ensurepip, venv' 2>/dev/null || continue
        python=$candidate
        return
    done
    [[ -z $old ]] || refuse "$old cannot make a virtual environment, because its module ensurepip is missing:\
 install it (on Debian and Ubuntu the package ${old##*/}-venv) or put another Python, 3.11 or newer, on PATH."
    refuse 'zq needs Python 3.11 or newer, and neither python3.11, python3.12, python3.13 nor python3 on PATH is one.'
}

has_compiler() {
    command -v cc >/dev/null || command -v gcc >/dev/null || command -v clang >/dev/null
}

# Editable by a folder on the path, not by an import hook, which type checkers and Spark do not see. What is imported is
# compiled then: most of what comes never is.
install() {
    "$venv/bin/python" -m pip install --progress-bar off --disable-pip-version-check --no-input --no-compile \
        --editable "$1" --config-settings editable_mode=compat >>"$venv/zq-install.log" 2>&1
}

# What the environment must have been made from to be of use now.
fingerprint() {
    { "$venv/bin/python" -VV && printf '%s\n' "$repo" && cat "$repo/setup.cfg" "$repo/devstack/environment.sh"; } |
        "$venv/bin/python" -c 'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())'
}

environment() {
    local extras=$1 stamp=$venv/.zq-$1 started=$SECONDS
    if [[ -f $stamp && $(<"$stamp") == "$(fingerprint 2>/dev/null)" ]]; then
        return
    fi
    printf 'Preparing %s for %s: up to two minutes the first time, more where downloads are slow.\n' "$venv" "$extras" >&2
    if ! "$venv/bin/python" -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        find_python
        # Never clear a folder that is not an environment: ZQ_VENV may name anything.
        [[ ! -f $venv/pyvenv.cfg ]] || "$python" -m venv --clear "$venv"
        "$python" -m venv "$venv"
    fi
    : >"$venv/zq-install.log"
    printf '  installing packages with pip (its words are in %s)\n' "$venv/zq-install.log" >&2
    # zq is the name that this distribution had, and on the package index it is a stranger's.
    "$venv/bin/python" -m pip uninstall -qq --yes zq >/dev/null 2>&1 || true
    if ! install "$repo[$extras]"; then
        tail -n 20 "$venv/zq-install.log" >&2
        refuse "pip could not install zq into $venv; its message stands above."
    fi
    # gunicorn's C parser is a source package: a gain where it builds, never a reason to fail.
    if [[ ,$extras, == *,server,* || ,$extras, == *,test,* || ,$extras, == *,bench,* ]] && has_compiler; then
        printf '  building gunicorn'\''s C parser\n' >&2
        install "$repo[fast]" || printf '  going on without it: it did not build here\n' >&2
    fi
    fingerprint >"$stamp"
    printf '  done in %d s\n' $((SECONDS - started)) >&2
}
