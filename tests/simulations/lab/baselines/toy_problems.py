"""Problems small enough for exact identities, and runs of them."""

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from simulations.lab.core import Lab, Score, Setting

ROWS, BATCH = 512, 8


def rows_of(peers, steps, seed):
    """The examples that these peers draw, shape (peers, BATCH)."""
    first = 7919 * seed + 977 * np.asarray(peers) + 131 * np.asarray(steps)
    return torch.from_numpy((first[:, None] + 37 * np.arange(BATCH)) % ROWS)


class Line:
    """Least squares."""

    name, embeddings, parameters = "line", (), 20
    shapes = ((20,),)

    def __init__(self):
        generator = torch.Generator().manual_seed(5)
        self.inputs = torch.randn(ROWS, 20, generator=generator)
        self.outputs = self.inputs @ torch.randn(20, generator=generator)

    def start(self, seed):
        return torch.zeros(20)

    def batches(self, peers, steps, seed):
        rows = rows_of(peers, steps, seed)
        return self.inputs[rows], self.outputs[rows]

    def loss(self, x, inputs, outputs):
        return (inputs @ x - outputs).square().mean() / 2

    def evaluate(self, x):
        return Score(float(self.loss(x, self.inputs, self.outputs)), float("nan"))


class Mlp:
    """Two layers on random inputs, labelled by another such model."""

    name, embeddings = "mlp", ()
    shapes = ((12, 24), (24,), (24, 4), (4,))
    sizes = (288, 24, 96, 4)
    parameters = 412

    def __init__(self):
        generator = torch.Generator().manual_seed(6)
        self.inputs = torch.randn(ROWS, 12, generator=generator)
        self.labels = self.outputs(torch.randn(self.parameters, generator=generator), self.inputs).argmax(1)

    def outputs(self, x, inputs):
        first, bias, second, other = (
            part.view(shape) for part, shape in zip(x.split(self.sizes), self.shapes, strict=True)
        )
        return torch.tanh(inputs @ first + bias) @ second + other

    def start(self, seed):
        return 0.2 * torch.randn(self.parameters, generator=torch.Generator().manual_seed(seed))

    def batches(self, peers, steps, seed):
        rows = rows_of(peers, steps, seed)
        return self.inputs[rows], self.labels[rows]

    def loss(self, x, inputs, labels):
        return cross_entropy(self.outputs(x, inputs), labels)

    def evaluate(self, x):
        outputs = self.outputs(x, self.inputs)
        return Score(
            float(cross_entropy(outputs, self.labels)), float((outputs.argmax(1) == self.labels).float().mean())
        )


LINE, MLP = Line(), Mlp()
SGD = Setting(peers=4, every=3, rounds=4, inner="sgd", lr=0.05)
ADAM = Setting(peers=8, every=4, rounds=6, lr=0.03)


def ran(method, setting, problem=LINE, apart=0.0):
    """The lab after the run. `apart` is the initial distance of the replicas."""
    lab = Lab(problem, setting)
    lab.x += apart * torch.from_numpy(np.random.default_rng(3).normal(size=lab.x.shape)).float()
    method.begin(lab)
    lab.start()
    for _ in range(setting.rounds):
        method.round(lab)
    return lab


def same(one, other, within=1e-6):
    return torch.allclose(one, other, rtol=0.0, atol=within)
