#!/bin/sh
# Start the SuperLink in the foreground. It listens on this machine only; nodes connect through the proxy.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=environment.sh
. "$here/environment.sh"
exec flower-superlink --host 127.0.0.1 --port "$link_port" --database "$state/superlink.db" \
    --ssl-ca-certfile "$here/ca.crt" --ssl-certfile "$here/server.crt" --ssl-keyfile "$here/server.key" \
    --enable-supernode-auth --disable-runtime-dependency-installation
