"""How personal should models be?

FedCLUP ties each client's model to the shared one by a spring `lam`: 0 is alone, large is one model for all. Which is
best depends on how far clients differ, R, against what 40 noisy examples can tell.
"""

import numpy as np

import fedtaste

TRIED = [0.0, 0.1, 0.5, 2.0, 10.0, 100.0]


def error(data: fedtaste.Supervised, lam: float | str) -> tuple[float, float]:
    """Test RMSE of clients' own models, and the lam in force."""
    model = fedtaste.linear(data.width)
    method = fedtaste.fedclup(model, lam=lam, passes=20)
    *_, done = fedtaste.run(method, model, fedtaste.of_arrays(data.features, data.targets), rounds=12)
    said = fedtaste.personal_outputs(method, model, done.state, data)
    wrong = np.concatenate([guess - truth for guess, truth in zip(said, data.test_targets)])
    return float(np.sqrt((wrong**2).mean())), float(done.state.shared.get("lam", lam))


for spread in (0.1, 2.0):
    data = fedtaste.load(f"least-squares:R={spread}")
    measured = fedtaste.heterogeneity(data)
    pays = "sharing should pay" if measured.noise > measured.R else "models of one's own should pay"
    distance = f"R = {spread} (measured {measured.R:.2f})"
    print(f"\nClients differ by {distance}, an own fit errs by {measured.noise:.2f}: {pays}.")
    found = {lam: error(data, lam)[0] for lam in TRIED}
    best = min(found, key=found.get)
    for lam, rmse in found.items():
        print(f"  lam {lam:<6g} test RMSE {rmse:.3f}{'  <- best' if lam == best else ''}")
    rmse, lam = error(data, "auto")
    print(f"  lam auto   test RMSE {rmse:.3f}: it took {lam:.2g}; noise that nobody can predict is 1.000")
