"""What an operator of a federation on real machines is given to run: scripts, units, a proxy's settings.

Scripts are POSIX sh, find everything beside themselves, and write into state/ there. What differs from machine to
machine is in environment.sh. Names in @...@ are filled in by deploy.py. Units and the proxy name /opt/tacit, which is
where docs/deploy.md puts things.
"""

from __future__ import annotations

HEAD = """#!/bin/sh
# {about}
set -eu
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=environment.sh
. "$here/environment.sh"
"""

ENVIRONMENT = """# shellcheck shell=sh disable=SC2034,SC2154
# Read by the scripts beside it, which have set `here`. What differs from machine to machine is set in this file.
state=$here/state                      # all that is written here
venv=${TACIT_VENV:-/opt/tacit/venv}    # where tacit[flower] is installed; else what the PATH has is used
@OWN@
case $here in
*[!A-Za-z0-9/._\\ +-]*)
    echo "$here was got; expected a path of letters, digits, spaces, . _ + and -. Move the folder." >&2
    exit 2
    ;;
esac
if [ -d "$venv/bin" ]; then PATH=$venv/bin:$PATH; fi
if ! command -v flower-superlink >/dev/null; then
    echo "Flower's programs are neither in $venv/bin nor on the PATH. Install tacit[flower], or set TACIT_VENV." >&2
    exit 2
fi
umask 077
mkdir -p "$state/flower" "$state/numba"
NO_PROXY=${NO_PROXY:+$NO_PROXY,}127.0.0.1,localhost    # calls to this machine pass no proxy
no_proxy=$NO_PROXY
export PATH NO_PROXY no_proxy
export FLWR_HOME="$state/flower"             # Flower's settings, and its copies of the app
export NUMBA_CACHE_DIR="$state/numba"        # compiled once, and not for every message
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 RAY_USAGE_STATS_ENABLED=0
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
export FLWR_SUPEREXEC_TASK_POLL_INTERVAL=0.25 PYTHONUNBUFFERED=1
"""

SERVER_OWN = """link_port=@LINK@                         # of the SuperLink, which listens on this machine only
"""

NODE_OWN = """server=@ADDRESS@    # where the nodes reach the server's proxy
port=@PORT@                              # between this node's own processes, on this machine only
"""

CONNECTION = """# Flower's settings on the server. The scripts write it into state/flower, with this folder for @HERE@.
[superlink]
default = "tacit"

[superlink.tacit]
address = "127.0.0.1:@LINK@"
root-certificates = "@HERE@/ca.crt"
"""

CONNECT = """sed -e "s|@HERE@|$here|" -e "s|@LINK@|$link_port|" "$here/flower-config.toml" >"$FLWR_HOME/config.toml"
"""

START_LINK = (
    HEAD.format(
        about="The SuperLink, in the foreground. It listens on this machine only; nodes come through the proxy."
    )
    + """exec flower-superlink --host 127.0.0.1 --port "$link_port" --database "$state/superlink.db" \\
    --ssl-ca-certfile "$here/ca.crt" --ssl-certfile "$here/server.crt" --ssl-keyfile "$here/server.key" \\
    --enable-supernode-auth --disable-runtime-dependency-installation
"""
)

FLWR = (
    HEAD.format(about="Flower's own command, for this SuperLink: sh flwr.sh supernode list tacit")
    + CONNECT
    + """exec flwr "$@"
"""
)

TACIT = (
    HEAD.format(about="tacit's own command, with this folder's settings: sh tacit.sh recommend state/run --likes TITLE")
    + """exec tacit "$@"
"""
)

REGISTER = (
    HEAD.format(about="Lets every node in whose public key is in nodes/. May be run again: who is known stays so.")
    + CONNECT
    + """failed=0
mkdir -p "$state/ids" # what Flower calls each node: for flwr.sh supernode unregister
for key in "$here"/nodes/*.pub; do
    name=$(basename "$key" .pub)
    told=$(flwr supernode register "$key" tacit --name "$name" 2>&1) || true
    case $told in
    *"registered successfully"*)
        printf '%s\\n' "$told" | sed -n 's/.*SuperNode \\([0-9][0-9]*\\) registered.*/\\1/p' >"$state/ids/$name"
        echo "$name: registered as $(cat "$state/ids/$name")"
        ;;
    *"already in use"*) echo "$name: was registered before" ;;
    *)
        echo "$name: not registered. Flower says: $told" >&2
        failed=1
        ;;
    esac
done
exit "$failed"
"""
)

RUN = (
    HEAD.format(about="Starts the run, or goes on with it, and shows what its server says until it has ended.")
    + CONNECT
    + """# Usage: sh run.sh [RUN-FOLDER]. Ctrl-C ends the showing and not the run; run.sh again shows it again.
mkdir -p "${1:-$state/run}"
folder=$(cd "${1:-$state/run}" && pwd)
case $folder in
*[!A-Za-z0-9/._\\ +-]*)
    echo "$folder was got; expected a path of letters, digits, spaces, . _ + and -." >&2
    exit 2
    ;;
esac
outcome=$folder/federation/outcome.json
log=$folder/federation/server.log

status() { # of run $1: pending, starting, running, finished:...; nothing where the SuperLink does not answer
    flwr list tacit --run-id "$1" --format json 2>/dev/null | sed -n 's/.*"status": *"\\([^"]*\\)".*/\\1/p' | head -n 1
}
submit() {
    rm -f "$outcome"
    printf 'folder = "%s"\\ncatalogue = "%s/catalogue.json"\\n' "$folder" "$here" >"$state/run.toml"
    told=$(flwr run "$here/app" tacit --run-config "$state/run.toml" --format json 2>&1) || true
    run=$(printf '%s\\n' "$told" | sed -n 's/.*"run-id": *"*\\([0-9][0-9]*\\).*/\\1/p' | head -n 1)
    if [ -n "$run" ]; then printf '%s %s\\n' "$run" "$folder" >"$state/run.last"; fi
}

run='' told='' tries=0 beat=0 shown=0
if [ -f "$log" ]; then shown=$(wc -l <"$log"); fi
if [ -f "$state/run.last" ]; then
    read -r last place <"$state/run.last"
    case $(status "$last") in
    pending | starting | running) if [ "$place" = "$folder" ]; then run=$last shown=0; fi ;;
    esac
fi
while :; do
    if [ -z "$run" ]; then
        if [ "$tries" -ge 6 ]; then
            echo "Given up after $tries times. Flower says: $told" >&2
            exit 1
        fi
        tries=$((tries + 1))
        submit
        if [ -n "$run" ]; then
            echo "Run $run of Flower, in $folder."
        elif [ "$tries" -eq 1 ]; then
            echo "The run could not be submitted. Is the SuperLink up? Flower says: $told" >&2
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
    if [ -f "$outcome" ]; then break; fi
    beat=$((beat + 1))
    if [ $((beat % 10)) -eq 0 ]; then
        now=$(status "$run")
        if [ -f "$outcome" ]; then continue; fi
        case $now in
        finished:completed) # its server had something to say and no run folder to say it in
            flwr log "$run" tacit --show 2>&1 | tail -n 20 >&2
            exit 1
            ;;
        finished:stopped)
            echo "Stopped. Run this again: it goes on from its last round." >&2
            exit 1
            ;;
        finished*)
            echo "The server ended before the run did; it goes on from its last round."
            run=''
            ;;
        esac
    fi
done
if grep -q '"done": true' "$outcome"; then
    echo "Done: $folder/result.json"
else
    echo "The run ended with an error, which is in $outcome. Mend it and run this again: it goes on." >&2
    exit 1
fi
"""
)

START_NODE = (
    HEAD.format(about="This node, in the foreground. What it holds and where it keeps its own is in node.toml.")
    + """exec flower-supernode --superlink "$server" --root-certificates "$here/ca.crt" \\
    --auth-supernode-private-key "$here/node.key" --node-config "$here/node.toml" --host 127.0.0.1 --port "$port"
"""
)

NODE = """# What this node holds, and where it keeps what is its own.
data = "/path/to/this/nodes/people.csv"    # user,item and, if there are such, rating,timestamp
store = "/var/lib/tacit/@NAME@"            # private parameters of its people: back it up, share it with nobody
name = "@NAME@"
#fewest = 10                               # to answer only for so many people at once, also about metrics
#least_noise = 0.5                         # to answer only with noise of its own of this standard deviation or more, as
#                                          # a multiple of the bound on one person's upload
"""

ONLY_SECURE = """secure = true                              # sums leave under masks only, whatever the server asks
"""

RENEW = """#!/bin/sh
# A new key and certificate for the server, of the authority beside this script, into renewed/.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
venv=${TACIT_VENV:-/opt/tacit/venv}
if [ -d "$venv/bin" ]; then PATH=$venv/bin:$PATH; fi
python3 - "$here" @NAMES@ <<'PYTHON'
import sys
from pathlib import Path
from tacit.flower.certificates import ends, issue_server
here = Path(sys.argv[1])
server = issue_server(here, here / "renewed", sys.argv[2:])
print(f"{server.certificate} ends on {ends(server.certificate):%Y-%m-%d}.")
PYTHON
"""

UNIT = """[Unit]
Description=@ABOUT@
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
User=tacit
UMask=0077
WorkingDirectory=/opt/tacit/@PLACE@
ExecStart=/bin/sh /opt/tacit/@PLACE@/@SCRIPT@
# For up to a minute after a crash the SuperLink believes that a node is still there, and refuses it: it tries on.
Restart=always
RestartSec=5
TimeoutStopSec=30
@OWN@
NoNewPrivileges=yes
PrivateTmp=yes
PrivateDevices=yes
ProtectSystem=strict
ProtectHome=yes
ProtectKernelTunables=yes
ProtectControlGroups=yes
ReadWritePaths=/opt/tacit/@PLACE@/state
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX

[Install]
WantedBy=multi-user.target
"""

NODE_UNIT_OWN = """StateDirectory=tacit/@NAME@
StateDirectoryMode=0700
# What the server sends runs here. Fill in the server's address and let this node speak to nobody else:
#IPAddressDeny=any
#IPAddressAllow=localhost 203.0.113.5"""

PROXY = """# nginx, in its http context (/etc/nginx/conf.d/tacit.conf). Nodes need ten calls, which are below. The
# SuperLink has others on the same port, for which it asks nobody who they are: to add a node, and to submit an app,
# which then runs on every node.
upstream tacit_superlink {
    server 127.0.0.1:@LINK@;
    keepalive 16;
}
server {
    listen @PORT@ ssl;
    listen [::]:@PORT@ ssl;
    server_name @HOST@;
    ssl_certificate /opt/tacit/server/server.crt;
    ssl_certificate_key /opt/tacit/server/server.key;
    ssl_protocols TLSv1.2 TLSv1.3;
    server_tokens off;
    client_max_body_size 512m;    # a node's sum is far smaller
    # Where the nodes' addresses are known, nobody else:
    #allow 203.0.113.7;
    #deny all;

    location ~ "^/v1/fleet/(@CALLS@)$" {
        limit_except POST { deny all; }
        proxy_pass https://tacit_superlink/v1/fleet/$1;
        proxy_http_version 1.1;
        proxy_set_header Connection "";
        proxy_ssl_verify on;
        proxy_ssl_name localhost;
        proxy_ssl_trusted_certificate /opt/tacit/server/ca.crt;
        proxy_ssl_protocols TLSv1.2 TLSv1.3;
        proxy_request_buffering off;
        proxy_read_timeout 120s;
    }
    location / {
        return 403;
    }
}
"""

CALLS = (  # of a node that was registered beforehand
    "activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "push-messages",
    "pull-object", "push-object", "confirm-message-received", "get-run", "get-fab",
)  # fmt: skip
