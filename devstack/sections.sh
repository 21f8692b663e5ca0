# SPDX-License-Identifier: Apache-2.0
# Sourced by check and test: sections, of which every one runs, and a verdict at the end.

cd "$repo"
failed=()

# Where memory allows it, temporary folders lie there: stores sync thousands of times, and no test cuts the power.
shared_free=$(df --output=avail --block-size=1G /dev/shm 2>/dev/null | tail -n 1 || printf 0)
if ((shared_free >= 8)); then
    TMPDIR=$(mktemp --directory /dev/shm/zq-XXXXXX)
else
    TMPDIR=$(mktemp --directory)
fi
export TMPDIR
# Where nothing may be kept, each of the suite's hundreds of processes compiles zq and its tests again.
unset PYTHONDONTWRITEBYTECODE
declare -A aside=()

# Nothing that runs beside outlives this command.
finish() {
    for pid in "${aside[@]}"; do
        kill -- "-$pid" 2>/dev/null || true
    done
    wait
    rm -rf "$TMPDIR"
}
trap finish EXIT

section() {
    local name=$1 started=$SECONDS
    shift
    printf '\n== %s\n' "$name"
    "$@" || failed+=("$name")
    printf -- '-- %s: %d s\n' "$name" $((SECONDS - started))
}

# A section that runs beside those that follow, in a process group of its own. What it writes is told in the end.
beside() {
    set -m
    {
        failed=()
        section "$@"
        exit "${#failed[@]}"
    } </dev/null >"$TMPDIR/$1.section" 2>&1 &
    set +m
    aside[$1]=$!
}

verdict() {
    local name
    for name in "${!aside[@]}"; do
        wait "${aside[$name]}" || failed+=("$name")
        unset "aside[$name]"
        cat "$TMPDIR/$name.section"
    done
    if ((${#failed[@]})); then
        printf '\nFailed: %s\n' "${failed[*]}" >&2
        exit 1
    fi
    printf '\nAll sections passed in %d s.\n' "$SECONDS"
}
