"""Three hundred phones that tell walking from sitting: thirty are asked in a round, and every fifth of them is away.

Made data: five activities, eight numbers from the sensors, fifteen labelled moments on each phone. People move
alike, but not the same. What does a phone gain from the others, and what does it send for that?
"""

import numpy as np

import fedtaste

PHONES, MOMENTS, SENSORS, ACTIVITIES, ROUNDS = 300, 15, 8, 5, 80

rng = np.random.default_rng(0)
usual = 2 * rng.normal(size=(ACTIVITIES, SENSORS))


def moments(person: np.ndarray, n: int):
    x = rng.normal(size=(n, SENSORS))
    return x, (x @ person.T + 0.5 * rng.gumbel(size=(n, ACTIVITIES))).argmax(1)


people = [usual + 1.2 * rng.normal(size=usual.shape) for _ in range(PHONES)]
train, test = ([moments(person, n) for person in people] for n in (MOMENTS, 100))
data = fedtaste.Supervised("phones", "labels", *zip(*train), *zip(*test), classes=ACTIVITIES)
model = fedtaste.logistic(SENSORS, ACTIVITIES)
phones = fedtaste.of_arrays(data.features, data.targets)


def judge(name: str, method: fedtaste.Method, **how) -> float:
    sent = answers = 0
    for done in fedtaste.run(method, model, phones, **how):
        sent, answers = sent + done.up_bytes + done.down_bytes, answers + done.answered
    said = fedtaste.personal_outputs(method, model, done.state, data)
    right = float(np.mean([(guess.argmax(1) == truth).mean() for guess, truth in zip(said, data.test_targets)]))
    traffic = (
        f"{answers / PHONES:.0f} rounds and {sent / PHONES:,.0f} bytes a phone, both ways" if sent else "nothing sent"
    )
    print(f"{name:28} {right:.1%} of new moments right; {traffic}")
    return right


asked = {"rounds": ROUNDS, "cohort": 0.1, "dropout": 0.2}
alone = judge("alone", fedtaste.local(model, lr=0.3, passes=10), rounds=10)
found = {
    "fedavg": judge("fedavg, one model for all", fedtaste.fedavg(model, lr=0.3, passes=5), **asked),
    "pfedme": judge("pfedme, tied by lam=0.1", fedtaste.pfedme(model, lam=0.1, lr=0.3, passes=10), **asked),
    "fedclup": judge("fedclup, tied by lam=0.1", fedtaste.fedclup(model, lam=0.1), **asked),
    "fedclup auto": judge("fedclup, tied by lam=auto", fedtaste.fedclup(model, lam="auto"), **asked),
}
best = max(found, key=found.get)
more = found[best] - alone
better = "better" if more > 0 else "worse"
print(f"With these settings {best} does best: {100 * abs(more):.1f} points {better} than each phone alone.")
