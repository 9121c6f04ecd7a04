"""FedAvg of a factorisation in Flower's simulation: its FedAvg strategy, its Ray backend with one worker.

The CPU time is that of all processes: server, Ray and worker. Starting them is not counted.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterable
from importlib.metadata import version
from typing import TYPE_CHECKING

import psutil
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch_client import train

if TYPE_CHECKING:
    from fedtaste.bench.programs.runner import Measurement, Task

Aggregate = tuple[ArrayRecord | None, MetricRecord | None]


def cpu_seconds_of_all() -> float:
    """CPU seconds of this process and of all processes that it started."""
    process = psutil.Process()
    return sum(sum(each.cpu_times()[:4]) for each in (process, *process.children(recursive=True)))


class MeasuredFedAvg(FedAvg):  # type: ignore[misc]
    """FedAvg that starts every round from the same parameters and measures it from the first message to the mean."""

    def __init__(self, start: ArrayRecord, people: int) -> None:
        super().__init__(
            fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=people, min_evaluate_nodes=0,
            min_available_nodes=people,
        )  # fmt: skip
        self.begin, self.before = start, 0.0
        self.seconds: list[float] = []
        self.mean: ArrayRecord | None = None

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self.before = cpu_seconds_of_all()
        return super().configure_train(server_round, self.begin, config, grid)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Aggregate:
        mean, metrics = super().aggregate_train(server_round, replies)
        self.mean = mean
        self.seconds.append(cpu_seconds_of_all() - self.before)
        return mean, metrics


@functools.cache
def task_in(path: str) -> Task:
    """The task, read once in each process."""
    task: Task = importlib.import_module("runner").Task(path)
    return task


def client_of(path: str) -> ClientApp:
    """Flower sends the app with every message, so it holds the path of the examples and not the examples."""
    app = ClientApp()

    @app.train()  # type: ignore[untyped-decorator]
    def train_person(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        task = task_in(path)
        inputs, targets = task.persons[int(context.node_config["partition-id"])]
        batch, lr = int(task.number("batch")), task.number("lr")
        (item,) = message.content["arrays"].to_numpy_ndarrays()
        examples = torch.from_numpy(inputs).long(), torch.from_numpy(targets)
        table = train(torch.from_numpy(item.copy()), torch.from_numpy(task["user"]), *examples, batch, lr)
        metrics = MetricRecord({"num-examples": len(targets)})
        content = RecordDict({"arrays": ArrayRecord([table.numpy()]), "metrics": metrics})
        return Message(content=content, reply_to=message)

    return app


def measure(task: Task) -> Measurement:
    people, server = len(task["starts"]) - 1, ServerApp()
    start = ArrayRecord([task["item"]])
    strategy = MeasuredFedAvg(start, people)

    @server.main()  # type: ignore[untyped-decorator]
    def main(grid: Grid, context: Context) -> None:
        strategy.start(grid, start, num_rounds=task.repeats + 1)

    resources = {"init_args": {"num_cpus": 1, "include_dashboard": False}, "client_resources": {"num_cpus": 1}}
    run_simulation(server, client_of(task.path), people, backend_config=resources)
    assert strategy.mean is not None
    seconds = {"round": min(strategy.seconds[1:])}
    return task.measurement(version("flwr"), seconds, tables={"round": strategy.mean.to_numpy_ndarrays()[0]})
