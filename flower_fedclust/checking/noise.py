"""Tests of the noise that a run really draws: its law, its source, and the privacy loss.

A guarantee is only as good as its noise. These tests draw the noise of a run a thousand times and
ask: does it have the declared width and shape; does it have tails; does it ever repeat; does it
depend on other noise; and how well do the outputs on two neighboring tables tell these tables
apart?

A client's answer is computed once without noise. This stored answer then replaces the computation
in every draw, so a thousand draws take seconds. Consent, noise, encoding, checks of replies and
sums run as in a real run, on clients and on the server. Without a seed the noise comes from the
operating system, as it does where it protects somebody.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from flwr.app import Context, RecordDict
from flwr.common import FitRes
from numpy.typing import NDArray
from scipy.stats import beta, chi2, gamma, kstest, laplace, norm, rankdata

from flower_fedclust.checking.neighbors import Neighbors
from flower_fedclust.checking.runs import (
    NOISE_FIELDS,
    TRIES,
    Exchange,
    Floats,
    WatchedRun,
    answer_to,
    data_of,
    new_context,
    sent_or_kept,
)
from flower_fedclust.engine import ClientData, ProtocolClient, Reply, Sum
from flower_fedclust.engine.log import RunLog
from flower_fedclust.engine.messages import Answers, Message
from flower_fedclust.engine.replies import Inspection, add_up, values_of
from flower_fedclust.engine.rounds import Question, Round
from flower_fedclust.engine.wire import encode, sent_arrays, with_hash
from flower_fedclust.exact.grid import GridArray
from flower_fedclust.exact.sums import is_off_diagonal
from flower_fedclust.privacy.noise import Sendable, noise_exponent, on_grid
from flower_fedclust.privacy.releases import Mechanism, Release
from flower_fedclust.simulation import noise_seed_of

#: The probability that a sound strategy is called broken, over all tests of an audit together.
FALSE_ALARM = 1e-3

#: The fractions of that probability for the tests of: the law of the noise, its source, large arrays, samples of rows,
#: epsilon, and delta.
OF_NOISE, OF_SOURCES, OF_STAND_INS, OF_SAMPLES, OF_EPSILON, OF_DELTA = 0.3, 0.1, 0.1, 0.1, 0.2, 0.2

#: If each client adds noise of its own, the first so many draws include all clients, and later ones a single client.
OTHER_CLIENTS_DRAWS = 64

#: At most MOST_NUMBERS numbers of one release are tested. The first N_FIRST entries of each draw are kept to test the
#: source.
MOST_NUMBERS, N_FIRST = 400_000, 12

#: Of larger noise, about this many numbers are tested for their shape, and for their lowest bits.
MOST_TESTED = 20_000

#: The largest, the 10th largest and the 100th largest number are tested, to see whether noise is cut off.
RANKS_OF_TAILS = (1, 10, 100)

#: Noise is tested for being uniform modulo RESIDUES, if it is at least eight times wider than that. Each of the classes
#: must have LEAST_A_CLASS numbers, or fewer classes are made.
RESIDUES, LEAST_A_CLASS = 16, 50

#: A series of numbers that is tested for correlation with another has at least FEWEST and at most MOST numbers.
FEWEST, MOST = 64, 400

#: If this many repetitions are expected, at least one occurs with probability 0.999.
NOTICED_PAIRS = math.log(1000.0)

#: At most this many lowest bits of a number are tested for correlation, and only bits that the noise is at least eight
#: times wider than.
BITS = 8


@dataclass
class DrawnNoise:
    """All draws of the noise of one release: one array in one round."""

    round: int
    index: int  #: The place of the array in the answer.
    content: str
    release: Release
    exponent: int  #: The exponent of the unit in which the noise is drawn.
    #: Whether every client that adds a share must answer, so that the noise is no wider than declared.
    is_whole: bool
    n_shares: int = 1
    is_summed: bool = False  #: Whether clients draw shares of the noise.
    #: client ("" for a sum) -> one flat array for each draw, in the units of the data.
    noise: dict[str, list[Floats]] = field(default_factory=dict)
    #: Client or "" for the server -> the first entries of each draw (or share), as whole numbers of units.
    first: dict[str, list[Floats]] = field(default_factory=dict)
    #: Only if clients draw the noise: a dict for each of two neighboring tables. It maps the number of a draw to the
    #: output with that table, minus the noiseless output with the first table.
    seen: tuple[dict[int, Floats], dict[int, Floats]] = field(default_factory=lambda: ({}, {}))

    @property
    def standardized(self) -> list[list[Floats]]:
        """The noise divided by its declared scale: a list of flat arrays for each client, or for the sum."""
        return [
            [
                part * (self.widths(part.size) / self.release.scale)
                for part in parts[: 1 + MOST_NUMBERS // max(parts[0].size, 1)]
            ]
            for parts in self.noise.values()
        ]

    @property
    def n_numbers(self) -> int:
        """How many numbers have been drawn."""
        return sum(part.size for parts in self.noise.values() for part in parts)

    def widths(self, size: int) -> Floats:
        """Return the factor by which the noise of each of ``size`` entries is declared to be narrower than the scale.

        The factor is 1, except in a triangle of a symmetric matrix, where it is sqrt(2) for entries off
        the diagonal.
        """
        widths = np.ones(size)
        if self.release.triangle:
            widths[is_off_diagonal((math.isqrt(8 * size + 1) - 1) // 2)] = math.sqrt(2.0)
        return widths

    def add(self, noise: Mapping[str, Floats]) -> None:
        """Add one draw of each client, or of the server.

        If clients draw shares of the noise, the shares are added up to one draw of the whole noise.
        """
        for who, drawn in noise.items():
            self.first.setdefault(who, []).append(
                np.ldexp(np.ravel(drawn)[:N_FIRST], -self.exponent)
            )
        whole = {"": sum(noise.values(), np.zeros(()))} if self.is_summed else noise
        for who, drawn in whole.items():
            self.noise.setdefault(who, []).append(np.ravel(drawn))


#: Stand-ins: made-up arrays that replace arrays of a client's answer, by their index in the answer.
StandIns = Mapping[int, GridArray]

#: Noise by index of the array, and by the client that draws it ("" for a sum).
Noise = dict[int, dict[str, Floats]]

#: Draws the noise of a round; takes the number of the draw, whether it is seeded, and made-up arrays to add it to.
Draw = Callable[[int, bool, StandIns | None], Noise]

#: The key of the neighbors' second table; no client has this name.
_OTHER = "\0other"


class Drawer:
    """Draws the noise of a run's releases again and again.

    Parameters
    ----------
    run : WatchedRun
    target : str
        The client whose tables are the neighbors.
    pair : Neighbors, optional
        If clients draw the noise, the target has the first of these tables in every even draw, and
        the second in every odd one. So the outputs of both can be compared.
    noise_seed : int
        For the clients' random choices while their noiseless answers are computed.
    """

    def __init__(
        self, run: WatchedRun, target: str, pair: Neighbors | None = None, noise_seed: int = 0
    ) -> None:
        self._run, self._target, self._pair, self._noise_seed = run, target, pair, noise_seed
        self.drawn: dict[tuple[int, int], DrawnNoise] = {}
        self.seeded: dict[tuple[int, int], DrawnNoise] = {}
        #: round, index -> the shape of an array that takes noise, and the exponent of its unit
        self.forms: dict[tuple[int, int], tuple[tuple[int, ...], int]] = {}
        self._draws: dict[int, Draw] = {}
        contexts = {name: new_context() for name in run.data}
        self._data = dict(run.data)
        if pair is not None:
            owner, target_rows = f"client {target}", (pair.rows, pair.owners)
            other = target_rows if pair.others is None else (pair.others, pair.owners_of_others)
            for name, (rows, subjects) in ((target, target_rows), (_OTHER, other)):
                self._data[name] = data_of(run.strategy, rows, owner, subjects_of_rows=subjects)
            contexts[_OTHER] = new_context()
        for number in run.rounds:
            asked = run.asked(number)
            by_clients = [
                exchange for exchange in asked if NOISE_FIELDS & exchange.ins.config.keys()
            ]
            if run.noisy(number) and by_clients:
                self._prepare_clients(number, by_clients, contexts)
            elif run.noisy(number):
                self._prepare_server(number, asked)
            for exchange in run.exchanges if run.clients_remember else ():
                if exchange.round == number:
                    for who in self._tables_of(exchange.client):
                        sent_or_kept(run, exchange, self._data[who], contexts[who])

    def _tables_of(self, client: str) -> list[str]:
        """Return the keys of a client's tables; the target has two."""
        return [client, _OTHER] if client == self._target and self._pair is not None else [client]

    def draw(self, repetition: int, *, seeded: bool = False) -> None:
        """Draw the noise of all releases once: from the operating system, or with the seeds of a seeded run."""
        for number, draw in self._draws.items():
            self._add(number, draw(repetition, seeded, None), seeded=seeded)

    def of_stand_ins(
        self, number: int, repetition: int, stand_ins: StandIns, *, seeded: bool
    ) -> Noise:
        """Draw a round's noise while one client sends the stand-ins (made-up arrays), and all others send zeros.

        Returns noise by index of the array and by client; {} if replies with such arrays are
        refused.
        """
        if number not in self._draws:
            return {}
        try:
            return self._draws[number](repetition, seeded, stand_ins)
        except Exception:
            return {}

    def _add(self, number: int, noise: Noise, *, seeded: bool) -> None:
        """Add one draw of a round's noise to what has been drawn."""
        for drawn in self._of_round(number, seeded=seeded):
            if drawn.index in noise:
                drawn.add(noise[drawn.index])

    def draw_numbers(self, n_numbers: int) -> None:
        """Draw with seeds until each release has at least this many numbers."""
        for number, draw in self._draws.items():
            for repetition in range(n_numbers):
                if all(
                    drawn.n_numbers >= n_numbers for drawn in self._of_round(number, seeded=True)
                ):
                    break
                self._add(number, draw(repetition, True, None), seeded=True)

    def _prepare_server(self, number: int, asked: Sequence[Exchange]) -> None:
        """Prepare the draws of a round whose noise the server adds."""
        by_name = {exchange.client: exchange for exchange in asked if not exchange.has_failed}
        answered = [by_name[name] for name in self._run.strategy.client_names if name in by_name]
        if answered:
            self._add_releases(number, answered[0].sent, is_whole=True)
            self._draws[number] = _ServerDraws(self._run, number, asked, answered)

    def _prepare_clients(
        self, number: int, asked: Sequence[Exchange], contexts: dict[str, Context]
    ) -> None:
        """Prepare the draws of a round whose noise clients add.

        Their answers without noise are computed here, once for each table.
        """
        run, round_ = self._run, self._run.rounds[number]
        n_shares = int(str(asked[0].ins.config["n_shares"]))
        is_summed = (
            run.strategy.noise == "clients" and isinstance(round_, Sum) and not round_.answer.keeps
        )
        exchanges = {
            who: exchange for exchange in asked for who in self._tables_of(exchange.client)
        }
        plain: dict[str, list[Sendable]] = {}
        for who, exchange in exchanges.items():
            before_noise = _before_noise(
                run, exchange, self._data[who], contexts[who], self._noise_seed
            )
            if before_noise is None:
                return
            is_absent = who == _OTHER and self._pair is not None and self._pair.others is None
            plain[who] = (
                [_zeros_like(array) for array in before_noise] if is_absent else before_noise
            )
        before = {name: _copied(context) for name, context in contexts.items()}
        is_whole = n_shares == len(asked) or not is_summed
        self._add_releases(
            number, plain[asked[0].client], n_shares, is_whole=is_whole, is_summed=is_summed
        )
        drawn = [draws for draws in self.drawn.values() if draws.round == number]
        self._draws[number] = _ClientDraws(
            run,
            drawn,
            self._target,
            exchanges,
            plain,
            {who: self._data[who] for who in exchanges},
            before,
            is_summed,
        )

    def _add_releases(
        self,
        number: int,
        arrays: Sequence[Sendable],
        n_shares: int = 1,
        *,
        is_whole: bool,
        is_summed: bool = False,
    ) -> None:
        """Make an empty record for each release of a round."""
        for index, release in self._run.noisy(number):
            array = on_grid(arrays[index])
            self.forms[number, index] = array.integers.shape, array.exponent
            unit = noise_exponent(release, n_shares, array.exponent)
            content = self._run.rounds[number].answer.sends[index].content
            for kept in (self.drawn, self.seeded):
                kept[number, index] = DrawnNoise(
                    number, index, content, release, unit, is_whole, n_shares, is_summed
                )

    def _of_round(self, number: int, *, seeded: bool) -> list[DrawnNoise]:
        """Return the records of a round's releases: of seeded noise, or of noise from the operating system."""
        return [
            drawn
            for drawn in (self.seeded if seeded else self.drawn).values()
            if drawn.round == number
        ]


class _ServerDraws:
    """Draws the noise that the server adds, in one round, to the replies that it received.

    The server's own code runs on a copy of the run: it checks the stored replies, adds them up and
    adds noise. The noise is its output minus the exact sum. Calling the object makes one draw, and
    returns its noise by index of the array and by client ("" for a sum). Stand-ins (made-up arrays)
    replace the arrays of the first client, and zeros replace the arrays of all other clients.
    """

    def __init__(
        self, run: WatchedRun, number: int, asked: Sequence[Exchange], answered: Sequence[Exchange]
    ) -> None:
        self._run, self._number, self._answered = run, number, answered
        nodes = {site.name: site.cid for site in run.sites}
        self._messages = [
            Message(nodes[exchange.client], exchange.client, exchange.ins) for exchange in asked
        ]
        self._nodes = nodes

    def __call__(self, repetition: int, seeded: bool, stand_ins: StandIns | None) -> Noise:
        """Draw the noise of the round again, by letting a copy of the server receive the recorded replies.

        Returns, by client, each noisy array minus the same array without noise; sums have the client
        "". With ``seeded``, the noise has a seed that follows from ``repetition``. ``stand_ins`` are
        large made-up arrays that replace the replies' arrays; they show whether the noise depends
        on the array to which it is added.
        """
        round_, running = self._run.rounds[self._number], self._run.strategy._run
        assert running is not None
        probe = copy.copy(running)
        probe.log = RunLog()
        probe.noise_seed = 1_000_000 + repetition if seeded else None
        probe.number = self._number
        sent = {exchange.client: exchange.sent for exchange in self._answered}
        results = {
            exchange.client: exchange.res for exchange in self._answered if exchange.res is not None
        }
        if stand_ins is not None:
            probe.inspection = _Unchecked(running.settings)
            probe.inspection.n_columns = running.n_columns
            first = self._answered[0].client
            sent = {
                name: _standing_in(arrays, stand_ins, is_first=name == first)
                for name, arrays in sent.items()
            }
            results = {name: _with_arrays(res, sent[name]) for name, res in results.items()}
        is_sum = isinstance(round_, Sum)
        plain = (
            {"": values_of(add_up([*sent.values()]))}
            if is_sum
            else {n: values_of(r) for n, r in sent.items()}
        )
        answers = Answers({self._nodes[name]: res for name, res in results.items()})
        received = probe.receive(round_, self._messages, answers) or []
        noise: Noise = {}
        for reply in [received] if is_sum and received else received:
            who, arrays = (
                (reply.client, reply.arrays) if isinstance(reply, Reply) else ("", list(reply))
            )
            for index, _ in self._run.noisy(self._number):
                noise.setdefault(index, {})[who] = _minus(arrays[index], plain[who][index])
        return noise


@dataclass
class _ClientDraws:
    """Draws the noise that clients add, in one round, to their stored answers.

    Each draw makes new client objects whose computation is replaced by the stored answer. The noise
    is what they send minus that answer. Calling the object makes one draw, and returns its noise by
    index of the array and by client; {} if a client happens to fail. In every second draw the
    target client has the second table of the neighbors.
    """

    run: WatchedRun
    drawn: list[DrawnNoise]  #: The noise of this round's releases.
    target: str
    exchanges: dict[
        str, Exchange
    ]  #: The exchange with each table, by the table's name; the target has two tables.
    plain: dict[str, list[Sendable]]  #: The noiseless answer, by table.
    data: dict[str, ClientData]
    before: dict[str, Context]  #: The memory before the round, by table.
    is_summed: bool

    def __post_init__(self) -> None:
        self._now = dict(self.plain)
        self._kinds = {
            who: _replying(self.run, exchange, lambda *_, who=who: tuple(self._now[who]))
            for who, exchange in self.exchanges.items()
        }
        self._indices = {name: index for index, name in enumerate(self.run.data)}

    def __call__(self, repetition: int, seeded: bool, stand_ins: StandIns | None) -> Noise:
        """Draw the noise of the round again, by letting clients answer the recorded message.

        Returns, for each noisy array and client, the answer minus the answer without noise. In odd
        repetitions the target has its second table, so that there are outputs for both tables. If
        each client draws noise of its own, the other clients answer only in the first repetitions.
        Returns {} if a client fails, as it may at random.
        """
        is_other = stand_ins is None and repetition % 2 == 1 and _OTHER in self.plain
        clients = [who for who in self.exchanges if who != _OTHER]
        if not self.is_summed and (repetition >= OTHER_CLIENTS_DRAWS or stand_ins is not None):
            clients = (
                [self.target]
                if self.target in clients
                else clients[:1]
                if stand_ins is not None
                else []
            )
        tables = {
            client: _OTHER if is_other and client == self.target else client for client in clients
        }
        self._now = dict(self.plain)
        if stand_ins is not None:
            self._now |= {
                who: _standing_in(self.plain[who], stand_ins, is_first=who == clients[0])
                for who in tables.values()
            }
        noisy: dict[str, list[Sendable]] = {}
        for client, who in tables.items():
            seed = noise_seed_of(1_000_000 + repetition, self._indices[client]) if seeded else None
            arrays_of_client = sent_or_kept(
                self.run,
                self.exchanges[who],
                self.data[who],
                _copied(self.before[who]),
                client_type=self._kinds[who],
                noise_seed=seed,
            )
            if not arrays_of_client:  # the client fails at random
                return {}
            noisy[client] = arrays_of_client
        noise = {
            drawn.index: {
                client: _minus(arrays[drawn.index], self._now[tables[client]][drawn.index])
                for client, arrays in noisy.items()
            }
            for drawn in self.drawn
        }
        if stand_ins is None and not seeded and self.target in noisy:
            self._see(noise, tables[self.target], repetition)
        return noise

    def _see(self, noise: Noise, who: str, repetition: int) -> None:
        """Record the target client's output in this draw, for the table that it had."""
        for drawn in self.drawn:
            first, current = self.plain[self.target], self.plain[who]
            moved = _minus(current[drawn.index], first[drawn.index])
            parts = noise[drawn.index]
            whole = sum(parts.values(), np.zeros(())) if self.is_summed else parts[self.target]
            outputs = drawn.seen[1 if who == _OTHER else 0]
            outputs[repetition] = np.ravel(whole) + np.ravel(moved)


class _Unchecked(Inspection):
    """Accepts any arrays, because made-up arrays need not be possible for a client's rows."""

    def check_numbers(self, name: str, round_: Round, arrays: Sequence[Sendable]) -> None:
        """Take any numbers."""

    def unlike(self, *_: Any, **__: Any) -> dict[str, str]:
        """Leave out no client."""
        return {}

    outliers = unlike


def _standing_in(
    arrays: Sequence[Sendable], stand_ins: StandIns, *, is_first: bool
) -> list[Sendable]:
    """Return a client's arrays, with stand-ins (made-up arrays) in place of those that have one.

    All clients but the first get zeros instead, so that the clients' sum is the stand-in.
    """
    replaced = list(arrays)
    for index, stand_in in stand_ins.items():
        replaced[index] = stand_in if is_first else _zeros_like(stand_in)
    return replaced


def _with_arrays(res: FitRes, arrays: Sequence[Sendable]) -> FitRes:
    """Return a reply with other arrays in the same units."""
    sent, facts = sent_arrays(arrays)
    return with_hash(replace(res, parameters=encode(sent), metrics=res.metrics | facts))


def _zeros_like(array: Sendable) -> Sendable:
    """Return zeros of the same shape and unit."""
    if isinstance(array, GridArray):
        return GridArray(np.zeros_like(array.integers), array.exponent)
    return np.zeros_like(array)


def _minus(minuend: Any, other: Any) -> Floats:
    """Return the difference in the units of the data; arrays of integers in a unit are subtracted exactly."""
    difference: Floats
    if isinstance(minuend, GridArray):
        other = on_grid(other)
        exponent = min(minuend.exponent, other.exponent)
        whole = minuend.refined(exponent).integers - other.refined(exponent).integers
        difference = np.ldexp(whole.astype(np.float64), exponent)
    else:
        other = other.values if isinstance(other, GridArray) else other
        difference = np.asarray(minuend, dtype=np.float64) - other
    return difference


def _copied(context: Context) -> Context:
    """Return a context whose memory can be changed without changing the original."""
    copied = copy.copy(context)
    copied.state = RecordDict(dict(context.state))
    return copied


def _before_noise(
    run: WatchedRun, exchange: Exchange, data: ClientData, context: Context, noise_seed: int
) -> list[Sendable] | None:
    """Return a client's answer before its noise is added; None if it fails."""
    asked = getattr(run.strategy.client_type, exchange.task)
    replies: list[list[Sendable]] = []

    def watched(client: ProtocolClient, question: Question) -> Any:
        reply = asked.reply_of(client, question)
        arrays = list(reply) if isinstance(reply, (list, tuple)) else [reply]
        replies.append(
            [array if isinstance(array, GridArray) else np.asarray(array) for array in arrays]
        )
        return reply

    kind = _replying(run, exchange, watched)
    for seed in (noise_seed, *range(TRIES)):  # a client may fail at random
        make = partial(kind, data, name=exchange.client, context=_copied(context), noise_seed=seed)
        answer_to(make, exchange.ins, tries=1)
        if replies:
            return replies[0]
    return None


def _replying(
    run: WatchedRun, exchange: Exchange, reply_of: Callable[..., Any]
) -> type[ProtocolClient]:
    """Return the run's class of clients with ``reply_of`` in the place of the answer's computation."""
    kind = run.strategy.client_type
    asked = getattr(kind, exchange.task)
    other = object.__new__(type(asked))
    vars(other).update(vars(asked), reply_of=reply_of)
    return type(kind.__name__, (kind,), {exchange.task: other})


# The law.


@dataclass(frozen=True)
class NoiseTest:
    """The noise of one release, over all rounds, compared with its declared law."""

    n_numbers: int
    factor: float  #: The width of the noise divided by its declared width.
    #: Kind of fault -> the probability that sound noise looks at least as faulty.
    p_values: Mapping[str, float]

    def smallest_factor(self, level: float, mechanism: str) -> float:
        """Return how narrow noise must be to be noticed in half of all cases, as a fraction of the declared width.

        The more numbers were drawn, the nearer to 1 is this fraction. It is 0 if there are none.
        """
        if self.n_numbers == 0:
            return 0.0
        law = chi2(self.n_numbers) if mechanism == "gaussian" else gamma(self.n_numbers)
        share = float(law.ppf(level)) / float(law.ppf(0.5))
        return math.sqrt(share) if mechanism == "gaussian" else share


def compare_with_law(all_drawn: Sequence[DrawnNoise]) -> NoiseTest:
    """Test the noise of one release, in all of its rounds, against its declared law.

    Gaussian noise has a chi-squared sum of squares, and Laplace noise a gamma sum of magnitudes.
    The tests ask whether the noise is too narrow (as a whole, or in one entry), cut off, too wide,
    of another shape, or has holes: integers that are never drawn.
    """
    parts = [part for drawn in all_drawn for part in drawn.standardized]
    z = np.concatenate([np.empty(0), *(noise for part in parts for noise in part)])
    if not z.size:
        return NoiseTest(0, 0.0, {})
    mechanism = all_drawn[0].release.mechanism
    gaussian = mechanism == "gaussian"
    factor = math.sqrt(float(np.mean(z**2)) / (1.0 if gaussian else 2.0))
    law = chi2(z.size) if gaussian else gamma(z.size)
    size = float(np.sum(z**2)) if gaussian else float(np.sum(np.abs(z)))
    p_values = {"narrower than declared": float(law.cdf(size)), "cut off": cut_off(z, mechanism)}
    if any(len(part) > 1 and part[0].size > 1 for part in parts):
        p_values["narrower than declared in one of its entries"] = _narrowest_entry(
            parts, gaussian=gaussian
        )
    if all(drawn.is_whole for drawn in all_drawn):
        p_values["wider than declared"] = float(law.sf(size))
        few = z[:: max(1, z.size // MOST_TESTED)]
        p_values["of another law than declared"] = float(
            kstest(few, norm.cdf if gaussian else laplace.cdf).pvalue
        )
    residues = np.concatenate([_residues(drawn) for drawn in all_drawn])[:MOST_TESTED]
    # The chi-squared test needs many numbers in each class: with ten, its p-value is only half of the true probability.
    n_classes = RESIDUES if residues.size >= LEAST_A_CLASS * RESIDUES else RESIDUES // 4
    if residues.size >= LEAST_A_CLASS * n_classes:
        counts = np.bincount(residues % n_classes, minlength=n_classes)
        wanted = residues.size / n_classes
        p_values["with holes"] = float(
            chi2(n_classes - 1).sf(float(np.sum((counts - wanted) ** 2)) / wanted)
        )
    return NoiseTest(int(z.size), factor, p_values)


def cut_off(z: Floats, mechanism: Mechanism) -> float:
    """Return the probability that the largest standardized numbers are as small as these, or smaller.

    In sound noise, the tail probability of the k-th largest number has the distribution of the k-th
    smallest of as many uniform numbers. Noise that is wider than declared has larger numbers, so it
    never looks cut off.
    """
    magnitudes = np.abs(z)
    tails = 2 * norm.sf(magnitudes) if mechanism == "gaussian" else np.exp(-magnitudes)
    smallest = np.sort(tails)[: RANKS_OF_TAILS[-1]]
    p_values = [
        float(beta.sf(smallest[rank - 1], rank, z.size - rank + 1))
        for rank in RANKS_OF_TAILS
        if rank <= z.size
    ]
    # Bonferroni's correction for the number of ranks.
    return min(1.0, len(RANKS_OF_TAILS) * min(p_values, default=1.0))


def reach_of_tails(n_numbers: int, level: float, mechanism: Mechanism) -> float:
    """Return the largest cut-off, in standard deviations, that the test with so many numbers always notices."""
    tail = min(1.0, math.log(len(RANKS_OF_TAILS) / level) / max(n_numbers, 1))
    return (
        float(norm.isf(tail / 2))
        if mechanism == "gaussian"
        else -math.log(tail) / math.sqrt(2.0) + 0.0
    )


def _narrowest_entry(parts: Sequence[Sequence[Floats]], *, gaussian: bool) -> float:
    """Return an upper bound on the probability that, in sound noise, some entry is as narrow as the narrowest here."""
    smallest, n_entries = 1.0, 0
    for draws in parts:
        z = np.array(draws)
        sizes = np.sum(z**2 if gaussian else np.abs(z), axis=0)
        law = chi2(len(z)) if gaussian else gamma(len(z))
        smallest, n_entries = (
            min(smallest, float(law.cdf(sizes.min(initial=np.inf)))),
            n_entries + sizes.size,
        )
    return min(1.0, smallest * n_entries)


def _residues(drawn: DrawnNoise) -> NDArray[np.intp]:
    """Return the lowest bits of the noise as integers, modulo :data:`RESIDUES`.

    Empty if the noise is too narrow for uniform low bits, or if its numbers were rounded.
    """
    if math.ldexp(drawn.release.scale, -drawn.exponent) < 8 * RESIDUES:
        return np.empty(0, dtype=np.intp)
    parts = [part for parts in drawn.noise.values() for part in parts[:MOST_TESTED]]
    noise = np.concatenate([np.empty(0), *parts])[:MOST_TESTED]
    units = np.ldexp(noise, -drawn.exponent)
    are_whole = np.array_equal(units, np.rint(units))
    if not are_whole or np.abs(units).max(initial=0.0) > 2.0**52:
        return np.empty(0, dtype=np.intp)
    residues: NDArray[np.intp] = units.astype(np.int64) % RESIDUES
    return residues


# The source.


@dataclass(frozen=True)
class Sources:
    """Results of testing the source of all releases' noise."""

    findings: list[str]  #: A clause about each fault.
    bits: float  #: A source with at most this many bits would have been noticed.
    #: Noise cut off at this many standard deviations would have been noticed.
    reach: Mapping[Mechanism, float]


def examine_sources(
    drawn: Sequence[DrawnNoise], seeded: Sequence[DrawnNoise], false_alarm: float
) -> Sources:
    """Check that noise has tails, never repeats, and does not depend on other noise, with seeds and without.

    Parameters
    ----------
    drawn, seeded : sequence of DrawnNoise
        Noise from the operating system, and noise from the seeds of a seeded run.
    false_alarm : float
        The probability of all false alarms of the audit, of which these tests take a share.

    Returns
    -------
    Sources
    """
    level = false_alarm * OF_SOURCES / 4
    findings, bits = _repetitions(drawn, level)
    findings += [
        f"the noise of '{release.content}' in round {release.round} is the same in every run"
        for release in drawn
        for parts in release.noise.values()
        if len(parts) >= 20 and (np.array(parts[:200]) == parts[0]).all(axis=0).any()
    ]
    findings += [*_dependent(drawn, level), *_dependent(seeded, level)]
    reach: dict[Mechanism, float] = {}
    for mechanism in dict.fromkeys(release.release.mechanism for release in drawn):
        z = np.concatenate(
            [
                *map(
                    _own_law,
                    (release for release in drawn if release.release.mechanism == mechanism),
                )
            ]
        )
        reach[mechanism] = reach_of_tails(z.size, level / 2, mechanism)
        if cut_off(z, mechanism) < level / 2:
            largest = float(np.abs(z).max()) / (1.0 if mechanism == "gaussian" else math.sqrt(2.0))
            findings.append(
                f"all {mechanism} noise together is cut off ({z.size} numbers within {largest:.3g} standard deviations)"
            )
    return Sources(findings, bits, reach)


def _own_law(drawn: DrawnNoise) -> Floats:
    """Return all noise of a release, standardized, in the form in which it was drawn.

    If clients draw shares of Gaussian noise, the single shares are returned, because they are
    Gaussian, too. Shares of Laplace noise are returned added up.
    """
    if not drawn.is_summed or drawn.release.mechanism == "laplace":
        return np.concatenate(
            [np.empty(0), *(part for parts in drawn.standardized for part in parts)]
        )
    scale = math.ldexp(drawn.release.scale / math.sqrt(drawn.n_shares), -drawn.exponent)
    widths = (
        drawn.widths(next((parts[0].size for parts in drawn.noise.values()), 0))[:N_FIRST] / scale
    )
    return np.concatenate(
        [np.empty(0), *(part * widths for parts in drawn.first.values() for part in parts)]
    )


def _repetitions(all_drawn: Sequence[DrawnNoise], level: float) -> tuple[list[str], float]:
    """Name noise that was drawn twice, and return the bits of the largest source that would have been noticed.

    A source of b bits repeats itself in one of 2^b pairs of draws. All noise of one law counts
    together. So many entries are compared that sound noise practically never repeats them.
    """
    alike: dict[tuple[object, ...], list[DrawnNoise]] = {}
    for drawn in all_drawn:
        alike.setdefault((drawn.content, drawn.exponent, drawn.release), []).append(drawn)
    findings, n_pairs = [], 0
    for group in alike.values():
        parts = [part for drawn in group for draws in drawn.first.values() for part in draws]
        likely = math.log(chance_of_a_repeat(group[0]))
        likely_pairs = math.log(level / max(math.comb(len(parts), 2) * len(alike), 1))
        n_entries = math.ceil(likely_pairs / likely) if likely < 0 else N_FIRST + 1
        parts = [part[:n_entries] for part in parts if part.size >= n_entries]
        n_pairs += math.comb(len(parts), 2)
        if (n_different := len({part.tobytes() for part in parts})) < len(parts):
            findings.append(
                f"the noise of '{group[0].content}' repeats: of {len(parts)} draws {n_different} differ"
            )
    return findings, math.log2(n_pairs / NOTICED_PAIRS) if n_pairs else 0.0


def chance_of_a_repeat(drawn: DrawnNoise) -> float:
    """Return an upper bound on the probability that two draws of an entry are the same integer.

    The bound is the integral of the squared characteristic function. The characteristic function of
    one of n shares is the n-th root of the whole noise's.
    """
    scale = math.ldexp(drawn.release.scale, -drawn.exponent)
    if drawn.release.triangle:
        scale *= math.sqrt(0.5)
    n_shares = drawn.n_shares if drawn.is_summed else 1
    if drawn.release.mechanism == "gaussian":
        integral = math.sqrt(math.pi * n_shares) / (2.0 * scale)
    else:
        steps = np.geomspace(1e-3 / scale, math.pi, 4000)
        squared = (1.0 + (2.0 / math.pi * scale * steps) ** 2) ** (-2.0 / n_shares)
        # Between 0 and the first step, the squared function is at most 1.
        integral = float(np.trapezoid(squared, steps)) + float(steps[0])
    return min(1.0, integral / math.pi)


def _dependent(all_drawn: Sequence[DrawnNoise], level: float) -> list[str]:
    """Name noise that depends on the noise of another entry, array, round or client.

    The test correlates the ranks of all pairs of entries, and the ranks of their magnitudes. If the
    same random words were used twice, even for two mechanisms or for arrays of two lengths, at
    least the magnitudes would be similar. The lowest bits of an array's first entry are also tested
    as series of numbers, because samplers may use one random word for each bit.
    """
    drawn = [
        (
            f"'{draws.content}' in round {draws.round}" + (f" of client {who}" if who else ""),
            draws,
            parts,
        )
        for draws in all_drawn
        for who, parts in draws.first.items()
    ]
    lengths = sorted({min(len(parts), MOST) for _, _, parts in drawn})
    findings = []
    for n_draws in {length for length in lengths if length >= FEWEST}:
        series = [
            series
            for place, noise, parts in drawn
            if len(parts) >= n_draws
            for series in _series(place, noise, np.array(parts[:n_draws]))
        ]
        findings += _correlated(series, level / len(lengths))
    return findings


def _series(place: str, drawn: DrawnNoise, units: Floats) -> list[tuple[str, Floats]]:
    """Return (name of the entry, numbers) for series of numbers that should be independent."""
    series = []
    for entry in range(units.shape[1]):
        # Small shares of noise are mostly 0. If most numbers are equal, the correlation of ranks is far from normal.
        _, counts = np.unique(units[:, entry], return_counts=True)
        if counts.max() > len(units) / 2:
            continue
        name = place + (f", entry {entry}" if units.shape[1] > 1 else "")
        series += [(name, units[:, entry]), (name, np.abs(units[:, entry]))]
    if len(units) >= 2 * FEWEST and not drawn.is_summed and series:
        width = math.ldexp(drawn.release.scale, -drawn.exponent)
        whole = np.abs(units[:, 0]).astype(np.int64) - 1
        bits = range(min(BITS, int(math.log2(max(width, 1.0))) - 3))
        series += [(series[0][0], (whole >> bit & 1).astype(np.float64)) for bit in bits]
    return series


def _correlated(series: Sequence[tuple[str, Floats]], level: float) -> list[str]:
    """Name the pairs of series whose correlation is larger than chance can explain."""
    if len(series) < 2:
        return []
    ranks = rankdata(np.array([numbers for _, numbers in series]), axis=1)
    ranks -= ranks.mean(axis=1, keepdims=True)
    ranks /= np.maximum(np.linalg.norm(ranks, axis=1, keepdims=True), np.finfo(np.float64).tiny)
    alike = np.triu(ranks @ ranks.T, 1)
    names = [name for name, _ in series]
    n_draws, n_pairs = ranks.shape[1], math.comb(len(series), 2)
    least = float(norm.isf(level / (2 * n_pairs))) / math.sqrt(n_draws - 1)
    findings = {
        f"the noise of {names[first]} depends on the noise of {names[second]} (correlation {alike[first, second]:.2f})"
        for first, second in zip(*np.nonzero(np.abs(alike) > least), strict=True)
        if names[first] != names[second]
    }
    return sorted(findings)[:3]


# The privacy loss.


@dataclass(frozen=True)
class Loss:
    """The privacy loss of runs on two neighboring tables.

    The loss of a run is log(P(output | its table) / P(output | the other table)). Epsilon and delta
    limit how often it may be large. The runs give confidence bounds on both: if the lower bound on
    epsilon exceeds the promise, the promise is broken.
    """

    epsilon: float  #: The promised epsilon, at the promised delta.
    delta: float
    #: The log likelihood ratio of the first table to the second, for each run on the first.
    of_one: Floats
    of_other: Floats  #: The same ratio for each run on the second table.
    #: Whether the auditor sees the noise; otherwise the loss is computed from outputs only.
    sees_noise: bool
    pair: str  #: The neighbors, in words.
    #: The epsilon that the declared noise gives for these neighbors, at that delta.
    expected: float = math.nan
    false_alarm: float = FALSE_ALARM

    @property
    def _both(self) -> tuple[Floats, Floats]:
        """The losses of runs on the first table, and of runs on the second."""
        return self.of_one, -self.of_other

    @property
    def n_runs(self) -> int:
        """The number of runs on the first table."""
        return len(self.of_one)

    @property
    def largest(self) -> float:
        """The largest loss."""
        return max(float(losses.max()) for losses in self._both)

    @property
    def delta_seen(self) -> float:
        """An estimate of delta at the promised epsilon: the mean of max(0, 1 - exp(epsilon - loss))."""
        return max(
            float(np.mean(-np.expm1(np.minimum(self.epsilon - losses, 0.0))))
            for losses in self._both
        )

    @property
    def delta_at_most(self) -> float:
        """An upper confidence bound on delta at the promised epsilon."""
        beyond = max(int(np.sum(losses > self.epsilon)) for losses in self._both)
        return upper(beyond, self.n_runs, self.false_alarm)

    @cached_property
    def delta_at_least(self) -> float:
        """A lower confidence bound on delta at the promised epsilon.

        One half of the runs chooses a threshold above epsilon, and the other half counts how many
        losses exceed it.
        """
        level = self.false_alarm * OF_DELTA / 2
        bounds = []
        for losses in self._both:
            first, second = losses[::2], losses[1::2]
            margins = np.linspace(0.1, 5.0, 50)
            gains = [
                np.mean(first > self.epsilon + margin) * -math.expm1(-margin) for margin in margins
            ]
            margin = float(margins[int(np.argmax(gains))])
            beyond = int(np.sum(second > self.epsilon + margin))
            bounds.append(lower(beyond, len(second), level) * -math.expm1(-margin))
        return max(bounds)

    @cached_property
    def epsilon_at_least(self) -> float:
        """A lower confidence bound on epsilon, by Clopper and Pearson.

        An attacker decides between the tables by a threshold on the loss. One half of the runs
        chooses the threshold, and the other half counts how often the attacker is right.
        """
        level = self.false_alarm * OF_EPSILON / 2
        best, chosen = -math.inf, (0.0, False)
        pooled = np.concatenate([self.of_one[::2], self.of_other[::2]])
        for threshold in np.unique(np.quantile(pooled, np.linspace(0.0, 1.0, 101))):
            for is_other in (False, True):
                bound = self._bound(float(threshold), is_other, 0, level)
                if bound > best:
                    best, chosen = bound, (float(threshold), is_other)
        return max(0.0, self._bound(*chosen, 1, level))

    def _bound(self, threshold: float, is_other: bool, half: int, level: float) -> float:
        """Return the bound on epsilon for one threshold, from one half of the runs."""
        right, wrong = self.of_one[half::2], self.of_other[half::2]
        if is_other:
            right, wrong, threshold = -wrong, -right, -threshold
        n_hits = int(np.sum(right > threshold))
        n_false = int(np.sum(wrong > threshold))
        share = lower(n_hits, len(right), level) - self.delta
        if share <= 0:
            return -math.inf
        return math.log(share / upper(n_false, len(wrong), level))

    def to_dict(self) -> dict[str, Any]:
        """Return the bounds and estimates, but not the loss of each run, ready for JSON."""
        names = (
            "pair",
            "sees_noise",
            "n_runs",
            "largest",
            "expected",
            "epsilon_at_least",
            "most_that_can_be_shown",
        )
        return {
            name: getattr(self, name)
            for name in (*names, "delta_seen", "delta_at_least", "delta_at_most")
        }

    @property
    def most_that_can_be_shown(self) -> float:
        """The largest lower bound on epsilon that this number of runs can give."""
        n = self.n_runs // 2
        level = self.false_alarm * OF_EPSILON / 2
        share = lower(n, n, level) - self.delta
        return max(0.0, math.log(share / upper(0, n, level))) if n and share > 0 else 0.0


def lower(hits: int, n: int, level: float) -> float:
    """Return Clopper and Pearson's lower bound on the probability of an event seen ``hits`` times in ``n`` runs."""
    return 0.0 if hits == 0 else float(beta.ppf(level, hits, n - hits + 1))


def upper(hits: int, n: int, level: float) -> float:
    """Return Clopper and Pearson's upper bound on the probability of an event seen ``hits`` times in ``n`` runs."""
    return 1.0 if hits >= n else float(beta.isf(level, hits + 1, n - hits))


def losses(
    all_drawn: Sequence[DrawnNoise],
    moves: Mapping[tuple[int, int], Floats],
    target: str,
    rng: np.random.Generator,
) -> tuple[Floats, Floats, bool] | None:
    """Return the losses of runs on the first table and on the second, and whether the auditor sees the noise.

    ``moves`` has the first table's array minus the second's, by round and array. If a client draws
    rows, ``rng`` decides whether the row that differs is drawn.
    """
    sees_noise = not any(drawn.seen[0] for drawn in all_drawn)
    rounds: dict[int, tuple[Floats, Floats, float]] = {}
    coins: dict[int, NDArray[np.bool_]] = {}
    for drawn in all_drawn:
        moved = moves.get((drawn.round, drawn.index))
        if moved is None or not np.any(moved):
            continue
        if sees_noise:
            of_target = other = np.array(drawn.noise.get("" if "" in drawn.noise else target, []))
        else:
            of_target, other = (
                np.array([part for _, part in sorted(seen.items())]) for seen in drawn.seen
            )
        if not len(of_target) or not len(other):
            continue
        of_one, of_other = (
            _ratios(drawn, moved, of_target),
            _ratios(drawn, moved, other - moved if sees_noise else other),
        )
        share = 1.0
        if drawn.release.sample is not None:
            share = drawn.release.sample[0] / drawn.release.sample[1]
            absent = _ratios(drawn, moved, other if sees_noise else other + moved)
            coin = coins.setdefault(drawn.round, rng.uniform(size=len(of_other)) < share)
            of_other = np.where(coin, of_other, absent)
        before = rounds.get(drawn.round, (np.zeros(len(of_target)), np.zeros(len(other)), share))
        rounds[drawn.round] = (before[0] + of_one, before[1] + of_other, before[2])
    if not rounds:
        return None
    parts = [
        (_mixed(of_one, share), _mixed(other, share)) for of_one, other, share in rounds.values()
    ]
    n_one, n_other = min(len(of_one) for of_one, _ in parts), min(len(other) for _, other in parts)
    return (
        np.sum([of_one[:n_one] for of_one, _ in parts], axis=0),
        np.sum([other[:n_other] for _, other in parts], axis=0),
        sees_noise,
    )


def _mixed(losses: Floats, q: float) -> Floats:
    """Return the losses if the row in which the tables differ is in a client's sample only with probability q."""
    return losses if q >= 1.0 else -np.logaddexp(math.log1p(-q), math.log(q) - losses)


def _ratios(drawn: DrawnNoise, moved: Floats, seen: Floats) -> Floats:
    """Return, for each draw, the log likelihood ratio of noise without a shift to noise with the shift ``moved``."""
    present = np.flatnonzero(moved)
    shift, x = moved[present], seen[:, present]
    ratios: Floats
    if drawn.release.mechanism == "laplace":
        ratios = np.sum(np.abs(x + shift) - np.abs(x), axis=1) / drawn.release.scale
        return ratios
    widths = (drawn.widths(moved.size) / drawn.release.scale)[present]
    shift, x = shift * widths, x * widths
    ratios = x @ shift + 0.5 * float(shift @ shift)
    return ratios
