"""A method of your own: FedAvg whose clients send only the signs of their changes."""

import fedtaste


def fedsign(model: fedtaste.Model, *, lr: float = 10.0, step: float = 0.05) -> fedtaste.Method:
    fedavg = fedtaste.fedavg(model, lr=lr)

    def client(download, own, examples):
        upload, own = fedavg.client(download, own, examples)
        signs = {name: step * value.sign() for name, value in upload.total.items()}
        return fedtaste.Upload(signs, upload.weight * 0 + 1), own  # everybody has the weight 1

    return fedavg.replace(client=client)


data = fedtaste.load("synthetic")
model = fedtaste.factorization(len(data.items), k=16)
method = fedsign(model)
people = fedtaste.of_histories(data.histories(), len(data.items))
for round in fedtaste.run(method, model, people, rounds=5):
    print(f"round {round.number}: the shared parameters changed by {round.change:.3f} of their norm")
