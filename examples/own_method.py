"""A method of one's own: FedAvg that sends only the sign of what changed. The engine does the rest."""

import fedtaste


def signed(model: fedtaste.Model, *, lr: float = 10.0, step: float = 0.05) -> fedtaste.Method:
    fedavg = fedtaste.fedavg(model, lr=lr)

    def client(down, own, held):
        upload, own = fedavg.client(down, own, held)
        return fedtaste.Upload(
            {name: step * value.sign() for name, value in upload.total.items()}, upload.weight * 0 + 1
        ), own

    return fedavg.replace(client=client)


data = fedtaste.load("synthetic")
model = fedtaste.factorization(len(data.items), k=16)
method = signed(model)
people = fedtaste.of_histories(data.histories(), len(data.items))
for done in fedtaste.run(method, model, people, rounds=5):
    print(f"round {done.number}: the shared parameters moved by {done.change:.3f} of their size")
