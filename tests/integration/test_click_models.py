"""Embeddings with an MLP on real flights: under BSP, SSP and ASP as good as what others compute."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import resilient_ps as ps
from resilient_ps.data import SparseArrayDataset
from resilient_ps.data.flights import validation_flights
from resilient_ps.models import EmbeddingMLP
from resilient_ps.models.metrics import auc

RANKS = 4
BATCH_ROWS = 64
LEARNT, HELD_OUT = 40_000, 20_000
DIM, HIDDEN = 8, (32, 16)
RATE, EMBEDDING_RATE = 0.02, 0.05
BAND = 0.01

Data = tuple[SparseArrayDataset, SparseArrayDataset]


@pytest.fixture(scope="module")
def flights() -> Data:
    """The last rows of the training days, and the first of the days after them."""
    learnt, held_out = validation_flights()
    return some(learnt, slice(len(learnt) - LEARNT, None)), some(held_out, slice(0, HELD_OUT))


def some(rows: SparseArrayDataset, chosen: slice) -> SparseArrayDataset:
    keys = rows.keys.reshape(len(rows), -1)[chosen]
    offsets = np.arange(len(keys) + 1) * keys.shape[1]
    return SparseArrayDataset(rows.labels[chosen], offsets, keys.reshape(-1), shuffle_seed=3)


def as_codes(data: Data) -> tuple[Any, Any, int]:
    """Features as numbers 0 .. words, where 0 is for those that were not learnt."""
    known, learnt = np.unique(data[0].keys, return_inverse=True)
    at = np.minimum(np.searchsorted(known, data[1].keys), len(known) - 1)
    held_out = np.where(known[at] == data[1].keys, at + 1, 0)
    shape = (-1, len(data[0].keys) // len(data[0]))
    return (learnt + 1).reshape(shape), held_out.reshape(shape), len(known) + 1


def with_numpy(data: Data) -> float:
    """The same model in float64, written from the papers, with lists of everything."""
    learnt, held_out, words = as_codes(data)
    rng = np.random.default_rng(1)
    table, seen = rng.normal(0, 0.05, (words, DIM)), np.zeros((words, DIM))
    widths = (learnt.shape[1] * DIM, *HIDDEN, 1)
    layers = [rng.uniform(-1, 1, (i, o)) * np.sqrt(6 / i) * (o > 1) for i, o in pairwise(widths)]
    biases = [np.zeros(o) for o in widths[1:]]
    squares = [[np.zeros_like(w) for w in layers], [np.zeros_like(b) for b in biases]]

    def step(values: Any, square: Any, slope: Any, rate: float) -> None:
        square += slope**2
        values -= rate * slope / (np.sqrt(square) + 1e-10)

    def forward(codes: Any) -> list[Any]:
        signals = [table[codes].reshape(len(codes), -1)]
        for number, (w, b) in enumerate(zip(layers, biases, strict=True)):
            linear = signals[-1] @ w + b
            signals.append(linear if number == len(HIDDEN) else linear.clip(0))
        return signals

    order = rng.permutation(len(learnt))
    for at in range(0, len(order), RANKS * BATCH_ROWS):
        chosen = order[at : at + RANKS * BATCH_ROWS]
        signals = forward(learnt[chosen])
        chance = 1 / (1 + np.exp(-signals[-1]))
        back = (chance - data[0].labels[chosen, None]) / len(chosen)
        for number in reversed(range(len(layers))):
            slopes = signals[number].T @ back, back.sum(axis=0)
            back = back @ layers[number].T
            if number:
                back *= signals[number] > 0
            step(layers[number], squares[0][number], slopes[0], RATE)
            step(biases[number], squares[1][number], slopes[1], RATE)
        slope = np.zeros_like(table)
        np.add.at(slope, learnt[chosen].reshape(-1), back.reshape(-1, DIM))
        step(table, seen, slope, EMBEDDING_RATE)
    return auc(data[1].labels > 0, forward(held_out)[-1][:, 0]) or 0.0


def with_torch(data: Data) -> float:
    torch = pytest.importorskip("torch", reason="pip install torch")
    learnt, held_out, words = as_codes(data)
    torch.manual_seed(1)
    embeddings = torch.nn.Embedding(words, DIM)
    torch.nn.init.normal_(embeddings.weight, std=0.05)
    widths = (learnt.shape[1] * DIM, *HIDDEN)
    hidden = [
        part for i, o in pairwise(widths) for part in (torch.nn.Linear(i, o), torch.nn.ReLU())
    ]
    net = torch.nn.Sequential(*hidden, torch.nn.Linear(widths[-1], 1))
    optimisers = [
        torch.optim.Adagrad(embeddings.parameters(), lr=EMBEDDING_RATE),
        torch.optim.Adagrad(net.parameters(), lr=RATE),
    ]
    codes, labels = torch.from_numpy(learnt), torch.from_numpy(data[0].labels)
    for chosen in torch.randperm(len(codes)).split(RANKS * BATCH_ROWS):
        margins = net(embeddings(codes[chosen]).flatten(1))[:, 0]
        loss = torch.nn.functional.binary_cross_entropy_with_logits(margins, labels[chosen])
        for each in optimisers:
            each.zero_grad()
        loss.backward()
        for each in optimisers:
            each.step()
    with torch.no_grad():
        margins = net(embeddings(torch.from_numpy(held_out)).flatten(1))[:, 0]
    return auc(data[1].labels > 0, margins.double().numpy()) or 0.0


@pytest.fixture(scope="module")
def cluster() -> Any:
    with ps.local_cluster(servers=2, replicas=1) as found:
        yield found


@pytest.fixture(scope="module")
def references(flights: Data) -> Callable[[str], float]:
    """The AUC that another implementation reaches."""
    known = {"numpy": with_numpy, "torch": with_torch}
    return cache(lambda name: known[name](flights))


@pytest.mark.parametrize(
    ("mode", "reference"),
    [
        ("bsp", "numpy"),
        pytest.param("asp", "numpy", marks=pytest.mark.soak),
        pytest.param("ssp:2", "numpy", marks=pytest.mark.soak),
        pytest.param("bsp", "torch", marks=pytest.mark.soak),
    ],
)
def test_flights_are_told_as_well_as_by_another_implementation(
    cluster: Any, flights: Data, references: Callable[[str], float], mode: str, reference: str
) -> None:
    due = references(reference)
    learnt, held_out = flights
    name = f"{reference}-{mode.replace(':', '-')}"
    net = EmbeddingMLP(
        len(learnt.keys) // len(learnt),
        dim=DIM,
        hidden=HIDDEN,
        table=name,
        optimiser=ps.Adagrad(lr=RATE),
        embedding_optimiser=ps.Adagrad(lr=EMBEDDING_RATE),
    )

    def train(rank: int) -> None:
        with cluster.connect() as client, client.worker(name, rank, RANKS, mode) as worker:
            net.train(worker, learnt, batch_size=BATCH_ROWS)

    ranks = [threading.Thread(target=train, args=(rank,)) for rank in range(RANKS)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join()
    with cluster.connect() as client, client.worker(f"{name}-look", 0, 1, "asp") as reader:
        found = net.evaluate(net.open(reader), held_out)
    print(f"{mode}: AUC {found.auc:.4f}, {reference} {due:.4f}")
    assert found.auc == pytest.approx(due, rel=BAND)
    assert due > 0.7
