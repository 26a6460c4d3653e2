"""Attack every message that nothing protects: the table and the picture of docs/attacks.md.

``python docs/attacked_messages.py``           prints the table
``python docs/attacked_messages.py --write``   writes it into the page, and draws the picture
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flower_fedclust.checking import (
    Exchange,
    Subject,
    WatchedRun,
    shadow_answers,
    small_tables,
    watched_run,
)
from flower_fedclust.cli.advice import made_up_strategy as _made
from flower_fedclust.data import load_dataset
from flower_fedclust.engine import ClientData
from flower_fedclust.engine.replies import values_of
from flower_fedclust.engine.wire import decode
from flower_fedclust.numerics.metrics import add_tables, agreement, count_table
from flower_fedclust.privacy.attacks import attack_by_name
from flower_fedclust.registry import accepted_parameters, make_strategy, strategies

DOCS = Path(__file__).resolve().parent
sys.path += [str(DOCS.parent), str(DOCS.parent / "benchmarks")]

from audits import SHORT  # noqa: E402

from reproduce import attacks  # noqa: E402

BEGIN, END = "<!-- by docs/attacked_messages.py -->\n", "<!-- end -->\n"

#: How many rows replace a client's first one in turn, and how much longer one of them is.
N_OTHERS, FAR = 9, 100.0

#: With fewer axes than columns, some strategies ask for more.
FEWER_AXES = {"n_latent": 2}


class Victim:
    """A client of a run: what it sent, and what it would have sent with other rows."""

    def __init__(self, run: WatchedRun, others: np.ndarray, labels: dict[str, np.ndarray]) -> None:
        self.run, self.labels, self.others, self._known = run, labels, others, {}

    def sent_with(self, client: str, rows: np.ndarray, number: int) -> list[np.ndarray]:
        """Return what the client sends in a round if it has these rows."""
        key = client, rows.tobytes()
        if key not in self._known:
            self._known[key] = shadow_answers(self.run, client, rows)
        return values_of(self._known[key].get(number) or [])

    def attacked(self, exchange: Exchange, index: int, name: str) -> str:
        """Return what the attack finds, in words and a number."""
        rows = self.run.data[exchange.client].rows
        observed = exchange.arrays[index]
        asked = [np.asarray(array, dtype=float) for array in decode(exchange.ins.parameters)]
        given: dict[str, Any] = json.loads(exchange.ins.config.get("arguments", "{}"))
        if name.startswith("rows_from_"):
            function = getattr(attacks, name)
            wanted = {key: given[key] for key in WANTED[name]}
            if name == "rows_from_kernel":
                wanted = {"gamma": given.get("gamma", 0.5 / given.get("bandwidth", 1.0) ** 2)}
            found = function(asked[0], observed, **wanted)
            return f"rows to {attacks.relative_errors(found, rows).max():.0e} of their distance from the mean"
        if name == "clusters_from_codes":
            codes = observed.reshape(len(rows), -1)
            found = attacks.clusters_from_codes(codes, len(np.unique(self.labels[exchange.client])))
            return self.agreed(exchange.client, found)
        if name == "clusters_from_graph":
            found = attacks.clusters_from_graph(
                *self.graph(exchange), len(np.unique(self.labels[exchange.client]))
            )
            return self.agreed(exchange.client, found)
        if name == "membership_from_centers" and observed.shape[-1] == rows.shape[1]:
            scores = (
                attacks.membership_from_centers(observed, each) for each in (rows, self.others)
            )
            ranked = f"members rank above others in {attacks.advantage(*scores):.2f} of the cases"
            return f"{ranked}; {self.replayed(exchange, index, rows)}"
        if name == "row_from_sums":
            arrays = exchange.arrays
            before = self.sent_with(exchange.client, rows[1:], exchange.round)
            counts = np.array([len(rows)]), np.array([len(rows) - 1])
            if observed.ndim == 2 and len(arrays) > 1 and arrays[1].shape == observed.shape[:1]:
                counts = arrays[1], before[1]
            now, then = np.atleast_2d(observed), np.atleast_2d(before[index])
            found = attacks.row_from_sums(now, counts[0], then, counts[1])
            error = np.linalg.norm(found[0] - self.expected(exchange, rows)) / np.linalg.norm(
                rows[0]
            )
            return f"the row to {error:.0e} of its norm"
        return self.replayed(exchange, index, rows)

    def agreed(self, client: str, found: np.ndarray) -> str:
        """Return the share of rows in their true cluster."""
        table = add_tables([count_table(self.labels[client], found, int(found.max()) + 1)])
        return f"{agreement(table)['accuracy']:.2f} of the rows in their true cluster"

    def graph(self, exchange: Exchange) -> tuple[np.ndarray, np.ndarray]:
        """Return the nearest rows of every row, and their weights."""
        contents = [sent.content for sent in self.run.rounds[exchange.round].answer.sends]
        weights = next(
            index
            for index, content in enumerate(contents)
            if content.startswith("weights of the nearest")
        )
        n_rows = len(self.run.data[exchange.client].rows)
        nearest = exchange.arrays[contents.index("nearest rows of every row")].astype(int)
        return nearest.reshape(n_rows, -1), exchange.arrays[weights].reshape(n_rows, -1)

    def expected(self, exchange: Exchange, rows: np.ndarray) -> np.ndarray:
        """Return the first row as it is in the sum: minus the origin, if the server sent one."""
        origins = [
            array for array in decode(exchange.ins.parameters) if array.shape == rows[0].shape
        ]
        return rows[0] - (origins[0] if origins else 0.0)

    def replayed(self, exchange: Exchange, index: int, rows: np.ndarray) -> str:
        """Return how many other rows are ruled out, and whether the row's absence is."""
        answers = []
        # One row is long, because an exponent reveals only about how long a row is.
        for row in [FAR * self.others[0], *self.others[1:N_OTHERS], None]:
            table = rows[1:] if row is None else np.vstack([row, rows[1:]])
            sent = self.sent_with(exchange.client, table, exchange.round)
            answers.append(sent[index : index + 1])
        scores = attacks.row_by_replay([exchange.arrays[index]], answers)
        told = int(np.sum(scores[:-1] < 0))
        return f"{told}/{N_OTHERS}{', absence' if scores[-1] < 0 else ''}"


WANTED = {
    "rows_from_codes": ("bandwidth", "regularization"),
    "rows_from_kernel": (),
    "rows_from_distances": (),
}


def every_message() -> Iterator[tuple[str, str, str, str, str]]:
    """Yield strategy, message, kind, attack and outcome for each unprotected message, once each."""
    seen: set[tuple[str, str]] = set()
    for name, entry in strategies().items():
        accepted = accepted_parameters(name)
        options = {key: value for key, value in SHORT.items() if key in accepted} | dict(
            entry.example
        )
        options |= {key: value for key, value in FEWER_AXES.items() if key in accepted}
        strategy = _made(name, options | {"n_clusters": 3}, 4)
        rows, labels = small_tables(strategy)
        others = np.vstack(small_tables(strategy, n_clients=4)[0][3:])
        subject = Subject(strategy, rows, labels)
        run = subject.run
        victim = Victim(run, others, dict(zip(subject.names, labels, strict=True)))
        for message in run.strategy.report.unprotected:
            key = message.content, message.reveals
            attack = attack_by_name(*key)
            if key in seen or message.round not in run.rounds:
                continue
            asked = [one for one in run.asked(message.round) if one.res is not None]
            index = [sent.content for sent in run.rounds[message.round].answer.sends].index(
                message.content
            )
            # Skip sums in other columns; another strategy sends the same sum in the columns of the data.
            if attack == "row_from_sums" and asked[0].arrays[index].shape[-1] != subject.n_columns:
                continue
            seen.add(key)
            outcome = (
                victim.attacked(asked[0], index, attack) if attack else "the message is the rows"
            )
            yield name, message.content, message.reveals, attack, outcome


def draw_prototypes(path: Path) -> None:
    """Draw what a client's prototypes of digits look like, above the nearest of its rows."""
    from matplotlib.figure import Figure

    table = load_dataset("digits", random_state=0)
    parts = np.array_split(np.random.default_rng(0).permutation(len(table.rows)), 10)
    data = {str(index): ClientData(table.rows[part]) for index, part in enumerate(parts)}
    run = watched_run(make_strategy("spp-fgc", n_clusters=10), data, seed=0)
    sent = "means of the client's prototypes"
    for number, round_ in run.rounds.items():
        contents = [one.content for one in round_.answer.sends]
        if sent in contents:
            exchange = run.asked(number)[0]
            means = exchange.arrays[contents.index(sent)][:10]
    rows = run.data[exchange.client].rows
    nearest = rows[np.argmin(np.sum((rows[None] - means[:, None]) ** 2, axis=2), axis=1)]
    figure = Figure(figsize=(7.0, 1.6), dpi=150, facecolor="white", layout="constrained")
    for line, images in enumerate((means, nearest)):
        for index, image in enumerate(attacks.images_from_prototypes(images, (8, 8))):
            axes = figure.add_subplot(2, len(means), line * len(means) + index + 1)
            axes.imshow(image, cmap="gray_r")
            axes.set_axis_off()
    figure.savefig(path)


def table_of(groups: Mapping[tuple[str, str], Mapping[str, Sequence[str]]]) -> list[str]:
    """Return the lines of the page's table.

    ``groups`` has, for each attack and result, the messages by the strategy that is their example.
    """
    lines = ["| one strategy: messages that it sends | attack | result |", "|---|---|---|"]
    for (attack, outcome), examples in groups.items():
        sent = "<br>".join(f"`{name}`: {'; '.join(each)}" for name, each in examples.items())
        lines.append(f"| {sent} | {f'`{attack}`' if attack else ''} | {outcome} |")
    return lines


def main() -> None:
    """Run the script."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--write", action="store_true", help="write the tables and the picture of the docs"
    )
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    groups: dict[tuple[str, str], dict[str, list[str]]] = {}
    for name, content, _, attack, outcome in every_message():
        groups.setdefault((attack, outcome), {}).setdefault(name, []).append(content)
        print(name, content, attack, outcome, sep=" | ", flush=True)
    table = table_of(groups)
    if args.write:
        page = DOCS / "attacks.md"
        before, rest = page.read_text(encoding="utf-8").split(BEGIN)
        page.write_text(
            "\n".join([before + BEGIN, *table, "", END + rest.split(END)[1]]), encoding="utf-8"
        )
        draw_prototypes(DOCS / "attacked-prototypes.png")


if __name__ == "__main__":
    main()
