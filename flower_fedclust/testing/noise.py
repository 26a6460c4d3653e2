"""The noise that a run adds to a release, drawn often enough to measure it."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, RecordDict
from flwr.app.user_config import UserConfig
from flwr.common import FitRes
from flwr.server.client_proxy import ClientProxy
from numpy.typing import NDArray
from scipy.stats import chi2, gamma

from flower_fedclust.numerics.exact import is_off_diagonal
from flower_fedclust.privacy.releases import Release
from flower_fedclust.protocol import ClientData, ProtocolStrategy, Reply, Sum
from flower_fedclust.protocol.books import Books
from flower_fedclust.protocol.replies import add_up, received_arrays, values_of
from flower_fedclust.protocol.wire import decode
from flower_fedclust.testing.runs import Exchange, Run, watched_run

Floats = NDArray[np.float64]

#: How many numbers are drawn of each release, and how rarely sound noise may look wrong. Together they find noise
#: that is half too wide or a third too narrow. The seeds are always the same, and so is the verdict.
N_DRAWS = 200
FALSE_ALARM = 1e-6


@dataclass(frozen=True)
class Drawn:
    """Noise of one release, many times."""

    round: int
    content: str
    release: Release
    noise: Floats  #: In the units of the array.

    @property
    def has_declared_scale(self) -> bool:
        """Whether the noise is as wide as its release says; wrong for sound noise once in a million."""
        n = self.noise.size
        if self.release.mechanism == "gaussian":
            statistic, law = float(np.sum((self.noise / self.release.scale) ** 2)), chi2(n)
        else:
            statistic, law = float(np.sum(np.abs(self.noise / self.release.scale))), gamma(n)
        return bool(min(law.cdf(statistic), law.sf(statistic)) > FALSE_ALARM / 2)

    @property
    def factor(self) -> float:
        """How wide the noise is, over how wide it should be."""
        return float(np.sqrt(np.mean(self.noise**2))) / self.release.standard_deviation


@dataclass
class _Collected:
    parts: dict[tuple[int, int], list[Floats]] = field(default_factory=dict)

    def add(self, number: int, releases: list[Release | None], arrays: list[Any], plain: list[Any]) -> None:
        for index, release in enumerate(releases):
            if release is not None and release.scale > 0:
                noise = np.ravel(arrays[index] - plain[index])
                if release.triangle:
                    noise = np.where(is_off_diagonal(_size(noise)), noise * math.sqrt(2.0), noise)
                self.parts.setdefault((number, index), []).append(noise)


def drawn_noise(strategy: ProtocolStrategy, data: Mapping[str, ClientData], seed: int) -> list[Drawn]:
    """Run a strategy, and draw the noise of each of its releases again and again, wherever it is drawn.

    Parameters
    ----------
    strategy : ProtocolStrategy
    data : mapping of str to ClientData
    seed : int
        Of the run. The noise is drawn from others.

    Returns
    -------
    list of Drawn
    """
    collected = _Collected()
    on_server = strategy.noise == "server"

    def before(run: Run, number: int, results: list[tuple[ClientProxy, FitRes]]) -> None:
        if on_server and not run.rounds[number].answer.keeps:
            _draw_on_server(run, number, results, collected)

    run = watched_run(strategy, data, seed=seed, before_aggregation=before)
    _draw_on_clients(run, collected)
    found = []
    for (number, index), parts in sorted(collected.parts.items()):
        round_ = run.rounds[number]
        release = round_.releases[index]
        assert release is not None
        found.append(Drawn(number, round_.answer.sends[index].content, release, np.concatenate(parts)))
    return found


def _draw_on_server(run: Run, number: int, results: list[tuple[ClientProxy, FitRes]], collected: _Collected) -> None:
    round_ = run.rounds[number]
    releases = list(round_.releases)
    asked = {exchange.client for exchange in run.asked(number)}
    by_name = {str(res.metrics["client"]): received_arrays(decode(res.parameters), res.metrics) for _, res in results}
    replies = [by_name[name] for name in run.strategy.client_names if name in asked & by_name.keys()]
    if not any(releases) or not replies:
        return
    books = run.strategy._run
    assert books is not None
    for repetition in range(_repetitions(releases, values_of(replies[0]))):
        probe = copy.copy(books)
        probe.books = Books()
        probe.settings = replace(books.settings, noise_seed=1_000_000 + repetition)
        received = probe.receive(number, round_, results, [])
        if isinstance(round_, Sum):
            collected.add(number, releases, list(received or []), values_of(add_up(replies)))
        else:
            for reply in received or []:
                assert isinstance(reply, Reply)
                collected.add(number, releases, reply.arrays, values_of(by_name[reply.client]))


def _draw_on_clients(run: Run, collected: _Collected) -> None:
    """Have shadows of the clients answer every message once without noise and often with it."""
    contexts = {name: Context(0, 0, UserConfig(), RecordDict(), UserConfig()) for name in run.data}
    for number, round_ in run.rounds.items():
        exchanges = [exchange for exchange in run.exchanges if exchange.round == number]
        asked = [exchange for exchange in run.asked(number) if "releases" in exchange.ins.config]
        releases = list(round_.releases)
        summed = bool(asked) and int(str(asked[0].ins.config["n_shares"])) > 1
        if asked:
            plain = [_answer(run, one, contexts[one.client], 0, noisy=False) for one in asked]
            # What a method draws itself differs from seed to seed; then the answer without noise is found each time.
            again = [_answer(run, one, contexts[one.client], 1, noisy=False) for one in asked]
            draws_itself = any(_differ(*pair) for pair in zip(plain, again, strict=True))
            for repetition in range(_repetitions(releases, plain[0], 1 if summed else len(asked))):
                seeds = [1_000_000 + 1000 * repetition + index for index in range(len(asked))]
                answers = {
                    noisy: [
                        _answer(run, one, contexts[one.client], seed, noisy=noisy)
                        for one, seed in zip(asked, seeds, strict=True)
                    ]
                    for noisy in ((True, False) if draws_itself else (True,))
                }
                without = answers.get(False, plain)
                if summed:
                    collected.add(number, releases, _sums(answers[True]), _sums(without))
                else:
                    for one, other in zip(answers[True], without, strict=True):
                        collected.add(number, releases, one, other)
        for exchange in exchanges if run.clients_remember else ():
            _answer(run, exchange, contexts[exchange.client], 0, noisy=True, lasting=True)


def _answer(
    run: Run, exchange: Exchange, context: Context, seed: int, *, noisy: bool, lasting: bool = False
) -> list[Any]:
    """Return what a client sends, or keeps, in answer to a message; its Context changes where that is to last."""
    if not lasting:
        context = copy.copy(context)
        context.state = RecordDict(dict(context.state))
    client = run.strategy.client_type(run.data[exchange.client], name=exchange.client, context=context, noise_seed=seed)
    config = {key: value for key, value in exchange.ins.config.items() if noisy or key != "releases"}
    arrays, _, facts = client.fit(decode(exchange.ins.parameters), config)
    round_ = run.rounds[exchange.round]
    if not round_.answer.keeps:
        return values_of(received_arrays(arrays, facts))
    records = (context.state.get(f"fedclust.{sent.kept_as}") for sent in round_.answer.sends)
    return [record.to_numpy_ndarrays()[0] for record in records if isinstance(record, ArrayRecord)]


def _sums(answers: list[list[Any]]) -> list[Any]:
    return [np.sum(arrays, axis=0) for arrays in zip(*answers, strict=True)]


def _size(triangle: Floats) -> int:
    return (math.isqrt(8 * triangle.size + 1) - 1) // 2


def _repetitions(releases: list[Release | None], arrays: list[Any], n_replies: int = 1) -> int:
    sizes = [array.size for array, release in zip(arrays, releases, strict=False) if release is not None]
    return math.ceil(N_DRAWS / max(1, min(sizes, default=N_DRAWS) * n_replies))


def _differ(one: list[Any], other: list[Any]) -> bool:
    return any(not np.array_equal(*pair) for pair in zip(one, other, strict=True))
