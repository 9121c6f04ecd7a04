"""Check that Optuna, which `fedtaste tune` needs, is installed: it comes with the extra `tune`."""

from __future__ import annotations

import importlib.util

from fedtaste.errors import SettingError


def require_optuna() -> None:
    """Raise SettingError, with the extra to install, if Optuna is missing."""
    if importlib.util.find_spec("optuna") is None:
        raise SettingError("Tuning needs Optuna. Install it: pip install 'fedtaste[tune]'.")
