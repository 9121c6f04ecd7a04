"""A method of your own beside FedAvg: clients send only the signs of their changes, one bit per number.

`fedtaste.evaluate` trains and tests any method under the same clean protocol. On the command line the same function is
    fedtaste compare --methods own_method:fedsign,fedavg --data synthetic
in the folder of this file.
"""

import fedtaste


def fedsign(model: fedtaste.Model, *, lr: float = 10.0, step: float = 0.05) -> fedtaste.Method:
    """FedAvg whose clients send `step` times the signs of their changes."""
    fedavg = fedtaste.fedavg(model, lr=lr)

    def client(download, own, examples):
        upload, own = fedavg.client(download, own, examples)
        signs = {name: step * value.sign() for name, value in upload.total.items()}
        return fedtaste.Upload(signs, upload.weight * 0 + 1), own  # everybody has the weight 1

    return fedavg.replace(client=client)


if __name__ == "__main__":
    data = fedtaste.load("synthetic:200x100x4000")
    for method in (fedsign, fedtaste.fedavg, fedtaste.popularity):
        result = fedtaste.evaluate(method, data, rounds=10, seed=0)
        low, high = result.interval("seen.sampled.hr@10")
        hit_rate = result.metric("seen.sampled.hr@10")
        print(f"{result.method:22} HR@10 {hit_rate:.3f} [{low:.3f}, {high:.3f}] after {result.rounds} rounds")
