"""Five hospitals, five scanners, one disease; the smallest has 30 patients. Is it better off with the others?

Made data: ten measures of a scan, a quarter to a half of the patients ill. Every scanner has its own scale and zero for
every measure, and hospitals see the disease at their own rate. The question is asked of the smallest hospital.
"""

import numpy as np
from torch import nn

import fedtaste

PATIENTS = {"north": 400, "south": 300, "east": 250, "west": 200, "island": 30}
MEASURES, TESTED, ROUNDS = 10, 1000, 30


def scans(rng: np.random.Generator, ill_share: float, scale: np.ndarray, zero: np.ndarray, n: int):
    """What a scanner writes down: the disease bends some measures together, so that no single one tells."""
    ill = rng.random(n) < ill_share
    x = rng.normal(size=(n, MEASURES)) + 0.8 * ill[:, None] * PATTERN
    x[:, 0] *= np.where(ill, 1.0, -1.0) * np.sign(x[:, 1])  # two measures agree in the ill, and disagree in the others
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
right: dict[str, list[float]] = {}
for name, method in {
    "alone": fedtaste.local(model, lr=0.2, passes=1),
    "fedavg": fedtaste.fedavg(model, lr=0.2),
    "fedbn": fedtaste.fedbn(
        model, lr=0.2
    ),  # how a scanner is read stays in the hospital; what illness looks like is shared
}.items():
    *_, done = fedtaste.run(method, model, hospitals, rounds=ROUNDS)
    said = fedtaste.personal_outputs(method, model, done.state, data)
    right[name] = [float((guess.argmax(1) == truth).mean()) for guess, truth in zip(said, data.test_targets)]

print(f"Of {TESTED:,} new patients of each hospital, told right after {ROUNDS} rounds:")
print(f"{'':8}{'patients':>9}{'healthy':>9}" + "".join(f"{name:>9}" for name in right))
for place, (hospital, n) in enumerate(PATIENTS.items()):
    healthy = 1 - data.test_targets[place].mean()  # what "everybody is healthy" would reach
    print(f"{hospital:8}{n:9}{healthy:9.1%}" + "".join(f"{values[place]:9.1%}" for values in right.values()))
gain = right["fedbn"][-1] - right["alone"][-1]
print(f"With FedBN the island is {100 * abs(gain):.1f} points {'better' if gain > 0 else 'worse'} than alone.")
sent = done.up_bytes // done.answered
print(f"With FedBN a hospital sends {sent:,} bytes a round, {ROUNDS * sent:,} in all:")
print(f"changes of {', '.join(done.state.shared)}; no patient's record, and nothing about its scanner.")
