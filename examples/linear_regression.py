"""The worked example of federated learning: 10 clients, 5 features, one true weight vector, and a convergence check."""

import tacit

data = tacit.load("linear")
model = tacit.linear(5)
clients = tacit.of_arrays(data.features, data.targets)
check = tacit.Convergence(tolerance=1e-6)
for done in tacit.run(tacit.fedsgd(model, lr=0.1), model, clients, rounds=500):
    reason = check.reason(done.change, [])
    if reason:
        print(f"stopped after round {done.number}: {reason}")
        break
print("learnt", [round(w, 4) for w in done.state.shared["weight"].tolist()])
print("true  ", [round(w, 4) for w in data.truth.tolist()])
