"""Five hospitals with different scanners diagnose one disease: what does the smallest, with 30 patients, gain?

The data are generated: ten measures of a scan; a quarter to a half of the patients are ill. Every scanner has its own
scale and zero for every measure, and every hospital its own share of ill patients.
"""

import numpy as np
from torch import nn

import fedtaste

PATIENTS = {"north": 400, "south": 300, "east": 250, "west": 200, "island": 30}
MEASURES, TESTED, ROUNDS = 10, 1000, 30


def scans(rng: np.random.Generator, ill_share: float, scale: np.ndarray, zero: np.ndarray, n: int):
    """Measures of n patients, and who is ill. The disease changes several measures, so that no single one is enough."""
    ill = rng.random(n) < ill_share
    x = rng.normal(size=(n, MEASURES)) + 0.8 * ill[:, None] * PATTERN
    x[:, 0] *= np.where(ill, 1.0, -1.0) * np.sign(x[:, 1])  # the signs of two measures agree in ill patients only
    return scale * x + zero, ill


rng = np.random.default_rng(0)
PATTERN = np.where(np.arange(MEASURES) % 3 == 2, 1.0, 0.0)
scanners = [(rng.uniform(0.25, 0.5), rng.lognormal(0, 0.7, MEASURES), rng.normal(0, 2, MEASURES)) for _ in PATIENTS]
train = [scans(rng, *scanner, n) for scanner, n in zip(scanners, PATIENTS.values())]
test = [scans(rng, *scanner, TESTED) for scanner in scanners]
data = fedtaste.Supervised("hospitals", "labels", *zip(*train), *zip(*test), clients=tuple(PATIENTS), classes=2)

model = fedtaste.wrap(
    lambda: nn.Sequential(nn.BatchNorm1d(MEASURES), nn.Linear(MEASURES, 16), nn.ReLU(), nn.Linear(16, 2))
)
hospitals = fedtaste.of_arrays(data.features, data.targets, batch=20, names=data.clients)
accuracy: dict[str, list[float]] = {}
for name, method in {
    "local": fedtaste.local(model, lr=0.2, passes=1),
    "fedavg": fedtaste.fedavg(model, lr=0.2),
    "fedbn": fedtaste.fedbn(model, lr=0.2),  # batch norm, which adapts to the scanner, stays in the hospital
}.items():
    *_, last = fedtaste.run(method, model, hospitals, rounds=ROUNDS)
    outputs = fedtaste.personal_outputs(method, model, last.state, data)
    accuracy[name] = [float((scores.argmax(1) == labels).mean()) for scores, labels in zip(outputs, data.test_targets)]

print(f"Accuracy for {TESTED:,} new patients of each hospital after {ROUNDS} rounds:")
print(f"{'':8}{'patients':>9}{'healthy':>9}" + "".join(f"{name:>9}" for name in accuracy))
for place, (hospital, n) in enumerate(PATIENTS.items()):
    healthy = 1 - data.test_targets[place].mean()  # the accuracy of "everybody is healthy"
    print(f"{hospital:8}{n:9}{healthy:9.1%}" + "".join(f"{values[place]:9.1%}" for values in accuracy.values()))
gain = accuracy["fedbn"][-1] - accuracy["local"][-1]
print(f"FedBN is {100 * abs(gain):.1f} points {'better' if gain > 0 else 'worse'} than a local model for the island.")
sent = last.up_bytes // last.answered
print(f"With FedBN a hospital sends {sent:,} bytes per round, {ROUNDS * sent:,} in total:")
print(f"changes of {', '.join(last.state.shared)}; no patient's record, and no parameter of its scanner.")
