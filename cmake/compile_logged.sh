#!/bin/sh
# compile_logged.sh LOG COMMAND...: runs a compiler and keeps what it says; shown where it fails.
log=$1
shift
"$@" >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
