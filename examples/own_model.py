"""A torch module of your own with a private head for each of ten clients, who have three digits each."""

import numpy as np
from torch import nn

import fedtaste


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(64, 32), nn.Linear(32, 10)

    def forward(self, images):
        return self.head(self.body(images.flatten(1)).relu())


data = fedtaste.load("digits:clients=10,skew=3")
model = fedtaste.wrap(Network)
clients = fedtaste.of_arrays(data.features, data.targets, batch=20)
for name, method in {
    "FedAvg, one model for all": fedtaste.fedavg(model, lr=0.1),
    "FedPer, private head": fedtaste.fedper(model, lr=0.1, private=("head.*",)),
    "FedRep, head and body in turn": fedtaste.fedrep(model, lr=0.1, private_lr=0.1, private=("head.*",)),
}.items():
    *_, last = fedtaste.run(method, model, clients, rounds=15)
    outputs = fedtaste.personal_outputs(method, model, last.state, data)
    accuracy = np.concatenate([scores.argmax(1) == labels for scores, labels in zip(outputs, data.test_targets)]).mean()
    print(f"{name:30} test accuracy {accuracy:6.1%}, {last.up_bytes // last.answered:,} bytes up per round")
