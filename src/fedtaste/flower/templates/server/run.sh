#!/bin/sh
# Start the run, or continue it, and show the server's messages until the run has ended.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=environment.sh
. "$here/environment.sh"
sed -e "s|@HERE@|$here|" -e "s|@LINK@|$link_port|" "$here/flower-config.toml" >"$FLWR_HOME/config.toml"
# Usage: sh run.sh [RUN-FOLDER]. Ctrl-C ends this script and not the run; start run.sh again to see it again.
mkdir -p "${1:-$state/run}"
folder=$(cd "${1:-$state/run}" && pwd)
case $folder in
*[!A-Za-z0-9/._\ +-]*)
    echo "$folder must consist of letters, digits, spaces, / . _ + and -." >&2
    exit 2
    ;;
esac
status=$folder/federation/status.json
log=$folder/federation/server.log

ended() { # whether the server app has written how the run ended
    grep -q '"state": *"[^r]' "$status" 2>/dev/null # anything but "running"
}
flower_status() { # of run $1: pending, starting, running, finished:...; empty if the SuperLink does not answer
    flwr list fedtaste --run-id "$1" --format json 2>/dev/null | sed -n 's/.*"status": *"\([^"]*\)".*/\1/p' | head -n 1
}
submit() {
    rm -f "$status"
    printf 'folder = "%s"\ncatalogue = "%s/catalogue.json"\n' "$folder" "$here" >"$state/run.toml"
    reply=$(flwr run "$here/app" fedtaste --run-config "$state/run.toml" --format json 2>&1) || true
    run=$(printf '%s\n' "$reply" | sed -n 's/.*"run-id": *"*\([0-9][0-9]*\).*/\1/p' | head -n 1)
    if [ -n "$run" ]; then printf '%s %s\n' "$run" "$folder" >"$state/run.last"; fi
}

run='' reply='' tries=0 beat=0 shown=0
if [ -f "$log" ]; then shown=$(wc -l <"$log"); fi
if [ -f "$state/run.last" ]; then
    read -r last place <"$state/run.last"
    case $(flower_status "$last") in
    pending | starting | running) if [ "$place" = "$folder" ]; then run=$last shown=0; fi ;;
    esac
fi
while :; do
    if [ -z "$run" ]; then
        if [ "$tries" -ge 6 ]; then
            echo "Given up after $tries attempts. Flower says: $reply" >&2
            exit 1
        fi
        tries=$((tries + 1))
        submit
        if [ -n "$run" ]; then
            echo "Run $run of Flower, in $folder."
        elif [ "$tries" -eq 1 ]; then
            echo "The run could not be submitted. Is the SuperLink up? Flower says: $reply" >&2
            exit 1
        else
            sleep 10
            continue
        fi
    fi
    sleep 2
    if [ -f "$log" ]; then
        tail -n "+$((shown + 1))" "$log"
        shown=$(wc -l <"$log")
    fi
    if ended; then break; fi
    beat=$((beat + 1))
    if [ $((beat % 10)) -eq 0 ]; then
        now=$(flower_status "$run")
        if ended; then continue; fi
        case $now in
        finished:completed) # the server had an error before it had a run folder to write it into
            flwr log "$run" fedtaste --show 2>&1 | tail -n 20 >&2
            exit 1
            ;;
        finished:stopped)
            echo "Stopped. Start run.sh again: the run continues from its last round." >&2
            exit 1
            ;;
        finished*)
            echo "The server ended before the run did; it continues from its last round."
            run=''
            ;;
        esac
    fi
done
if grep -q '"state": *"done"' "$status"; then
    echo "Done: $folder/result.json"
else
    echo "The run ended with an error, which is in $status. Repair it and start run.sh again: the run continues." >&2
    exit 1
fi
