"""Three hundred phones recognise activities; a cohort of about thirty trains in each round, and a fifth drops out.

The data are generated: five activities, eight sensor values, fifteen labelled examples on each phone. People move in
similar but not equal ways. The example prints the accuracy and the traffic of local, shared and personalised models.
"""

import numpy as np

import fedtaste

PHONES, EXAMPLES, SENSORS, ACTIVITIES, ROUNDS = 300, 15, 8, 5, 80

rng = np.random.default_rng(0)
common = 2 * rng.normal(size=(ACTIVITIES, SENSORS))


def examples(person: np.ndarray, n: int):
    """Sensor values and activities of a person; `person` are the weights that decide the activity."""
    x = rng.normal(size=(n, SENSORS))
    return x, (x @ person.T + 0.5 * rng.gumbel(size=(n, ACTIVITIES))).argmax(1)


people = [common + 1.2 * rng.normal(size=common.shape) for _ in range(PHONES)]
train, test = ([examples(person, n) for person in people] for n in (EXAMPLES, 100))
data = fedtaste.Supervised("phones", "labels", *zip(*train), *zip(*test), classes=ACTIVITIES)
model = fedtaste.logistic(SENSORS, ACTIVITIES)
phones = fedtaste.of_arrays(data.features, data.targets)


def accuracy(name: str, method: fedtaste.Method, **options) -> float:
    """Train, print the mean test accuracy of the phones and their traffic, and return the accuracy."""
    traffic = answers = 0
    for round in fedtaste.run(method, model, phones, **options):
        traffic, answers = traffic + round.up_bytes + round.down_bytes, answers + round.answered
    outputs = fedtaste.personal_outputs(method, model, round.state, data)
    mean = float(np.mean([(scores.argmax(1) == labels).mean() for scores, labels in zip(outputs, data.test_targets)]))
    cost = f"{answers / PHONES:.0f} rounds and {traffic / PHONES:,.0f} bytes per phone, up and down"
    print(f"{name:28} accuracy {mean:.1%}; {cost if traffic else 'nothing sent'}")
    return mean


options = {"rounds": ROUNDS, "cohort": 0.1, "dropout": 0.2}
local = accuracy("local models", fedtaste.local(model, lr=0.3, passes=10), rounds=10)
results = {
    "fedavg": accuracy("fedavg, one model for all", fedtaste.fedavg(model, lr=0.3, passes=5), **options),
    "pfedme": accuracy("pfedme, lam=0.1", fedtaste.pfedme(model, lam=0.1, lr=0.3, passes=10), **options),
    "fedclup": accuracy("fedclup, lam=0.1", fedtaste.fedclup(model, lam=0.1), **options),
    "fedclup auto": accuracy("fedclup, lam=auto", fedtaste.fedclup(model, lam="auto"), **options),
}
best = max(results, key=results.get)
gain = results[best] - local
print(f"{best} is best: {100 * abs(gain):.1f} points {'better' if gain > 0 else 'worse'} than local models.")
