# shellcheck shell=sh disable=SC2034,SC2154
# Settings of this machine. The scripts beside this file read it after they have set `here`.
state=$here/state                      # everything that the scripts write
venv=${FEDTASTE_VENV:-/opt/fedtaste/venv}    # where fedtaste[flower] is installed; otherwise the PATH is used
@OWN@
case $here in
*[!A-Za-z0-9/._\ +-]*)
    echo "$here must consist of letters, digits, spaces, / . _ + and -. Move the folder." >&2
    exit 2
    ;;
esac
if [ -d "$venv/bin" ]; then PATH=$venv/bin:$PATH; fi
if ! command -v flower-superlink >/dev/null; then
    echo "Flower's programs are neither in $venv/bin nor on the PATH. Install fedtaste[flower], or set FEDTASTE_VENV." >&2
    exit 2
fi
umask 077
mkdir -p "$state/flower" "$state/numba"
NO_PROXY=${NO_PROXY:+$NO_PROXY,}127.0.0.1,localhost    # calls to this machine use no proxy
no_proxy=$NO_PROXY
export PATH NO_PROXY no_proxy
export FLWR_HOME="$state/flower"             # Flower's settings, and its copies of the app
export NUMBA_CACHE_DIR="$state/numba"        # kernels are compiled once, and not for every message
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 RAY_USAGE_STATS_ENABLED=0
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
export FLWR_SUPEREXEC_TASK_POLL_INTERVAL=0.25 PYTHONUNBUFFERED=1
