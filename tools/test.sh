#!/usr/bin/env bash
# Runs the tests in two parts: those that may run beside each other on all CPUs, then those
# that need the kernel to themselves, one after another.
#   tools/test.sh PYTHON [PYTEST ARGUMENTS]
# Each part prints pytest's closing line. Ends with 0 if both passed, 5 if no test was chosen.
set -euo pipefail
python=${1:?usage: tools/test.sh PYTHON [PYTEST ARGUMENTS]}
shift
unset PYTHONDONTWRITEBYTECODE # or each of the many processes would compile all modules anew

part() { # the exit code of one part, in $code
    code=0
    "$python" -m pytest "$@" || code=$?
    # 5: the arguments choose no test of this part. 2 and more: interrupted, or wrong arguments.
    if ((code > 1 && code != 5)); then exit "$code"; fi
}

part --kernel without -n logical --dist worksteal "$@"
first=$code
part --kernel only "$@"
if ((first == 5)); then exit "$code"; fi
if ((code == 5)); then exit "$first"; fi
exit $((first | code))
