#!/usr/bin/env bash
# Runs the tests in two parts: those that may run beside each other, on all CPUs, then those that need the kernel to
# themselves, one after another.
#   tools/test.sh PYTHON [PYTEST ARGUMENTS]
# With MRCLAB_TESTS_TOGETHER=1 both parts run at the same time, because the second leaves the CPUs idle half the time. The
# first then has a lower priority, and the output of the second follows that of the first. Each part ends with pytest's
# closing line. Ends with 0 if both passed, 5 if no test was chosen. Ctrl-C ends both.
set -euo pipefail
python=${1:?usage: tools/test.sh PYTHON [PYTEST ARGUMENTS]}
shift
unset PYTHONDONTWRITEBYTECODE # or each of the many processes would compile all modules anew

stop_if_broken() { # 2 and more, but for 5: interrupted, or wrong arguments
    if (($1 > 1 && $1 != 5)); then exit "$1"; fi
}

finish() { # 5: the arguments choose no test of a part
    if (($1 == 5)); then exit "$2"; fi
    if (($2 == 5)); then exit "$1"; fi
    exit $(($1 | $2))
}

all=(--kernel without -n logical --dist worksteal)
if [[ -z ${MRCLAB_TESTS_TOGETHER:-} ]]; then
    codes=()
    for part in "${all[*]}" "--kernel only"; do
        code=0
        # shellcheck disable=SC2086 # the words of a part
        "$python" -m pytest $part "$@" || code=$?
        stop_if_broken "$code"
        codes+=("$code")
    done
    finish "${codes[@]}"
fi

# Not at idle priority: on a machine with other work these tests would stand still.
behind=(nice -n 10)
! chrt --batch 0 true 2>/dev/null || behind+=(chrt --batch 0) # it takes no CPU away from others when it wakes up
colour=()
[[ ! -t 1 ]] || colour=(--color=yes) # a terminal shows the second part, too, if late
said=$(mktemp)
parts=()
trap 'rm -f "$said"' EXIT
# Each part is a separate process group. Only this script receives Ctrl-C, and passes it on once.
trap 'for part in "${parts[@]}"; do kill -INT -- "-$part" 2>/dev/null || true; done' INT TERM HUP
set -m
"${behind[@]}" "$python" -m pytest "${all[@]}" "$@" </dev/null &
parts+=($!)
# Both parts note which tests failed when they end, so each has a separate cache folder.
"$python" -m pytest --kernel only -o cache_dir=.pytest_cache/kernel "${colour[@]}" "$@" </dev/null >"$said" 2>&1 &
parts+=($!)

ended() { # waits for a part, even if a signal interrupts; sets $code to its exit code
    code=0
    wait "$1" || code=$?
    while kill -0 "$1" 2>/dev/null; do
        code=0
        wait "$1" || code=$?
    done
}

ended "${parts[0]}"
first=$code
tail -n +1 -f --pid="${parts[1]}" "$said" &
shown=$!
ended "${parts[1]}"
second=$code
ended "$shown"
stop_if_broken "$first"
stop_if_broken "$second"
finish "$first" "$second"
