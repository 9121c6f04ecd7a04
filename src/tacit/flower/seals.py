"""Which secure sums a node has taken part in.

Two sums of one round over different nodes give their difference away, and that may be one node's numbers: so a round
whose sum may have been opened is not answered again. A server that died with such a round goes on without it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import ProtocolError, SettingError
from ..wholefile import write_atomically

ANSWERED = "was answered before in a secure sum"  # what a server may read in a refusal
ANSWERED_OTHERWISE = "was answered before, to another order"


class Seals:
    def __init__(self, store: str) -> None:
        if not store:
            raise SettingError("This node has no store. Start it with --node-config 'store=\"/a/folder\" ...'.")
        self.path = Path(store) / "seals.json"

    def _read(self) -> dict[str, Any]:
        try:
            found = json.loads(self.path.read_text("utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise SettingError(
                f"{self.path} cannot be read ({error}). Restore this node's store from a copy."
            ) from error
        return found if isinstance(found, dict) else {}

    def close(self, run: int, phase: str, round: int) -> None:
        """This round's numbers are about to leave under masks; not if they have before."""
        found = self._read()
        key = f"{run:016x} {phase}"
        if round <= found.get("opened", {}).get(key, -1):
            raise ProtocolError(f"Round {round + 1} of {phase} {ANSWERED}; answering again could give this node away.")
        self._write(found | {"closed": [key, round]})

    def open(self) -> None:
        """The masks of what was answered last are about to come off."""
        found = self._read()
        if "closed" in found:
            key, round = found["closed"]
            opened = found.get("opened", {})
            self._write({"closed": [key, round], "opened": opened | {key: max(round, opened.get(key, -1))}})

    def _write(self, words: dict[str, Any]) -> None:
        write_atomically(self.path, json.dumps(words).encode())
        self.path.chmod(0o600)
