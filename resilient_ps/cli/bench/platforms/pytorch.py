"""PyTorch: distributed data parallel over gloo, one process per worker, one thread each."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from resilient_ps.cli.bench.platforms.order import Order, Said
from resilient_ps.cli.bench.platforms.problems import Problem, Weights

ASK_EVERY = 20  # steps: whether all are to stop


def main(order: Order) -> None:
    """Train until the time is over."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    place = f"file://{order.folder}/{order.run}-rendezvous"
    dist.init_process_group("gloo", init_method=place, rank=order.rank, world_size=order.workers)
    problem = order.problem
    model = _model(torch, problem, problem.initial(order.seed))
    parallel = DistributedDataParallel(model)
    optimiser = torch.optim.SGD(parallel.parameters(), lr=problem.lr)
    two = problem.classes == 2
    loss_of = torch.nn.BCEWithLogitsLoss() if two else torch.nn.CrossEntropyLoss()
    x, y = _rows(torch, order)
    size = order.batch_size
    starts = range(0, len(x) - size + 1, size)
    stop = torch.zeros(1)
    samples = steps = 0
    dist.barrier()
    begun_s = time.monotonic()
    while True:
        at = starts[steps % len(starts)]
        optimiser.zero_grad(set_to_none=True)
        scores = parallel(x[at : at + size])
        loss = loss_of(scores[:, 0] if two else scores, y[at : at + size])
        loss.backward()
        optimiser.step()
        steps, samples = steps + 1, samples + size
        if steps % ASK_EVERY == 0:
            stop[0] = time.monotonic() - begun_s > order.seconds
            dist.all_reduce(stop)
            if stop[0] > 0:
                break
    seconds = time.monotonic() - begun_s
    if order.rank == 0:
        order.save(_weights(model))
    dist.barrier()
    dist.destroy_process_group()
    Said(samples, seconds, torch.__version__).say()


def _rows(torch: Any, order: Order) -> tuple[Any, Any]:
    """The rank's own part, without copying it for each batch."""
    dataset = order.problem.load(Path(order.folder))
    share = len(dataset) // order.workers
    part = slice(order.rank * share, (order.rank + 1) * share)
    labels = dataset.labels[part]
    y = labels if order.problem.classes == 2 else labels.astype(np.int64)
    return torch.from_numpy(np.array(dataset.features[part])), torch.from_numpy(np.array(y))


def _model(torch: Any, problem: Problem, weights: Weights) -> Any:
    layers: list[Any] = []
    for layer in weights:
        linear = torch.nn.Linear(layer.shape[0] - 1, layer.shape[1])
        with torch.no_grad():
            linear.weight.copy_(torch.from_numpy(layer[:-1].T.copy()))
            linear.bias.copy_(torch.from_numpy(layer[-1].copy()))
        layers += [linear, torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def _weights(model: Any) -> Weights:
    return [
        np.vstack([part.weight.detach().numpy().T, part.bias.detach().numpy()])
        for part in model
        if hasattr(part, "weight")
    ]


if __name__ == "__main__":
    main(Order.from_argument())
