#!/bin/sh
# Runs each of some Python scripts and says what it did: each.sh PYTHON NOUN SCRIPT...
#
# All of them run even where one fails; the exit status tells whether every one succeeded.
set -u

python=$1 noun=$2
shift 2
count=0 failed=''
for script in "$@"; do
    [ -f "$script" ] || continue # a pattern that matched nothing
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
