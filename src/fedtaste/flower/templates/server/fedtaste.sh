#!/bin/sh
# Run fedtaste with this folder's settings, as in: sh fedtaste.sh recommend state/run --likes TITLE
set -eu
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=environment.sh
. "$here/environment.sh"
exec fedtaste "$@"
