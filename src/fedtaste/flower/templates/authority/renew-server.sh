#!/bin/sh
# Issue a new key and certificate for the server, signed by the authority beside this script, into renewed/.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
venv=${FEDTASTE_VENV:-/opt/fedtaste/venv}
if [ -d "$venv/bin" ]; then PATH=$venv/bin:$PATH; fi
python3 - "$here" @NAMES@ <<'PYTHON'
import sys
from pathlib import Path
from fedtaste.flower.certificates import expiry, issue_server
here = Path(sys.argv[1])
server = issue_server(here, here / "renewed", sys.argv[2:])
print(f"{server.certificate} ends on {expiry(server.certificate):%Y-%m-%d}.")
PYTHON
