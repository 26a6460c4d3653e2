"""Shards of simulated clients as actors of Ray Core, on one machine or many.

Each actor holds the data of its clients and answers for all of them. In a round of sums it adds up their replies first.
The data of each shard is put into Ray's store once, and what clients remember comes back with the replies. So if an
actor or a machine is lost, its shard is rebuilt elsewhere and gives the same bits.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.common import EvaluateIns, EvaluateRes, FitIns, FitRes

from flower_fedclust.engine.client import ProtocolClient
from flower_fedclust.engine.client_data import ClientData
from flower_fedclust.engine.inline import run_inline
from flower_fedclust.engine.messages import Summed
from flower_fedclust.engine.rounds import Array
from flower_fedclust.engine.shards import Replies, Shard
from flower_fedclust.engine.strategy import ProtocolStrategy
from flower_fedclust.numerics.threads import jobs, one_thread

#: The port of Ray's client server.
_PORT = 10001

#: How often a shard may be lost during one message before the run ends.
MOST_LOSSES = 10

Memories = dict[int, dict[str, list[Array]]]


def run_on_actors(
    strategy: ProtocolStrategy, clients: Mapping[str, ClientData], noise_seeds: Sequence[int | None]
) -> None:
    """Run a strategy on shards on Ray: on the cluster of RAY_ADDRESS, or on this machine."""
    import ray

    kinds = {kind.__module__ for kind in strategy.client_type.__mro__}
    with connected(os.environ.get("RAY_ADDRESS") or "ray"), sent_by_value(kinds):
        n_cores = int(ray.cluster_resources().get("CPU", 1))  # type: ignore[no-untyped-call]
        names = list(clients)
        shards = []
        for places in np.array_split(np.arange(len(names)), max(1, min(n_cores, len(names)))):
            start, end = int(places[0]), int(places[-1]) + 1
            of_shard = {name: clients[name] for name in names[start:end]}
            stored = ray.put((of_shard, list(noise_seeds[start:end])))
            shards.append(RemoteShard(stored, strategy.client_type, start, len(of_shard)))
        run_inline(strategy, clients, noise_seeds, shards)


class _Actor:
    """A :class:`Shard` in a process of its own, as an actor of Ray."""

    def __init__(
        self,
        stored: tuple[dict[str, ClientData], list[int | None]],
        client_type: type[ProtocolClient],
        first: int,
        memories: Memories,
    ) -> None:
        self._shard = Shard(client_type, *stored, first)
        for index, memory in memories.items():
            self._shard.remind(index, memory)

    def answered(
        self, ins: FitIns | EvaluateIns, members: Sequence[int], adds_up: bool
    ) -> tuple[list[tuple[int, Any]], Memories]:
        with one_thread(), jobs(1):
            replies, memories = self._shard.answered(ins, members, adds_up=adds_up)
        # `ask_again` cannot be sent to another process; the receiving side adds its own.
        return [
            (at, replace(res, ask_again=None) if isinstance(res, Summed) else res)
            for at, res in replies
        ], memories


class RemoteShard:
    """A shard of another process.

    Parameters
    ----------
    stored : ray.ObjectRef
        The clients by name and their seeds, in Ray's store.
    client_type : type of ProtocolClient
    first : int
        The node id of the first client.
    n_clients : int
    """

    def __init__(
        self, stored: Any, client_type: type[ProtocolClient], first: int, n_clients: int
    ) -> None:
        self._given = stored, client_type, first
        self._first, self._n_clients = first, n_clients
        self._memories: Memories = {}
        self._actor: Any = None

    def __len__(self) -> int:
        return self._n_clients

    def begin(
        self, ins: FitIns | EvaluateIns, members: Sequence[int], *, adds_up: bool
    ) -> Callable[[], Replies]:
        """Ask clients, and return a function that waits for the replies."""
        reference = self._asked(ins, members, adds_up=adds_up)

        def wait() -> Replies:
            replies = self._received(reference, ins, members, adds_up=adds_up)
            return [(index, self._with_source(res, ins)) for index, res in replies], []

        return wait

    def fit(self, index: int, ins: FitIns) -> FitRes:
        """Return one client's reply."""
        return self._alone(index, ins)  # type: ignore[no-any-return]

    def evaluate(self, index: int, ins: EvaluateIns) -> EvaluateRes:
        """Return one client's evaluation of a model."""
        return self._alone(index, ins)  # type: ignore[no-any-return]

    def memory(self, index: int) -> dict[str, list[Array]]:
        """Return what one client remembers, by key."""
        return self._memories.get(index, {})

    def remind(self, index: int, memory: Mapping[str, list[Array]]) -> None:
        """Give one client a memory again, before the first message."""
        self._memories[index] = dict(memory)

    def _alone(self, index: int, ins: FitIns | EvaluateIns) -> Any:
        ((_, res),), _ = self.begin(ins, [index], adds_up=False)()
        if isinstance(res, Exception):
            raise res
        return res

    def _with_source(self, res: Any, ins: FitIns | EvaluateIns) -> Any:
        """Give a sum the function with which it can ask single clients again."""
        if not isinstance(res, Summed):
            return res

        def ask_again(nodes: list[str]) -> list[FitRes]:
            members = [int(node) - self._first for node in nodes]
            replies, _ = self.begin(ins, members, adds_up=False)()
            by_index = dict(replies)
            return [by_index[index] for index in members]

        return replace(res, ask_again=ask_again)

    def _asked(self, ins: FitIns | EvaluateIns, members: Sequence[int], *, adds_up: bool) -> Any:
        if self._actor is None:
            import ray

            # Ray reserves a hundredth of a core, only to spread the shards over machines: it is so little that a shard
            # that replaces a lost one finds room beside the others.
            make = ray.remote(num_cpus=0.01, scheduling_strategy="SPREAD")(_Actor)
            self._actor = make.remote(*self._given, self._memories)
        return self._actor.answered.remote(ins, list(members), adds_up)

    def _received(
        self, reference: Any, ins: Any, members: Sequence[int], *, adds_up: bool
    ) -> list[tuple[int, Any]]:
        """Wait for replies; ask again elsewhere if the actor or its machine is lost."""
        import ray

        for _ in range(MOST_LOSSES):
            try:
                replies, memories = ray.get(reference)
            except (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError):
                self._actor = None
                reference = self._asked(ins, members, adds_up=adds_up)
            else:
                self._memories.update(memories)
                return list(replies)
        raise RuntimeError(
            f"a shard of {self._n_clients} clients was lost {MOST_LOSSES} times; Ray's log says why."
        )


@contextmanager
def sent_by_value(modules: Iterable[str]) -> Iterator[None]:
    """Send the code of modules from outside this package, which other machines may not have."""
    from ray import cloudpickle

    ours = {__package__.partition(".")[0], "__main__", *sys.stdlib_module_names, "flwr"}
    homes = [
        sys.modules[name]
        for name in sorted({module.partition(".")[0] for module in modules} - ours)
    ]
    for module in homes:
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        for module in homes:
            cloudpickle.unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]


@contextmanager
def connected(on: str) -> Iterator[None]:
    """Connect to Ray, or start it, and disconnect in the end; an existing connection is used and kept."""
    import ray

    is_address = on.startswith("ray://") or on == "auto" or on.rpartition(":")[2].isdecimal()
    if not (is_address or on == "ray"):
        raise ValueError(f"the address of Ray is '{on}'; give ray, ray://HOST, auto, or HOST:PORT.")
    if ray.is_initialized():
        yield
        return
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if on == "ray":
        options |= {"address": "local", "include_dashboard": False}
    else:
        has_port = ":" in on.removeprefix("ray://") or on == "auto"
        options |= {"address": on if has_port else f"{on}:{_PORT}"}
    # Without this variable, Ray warns that its default will change.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        ray.init(**options)
    except (ConnectionError, RuntimeError, OSError) as error:
        said = str(error).partition("\n")[0]
        raise ConnectionError(f"Ray at {on} cannot be reached: {said}") from None
    try:
        yield
    finally:
        ray.shutdown()
