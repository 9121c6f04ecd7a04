"""A torch module of one's own, and a head for each client: ten clients who see three digits each."""

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
    "FedPer, a head of one's own": fedtaste.fedper(model, lr=0.1, private=("head.*",)),
    "FedRep, the same in turns": fedtaste.fedrep(model, lr=0.1, private_lr=0.1, private=("head.*",)),
}.items():
    *_, done = fedtaste.run(method, model, clients, rounds=15)
    said = fedtaste.personal_outputs(method, model, done.state, data)
    right = np.concatenate([guess.argmax(1) == truth for guess, truth in zip(said, data.test_targets)]).mean()
    print(f"{name:28} {right:6.1%} of the test digits right, {done.up_bytes // done.answered:,} bytes up a round")
