"""Federated linear regression: 10 clients, 5 features, one true weight vector, and a convergence check."""

import fedtaste
from fedtaste.engine.run import Convergence

data = fedtaste.load("linear")
model = fedtaste.linear(5)
clients = fedtaste.of_arrays(data.features, data.targets)
check = Convergence(tolerance=1e-6)
for result in fedtaste.run(fedtaste.fedsgd(model, lr=0.1), model, clients, rounds=500):
    reason = check.reason(result.change, [])
    if reason:
        print(f"stopped after round {result.number}: {reason}")
        break
print("learnt", [round(w, 4) for w in result.state.shared["weight"].tolist()])
print("true  ", [round(w, 4) for w in data.truth.tolist()])
