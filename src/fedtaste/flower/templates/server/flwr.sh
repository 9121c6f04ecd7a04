#!/bin/sh
# Run Flower's own command for this SuperLink, as in: sh flwr.sh supernode list fedtaste
set -eu
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=environment.sh
. "$here/environment.sh"
sed -e "s|@HERE@|$here|" -e "s|@LINK@|$link_port|" "$here/flower-config.toml" >"$FLWR_HOME/config.toml"
exec flwr "$@"
