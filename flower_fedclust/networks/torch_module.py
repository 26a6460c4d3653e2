"""PyTorch, imported where it is used, and what makes training with it repeatable.

All that is random comes from a generator of its own, never from torch's global one, and training runs on one thread:
the same random_state gives the same bits, whatever else the process does with torch. Numbers are float64, as in the
rest of the library, so that the same network in NumPy gives the same outputs. Whatever needs PyTorch raises a DataError
where it is not installed.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.numerics.checks import DataError

#: A torch.Tensor. Whoever reads the types needs no torch.
Tensor: TypeAlias = Any

# torch counts its threads for the whole process, so that two who set and restore them would undo each other's work.
_one_at_a_time = threading.RLock()


def require_torch(who: str) -> Any:
    """Return the module torch.

    Parameters
    ----------
    who : str
        What needs it ("PPFC-GAN"), for the message.

    Raises
    ------
    DataError
        With what to install.
    """
    try:
        return import_module("torch")
    except ImportError:
        raise DataError(f'{who} needs PyTorch; install it with: pip install "flower-fedclust[deep]".') from None


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Let torch compute on one thread for as long as the context lasts: the order of additions is then always the same.

    A context in another thread of the process waits until this one has ended; one inside another is free.
    """
    torch = import_module("torch")
    with _one_at_a_time:
        n_threads = torch.get_num_threads()
        # Where something else holds them at one already, to set them would outlast it.
        if n_threads > 1:
            torch.set_num_threads(1)
        try:
            yield
        finally:
            if n_threads > 1:
                torch.set_num_threads(n_threads)


def torch_generator(random_state: int) -> Any:
    """Return a torch.Generator that begins with this seed; torch's global one is left alone."""
    return import_module("torch").Generator().manual_seed(random_state)


def new_layers(sizes: Sequence[int], generator: Any, *, gain: float = 2.0, last: float = 1.0) -> list[Tensor]:
    """Return the weights and biases of a network of dense layers, drawn for training.

    Parameters
    ----------
    sizes : sequence of int
        Columns that go in, the units of each hidden layer, columns that come out.
    generator : torch.Generator
    gain : float, default=2
        A weight has variance ``gain / n_in``: 2 for ReLU (He, Zhang, Ren and Sun 2015), 1 for tanh.
    last : float, default=1
        By what the last layer's weights are multiplied: below 1 the outputs begin near 0.

    Returns
    -------
    list of Tensor
        ``[W_1, b_1, W_2, b_2, ...]``, W of shape (n_in, n_out) and b of shape (n_out,), all with gradients.
    """
    torch = import_module("torch")
    layers: list[Tensor] = []
    for n_in, n_out in pairwise(sizes):
        factor = math.sqrt(gain / n_in) * (last if len(layers) == 2 * len(sizes) - 4 else 1.0)
        weights = torch.randn(n_in, n_out, generator=generator, dtype=torch.float64) * factor
        layers += [weights.requires_grad_(), torch.zeros(n_out, dtype=torch.float64, requires_grad=True)]
    return layers


def arrays_of(layers: Sequence[Tensor]) -> list[NDArray[np.float64]]:
    """Return copies of layers as NumPy arrays."""
    return [layer.detach().numpy().copy() for layer in layers]


def forward(rows: Tensor, layers: Sequence[Tensor], activation: str = "relu") -> Tensor:
    """Return the outputs of a network of dense layers, the last of which is linear.

    Parameters
    ----------
    rows : Tensor of shape (n_rows, n_in)
    layers : sequence of Tensor
        As :func:`new_layers` returns them.
    activation : "relu", "tanh" or "leaky_relu", default="relu"
        Of the hidden layers. "leaky_relu" leaves a fifth of what is negative.

    Returns
    -------
    Tensor of shape (n_rows, n_out)
    """
    torch = import_module("torch")
    *hidden, weights, biases = layers
    for hidden_weights, hidden_biases in zip(hidden[::2], hidden[1::2], strict=True):
        rows = torch.addmm(hidden_biases, rows, hidden_weights)
        if activation == "leaky_relu":
            rows = torch.nn.functional.leaky_relu(rows, 0.2)
        else:
            rows = torch.relu(rows) if activation == "relu" else torch.tanh(rows)
    return torch.addmm(biases, rows, weights)


def batches(n_rows: int, batch_size: int, generator: Any) -> Iterator[Tensor]:
    """Give the indices of all rows once, in random order and in parts of about one size, at most batch_size."""
    torch = import_module("torch")
    order = torch.randperm(n_rows, generator=generator)
    yield from torch.tensor_split(order, math.ceil(n_rows / batch_size))


def epochs_of(n_steps: int, n_rows: int, batch_size: int) -> int:
    """Return how many times all rows have to be gone through for so many steps: few rows need more of them."""
    return math.ceil(n_steps / math.ceil(n_rows / batch_size))


def step(loss: Tensor, parameters: Sequence[Tensor], optimizer: Any) -> float:
    """Let an optimizer take one step down the gradient of a loss by these parameters alone, and return the loss.

    Parameters
    ----------
    loss : Tensor of shape ()
    parameters : sequence of Tensor
        Those of the optimizer. Others that the loss depends on get no gradient.
    optimizer : torch.optim.Optimizer
    """
    torch = import_module("torch")
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        parameter.grad = gradient
    optimizer.step()
    return float(loss.detach())
