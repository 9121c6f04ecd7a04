"""The same digits, drawn in five ways: who should share what? One line for each way of drawing."""

import fedtaste

ROUNDS = 25

data = fedtaste.load("shifted-digits")
model = fedtaste.cnn(data.shape, data.classes, width=8)
clients = fedtaste.of_arrays(data.features, data.targets, batch=32, names=data.clients)
methods = {
    "local": fedtaste.local(model, lr=0.1, passes=1),
    "fedavg": fedtaste.fedavg(model, lr=0.1),
    "fedbn": fedtaste.fedbn(model, lr=0.1),
    "lgmix": fedtaste.lgmix(model, lr=0.1),
}
right: dict[str, list[float]] = {}
for name, method in methods.items():
    *_, done = fedtaste.run(method, model, clients, rounds=ROUNDS)
    said = fedtaste.personal_outputs(method, model, done.state, data)
    right[name] = [float((guess.argmax(1) == truth).mean()) for guess, truth in zip(said, data.test_targets)]
    right[name].append(sum(right[name]) / len(right[name]))

print(f"Test accuracy after {ROUNDS} rounds, {len(data.targets[0])} training digits each:")
print(f"{'':10}" + "".join(f"{name:>8}" for name in right))
for place, domain in enumerate((*data.clients, "mean")):
    row = {name: values[place] for name, values in right.items()}
    print(f"{domain:10}" + "".join(f"{value:8.1%}" for value in row.values()) + f"   best: {max(row, key=row.get)}")
loses = [domain for place, domain in enumerate(data.clients) if right["fedavg"][place] < right["local"][place]]
print(f"One model for all is worse than learning alone for: {', '.join(loses) or 'nobody'}.")
