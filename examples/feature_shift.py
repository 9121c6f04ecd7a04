"""The same digits in five styles, one per client: test accuracy of four methods for every style."""

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
accuracy: dict[str, list[float]] = {}
for name, method in methods.items():
    *_, last = fedtaste.run(method, model, clients, rounds=ROUNDS)
    outputs = fedtaste.personal_outputs(method, model, last.state, data)
    accuracy[name] = [float((scores.argmax(1) == labels).mean()) for scores, labels in zip(outputs, data.test_targets)]
    accuracy[name].append(sum(accuracy[name]) / len(accuracy[name]))  # the mean over clients

print(f"Test accuracy after {ROUNDS} rounds, {len(data.targets[0])} training digits each:")
print(f"{'':10}" + "".join(f"{name:>8}" for name in accuracy))
for place, domain in enumerate((*data.clients, "mean")):
    row = {name: values[place] for name, values in accuracy.items()}
    print(f"{domain:10}" + "".join(f"{value:8.1%}" for value in row.values()) + f"   best: {max(row, key=row.get)}")
worse = [domain for place, domain in enumerate(data.clients) if accuracy["fedavg"][place] < accuracy["local"][place]]
print(f"One model for all is worse than a local model for: {', '.join(worse) or 'no client'}.")
