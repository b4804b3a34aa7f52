"""The model that all scripts train: small, with everything that some script uses in an unusual way."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, CLASSES, FEATURES, LENGTH, QUEUE = 32, 10, 16, 8, 64


class Backbone(nn.Module):
    """Features of a batch, with masked attention of each row to the rows before it."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(WIDTH, 64)
        self.norm = nn.BatchNorm1d(64, momentum=None)
        self.leave = nn.Linear(64, FEATURES)
        later = torch.ones(LENGTH, LENGTH).triu(1).bool()
        self.register_buffer("mask", torch.zeros(LENGTH, LENGTH).masked_fill(later, -1e9))
        self.register_buffer("lowest", torch.zeros(LENGTH, LENGTH).masked_fill(later, -torch.inf))
        self.register_buffer("positions", torch.arange(float(LENGTH)) / LENGTH)
        self.register_buffer("started", torch.zeros((), dtype=torch.uint8))

    def forward(self, x: Tensor) -> Tensor:
        if not self.started:
            self.started.fill_(1)
        hidden = F.relu(self.norm(self.enter(x)))
        mixed = torch.softmax(self.mask + self.lowest + self.positions, -1) @ hidden.view(-1, LENGTH, 64)
        return self.leave(hidden + 0.1 * mixed.reshape(-1, 64))


class Head(nn.Module):
    """A loss with weights of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.centers = nn.Parameter(torch.randn(CLASSES, FEATURES))

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(8 * F.normalize(features) @ F.normalize(self.centers).T, labels)


class Memory(nn.Module):
    """A queue of earlier features: columns of unit length."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("queue", F.normalize(torch.randn(FEATURES, QUEUE), dim=0))
        self.register_buffer("at", torch.zeros(1, dtype=torch.int64))


class Model(nn.Module):
    """Backbone and loss, a queue, and a frozen teacher that follows the backbone's last layer.

    Everything is in one of the four children, in alphabetical order: attached as four modules, the schema is the same.
    """

    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.head, self.memory = Backbone(), Head(), Memory()
        self.teacher = nn.Linear(64, FEATURES).requires_grad_(False)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        loss: Tensor = self.head(self.backbone(x), labels)
        return loss


def made(host: int) -> Model:
    """A new model. All parameters differ by host, except the frozen ones, which must be equal."""
    torch.manual_seed(host)
    model = Model()
    with torch.no_grad():
        for parameter in model.teacher.parameters():
            parameter.copy_(torch.linspace(-0.1, 0.1, parameter.numel()).view_as(parameter))
    return model


class Batches:
    """Labelled points around fixed centers; each host draws its own."""

    def __init__(self, host: int, size: int = 2 * LENGTH) -> None:
        self._centers = torch.randn(CLASSES, WIDTH, generator=torch.Generator().manual_seed(5))
        self._generator = torch.Generator().manual_seed(100 + host)
        self._size = size

    def next(self) -> tuple[Tensor, Tensor]:
        labels = torch.randint(0, CLASSES, (self._size,), generator=self._generator)
        noise = torch.randn(self._size, WIDTH, generator=self._generator)
        return self._centers[labels] + 1.3 * noise, labels
