"""The best degree of personalisation for similar and for different clients.

FedCLUP pulls each client's model towards the shared one with strength `lam`: 0 gives local models, a large value one
model for all. The best value depends on how much clients differ (R) and on the error of a fit to 40 noisy examples.
"""

import numpy as np

import fedtaste

VALUES = [0.0, 0.1, 0.5, 2.0, 10.0, 100.0]


def error(data: fedtaste.Supervised, lam: float | str) -> tuple[float, float]:
    """Test RMSE of the clients' own models, and the lam that was used."""
    model = fedtaste.linear(data.width)
    method = fedtaste.fedclup(model, lam=lam, passes=20)
    *_, last = fedtaste.run(method, model, fedtaste.of_arrays(data.features, data.targets), rounds=12)
    outputs = fedtaste.personal_outputs(method, model, last.state, data)
    errors = np.concatenate([prediction - target for prediction, target in zip(outputs, data.test_targets)])
    return float(np.sqrt((errors**2).mean())), float(last.state.shared.get("lam", lam))


for spread in (0.1, 2.0):
    data = fedtaste.load(f"least-squares:R={spread}")
    measured = fedtaste.heterogeneity(data)
    size = "large" if measured.noise > measured.R else "small"
    print(f"\nClients differ by R = {spread} (measured {measured.R:.2f}); a local fit is off by {measured.noise:.2f}.")
    print(f"So a {size} lam should be best.")
    results = {lam: error(data, lam)[0] for lam in VALUES}
    best = min(results, key=results.get)
    for lam, rmse in results.items():
        print(f"  lam {lam:<6g} test RMSE {rmse:.3f}{'  <- best' if lam == best else ''}")
    rmse, lam = error(data, "auto")
    print(f"  lam auto   test RMSE {rmse:.3f}: it chose {lam:.2g}; the noise in the targets is 1.000")
