"""One experiment from settings to a typed result: plan, privacy, training phases, run folder, comparisons."""
