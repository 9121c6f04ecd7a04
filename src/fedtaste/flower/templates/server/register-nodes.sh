#!/bin/sh
# Register every node whose public key is in nodes/. It can be run again: registered nodes stay registered.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=environment.sh
. "$here/environment.sh"
sed -e "s|@HERE@|$here|" -e "s|@LINK@|$link_port|" "$here/flower-config.toml" >"$FLWR_HOME/config.toml"
failed=0
mkdir -p "$state/ids" # Flower's number of each node, for flwr.sh supernode unregister
for key in "$here"/nodes/*.pub; do
    name=$(basename "$key" .pub)
    reply=$(flwr supernode register "$key" fedtaste --name "$name" 2>&1) || true
    case $reply in
    *"registered successfully"*)
        printf '%s\n' "$reply" | sed -n 's/.*SuperNode \([0-9][0-9]*\) registered.*/\1/p' >"$state/ids/$name"
        echo "$name: registered as $(cat "$state/ids/$name")"
        ;;
    *"already in use"*) echo "$name: was registered before" ;;
    *)
        echo "$name: not registered. Flower says: $reply" >&2
        failed=1
        ;;
    esac
done
exit "$failed"
