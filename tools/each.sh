#!/bin/sh
# Runs Python scripts one after the other: each.sh PYTHON NOUN SCRIPT...
#
# A failing script does not stop the others; the exit status is 0 only if all succeeded.
set -u

python=$1 noun=$2
shift 2
count=0 failed=''
for script in "$@"; do
    [ -f "$script" ] || continue # the pattern matched no file
    count=$((count + 1))
    echo "== $script"
    "$python" "$script" || failed="$failed $script"
done
case $count in
    0) echo "There is no $noun to run yet." ;;
    1) echo "Ran 1 $noun." ;;
    *) echo "Ran $count ${noun}s." ;;
esac
[ -z "$failed" ] || {
    echo "stagescope: failed:$failed" >&2
    exit 1
}
