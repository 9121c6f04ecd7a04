#!/bin/sh
# Start this node in the foreground. Its data and its store are set in node.toml.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=environment.sh
. "$here/environment.sh"
exec flower-supernode --superlink "$server" --root-certificates "$here/ca.crt" \
    --auth-supernode-private-key "$here/node.key" --node-config "$here/node.toml" --host 127.0.0.1 --port "$port"
