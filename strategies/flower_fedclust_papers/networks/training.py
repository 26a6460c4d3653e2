"""Repeatable training with PyTorch, which is imported only where it is used.

The same random_state gives the same bits, whatever else the process does with torch: random numbers come from a
generator of our own, training uses one thread, and numbers are float64.
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

Floats = NDArray[np.float64]

#: Tensor is torch.Tensor, and Network is torch.nn.Sequential. They are Any, so that type checkers need no torch.
Tensor: TypeAlias = Any
Network: TypeAlias = Any

# torch's number of threads belongs to the whole process, so contexts in two threads would undo each other's work.
_one_at_a_time = threading.RLock()


def require_torch(who: str) -> Any:
    """Return the module torch; without it, raise a DataError that says who needs it and what to install."""
    try:
        return import_module("torch")
    except ImportError:
        raise DataError(
            f'{who} needs PyTorch; install it with: pip install "flower-fedclust[deep]".'
        ) from None


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Make torch compute on one thread, so that the order of additions is always the same.

    A context in another thread of the process waits until this one has ended; contexts may be nested.
    """
    torch = import_module("torch")
    with _one_at_a_time:
        n_threads = torch.get_num_threads()
        # If something else has already limited torch to one thread, setting the number here would outlast that limit.
        if n_threads > 1:
            torch.set_num_threads(1)
        try:
            yield
        finally:
            if n_threads > 1:
                torch.set_num_threads(n_threads)


def torch_generator(random_state: int) -> Any:
    """Return a torch.Generator with this seed, apart from torch's global one."""
    return import_module("torch").Generator().manual_seed(random_state)


@contextmanager
def repeatable(who: str, random_state: int) -> Iterator[tuple[Any, Any]]:
    """Yield torch, computing on one thread, and a generator with this seed; ``who`` is named if torch is missing."""
    torch = require_torch(who)
    with one_torch_thread():
        yield torch, torch_generator(random_state)


def new_layers(sizes: Sequence[int], generator: Any, *, last: float = 1.0) -> list[Floats]:
    """Draw weights of variance ``2 / n_in`` (He, Zhang, Ren and Sun 2015), and biases of 0.

    ``sizes`` holds the width of the input, of each hidden layer and of the output. The weights of the last layer are
    multiplied by ``last``: below 1, the outputs begin near 0.
    """
    torch = import_module("torch")
    layers: list[Floats] = []
    for n_in, n_out in pairwise(sizes):
        factor = math.sqrt(2.0 / n_in) * (last if len(layers) == 2 * len(sizes) - 4 else 1.0)
        weights = torch.randn(n_in, n_out, generator=generator, dtype=torch.float64) * factor
        layers += [weights.numpy(), np.zeros(n_out)]
    return layers


def network_of(layers: Sequence[Floats], activation: Any = None) -> Network:
    """Return a torch.nn.Sequential with copies of these layers, and the activation (ReLU by default) between them."""
    torch = import_module("torch")
    modules = []
    for weights, biases in zip(layers[::2], layers[1::2], strict=True):
        linear = torch.nn.Linear(*weights.shape, device="meta")  # draws no weights
        linear.weight = torch.nn.Parameter(torch.tensor(weights).T)
        linear.bias = torch.nn.Parameter(torch.tensor(biases))
        modules += [linear, activation or torch.nn.ReLU()]
    return torch.nn.Sequential(*modules[:-1])


def layers_of(network: Network) -> list[Floats]:
    """Return copies of a network's layers."""
    return [parameter.detach().numpy().T.copy() for parameter in network.parameters()]


def batches(n_rows: int, batch_size: int, generator: Any) -> Iterator[Tensor]:
    """Give the indices of all rows once, in random order, in parts of nearly equal size and at most batch_size."""
    torch = import_module("torch")
    order = torch.randperm(n_rows, generator=generator)
    yield from torch.tensor_split(order, math.ceil(n_rows / batch_size))


def n_epochs_for(n_steps: int, n_rows: int, batch_size: int) -> int:
    """Return how many epochs take at least this many steps: few rows need more of them."""
    return math.ceil(n_steps / math.ceil(n_rows / batch_size))


def descend(loss: Tensor, optimizer: Any) -> float:
    """Take one step of an optimizer down the gradient of a loss, and return the loss."""
    optimizer.zero_grad()
    loss.backward(
        inputs=[parameter for group in optimizer.param_groups for parameter in group["params"]]
    )
    optimizer.step()
    return float(loss.detach())
