#!/bin/sh
# Installs stagescope, editable, into a virtual environment of its own: install.sh VENV PYTHON EXTRAS
#
# VENV/.stagescope-install lists the extras that are completely installed; it reads "unfinished" from before the
# first file is written until after the last one. An interrupted installation is therefore never mistaken for a
# finished one: the next call starts over, because there is no way to know which packages are complete. A VENV
# without that file was not created by this script and is left untouched.
set -eu

venv=$1 python=$2 extras=$3
state="$venv/.stagescope-install"
log="$venv/install.log"

fail() {
    echo "stagescope: $1" >&2
    exit 1
}

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null ||
    fail "'$python' is not Python 3.10 or newer: choose another, for example make PYTHON=python3.12"
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
    fail "'$python' cannot create virtual environments: install its venv package (Debian: apt-get install python3-venv)"

if [ -e "$venv" ] && [ ! -f "$state" ]; then
    fail "$venv was not made by this Makefile: remove it, or use another directory, for example make VENV=.venv-stagescope"
fi
if [ -f "$state" ] && [ "$(cat "$state")" = unfinished ]; then
    rm -rf "$venv"
fi

mkdir -p "$venv"
fresh=yes
[ -f "$state" ] && fresh=no
echo unfinished > "$state"
rm -f "$venv"/.*-ready # make's marker files: the environment is no longer complete
[ "$fresh" = no ] || "$python" -m venv "$venv" > "$log" 2>&1 || fail "cannot create $venv: $(tail -n 1 "$log")"

printf 'installing stagescope[%s] into %s (torch is large: minutes on a first run) ' "$extras" "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input --progress-bar off \
    --constraint constraints.txt --editable ".[$extras]" > "$log" 2>&1 < /dev/null &
pip=$!
# Background processes of a shell ignore SIGINT, so Ctrl-C has to be forwarded.
trap 'kill "$pip" 2>/dev/null; wait "$pip" 2>/dev/null || true; echo; fail "interrupted; the next make starts over"' INT TERM HUP
while kill -0 "$pip" 2>/dev/null; do
    printf '.'
    sleep 2
done
if ! wait "$pip"; then
    echo ' failed'
    tail -n 20 "$log" >&2
    fail "the installation failed; the full log is $log"
fi
echo ' done'
echo "$extras" > "$state"
