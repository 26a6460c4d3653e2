"""The function simulate(), which runs a strategy and its clients in this process or on Ray."""

from __future__ import annotations

import copy
import logging
import pickle
import tempfile
import threading
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from flwr.app import Context, Message
from flwr.client import ClientApp
from flwr.server import Grid, ServerApp, ServerAppComponents, ServerConfig
from numpy.typing import ArrayLike, NDArray

from flower_fedclust.data.files import ENDINGS
from flower_fedclust.data.frames import is_table
from flower_fedclust.engine import (
    MIN_CLIENTS,
    ClientData,
    DataError,
    ProtocolClient,
    ProtocolError,
    ProtocolStrategy,
    client_app,
)
from flower_fedclust.engine.cluster import run_on_actors
from flower_fedclust.engine.inline import run_inline
from flower_fedclust.engine.journal import Journal
from flower_fedclust.engine.kept_rows import keeping_rows
from flower_fedclust.engine.progress import bar, quiet
from flower_fedclust.engine.strategy import put_in_order
from flower_fedclust.exact.device import on_device, open_device
from flower_fedclust.inputs import Clients, Strategy, read_inputs, why_not_its_unit
from flower_fedclust.names import some
from flower_fedclust.numerics.checks import check_choice, check_integer
from flower_fedclust.numerics.threads import jobs
from flower_fedclust.results.doubts import doubts_about_files
from flower_fedclust.results.result import Result, result_of
from flower_fedclust.results.result_data import Form
from flower_fedclust.tables.floors import FLOOR, Floor
from flower_fedclust.tables.schema import Schema

Engine = Literal["inline", "shards", "ray"]
ENGINES: tuple[Engine, ...] = get_args(Engine)


def simulate(
    strategy: Strategy,
    clients: Clients,
    *,
    schema: Schema | str | Path | Mapping[str, Any] | None = None,
    describe: bool | float = False,
    seed: int | None = None,
    columns: Sequence[str] | None = None,
    client_column: str | None = None,
    label_column: str | None = None,
    subject_column: str | None = None,
    labels: Sequence[ArrayLike] | Mapping[str, ArrayLike] | None = None,
    names: Sequence[str] | None = None,
    n_clients: int = 10,
    partition: str | None = None,
    floor: int = FLOOR,
    engine: Engine = "inline",
    n_jobs: int | None = None,
    device: str | None = None,
    kept_rows: float | None = None,
    secure: bool = False,
    journal: str | Path | None = None,
    progress: bool | None = None,
    **parameters: Any,
) -> Result:
    """Run a strategy on rows that are all in this process, as if each client held its own.

    >>> import flower_fedclust as fc
    >>> result = fc.simulate(fc.KFED(n_clusters=3), {"north": rows, "south": more_rows})  # doctest: +SKIP
    >>> result = fc.simulate("k-fed", "visits.csv", client_column="site", n_clusters=3)  # doctest: +SKIP

    Most runs need a strategy, clients and, for raw tables, a schema. The other arguments are for
    these purposes:

    - tables in one file: ``client_column``, ``label_column``, ``subject_column``, ``columns``
    - arrays: ``labels``, ``names``
    - data sets that are spread over clients: ``n_clients``, ``partition``
    - what is printed: ``describe``, ``floor``
    - how the run is carried out: ``engine``, ``n_jobs``, ``secure``, ``journal``, ``progress``, ``seed``

    Parameters
    ----------
    strategy : ProtocolStrategy, class or str
        A strategy, its class, its name, or "module:Class". An object is not changed: a copy runs.
    clients : sequence, mapping, FederatedRows, table, path or str
        The rows of each client. A sequence or a mapping with the clients' names holds arrays of
        shape (n_i, n_columns), tables (pandas, Polars or PyArrow), files or ClientData. Otherwise:
        a folder with one file per client; a single table or file with ``client_column``; or the
        name of a data set, or a function that makes one. Named columns are put into the order of
        the first client's; other names are refused.
    schema : Schema, mapping, TOML text, or the name of a TOML file, optional
        What is public about the columns of tables, which may then have text, dates and gaps; see
        :func:`~flower_fedclust.with_schema`.
    describe : bool or float, default=False
        With a schema: whether to describe the clusters in the units of the table, which costs one
        more sum. A float is the fraction of the budget to spend on it.
    seed : int, optional
        Makes all randomness repeatable, the noise too: the result is then an experiment and
        protects nobody. By default noise comes from the operating system. The strategy's own
        random_state, if set, stays.
    **parameters
        The strategy's parameters, such as ``n_clusters``, if the strategy is a name or a class.

    Other Parameters
    ----------------
    columns : sequence of str, optional
        The names of the columns. For tables: the columns to cluster by.
    client_column : str, optional
        The column of a single table or file that says which client has a row.
    label_column : str, optional
        The column of tables and files that holds the true classes.
    subject_column : str, optional
        The column of tables and files that says which person a row is about, if a person may have
        several rows; for ``privacy_unit="subject"``. It holds text or integers, without gaps. It is
        not used to find clusters, and never leaves a client.
    labels : sequence or mapping of array-like of shape (n_i,), optional
        True classes, for the metrics of the result. The protocol never sees them, unless the
        strategy was told to run the federated evaluation.
    names : sequence of str, optional
        Names for the clients of a sequence; by default "0", "1", ...
    n_clients : int, default=10
        Over how many clients the rows of a data set, or of a file without ``client_column``, are
        spread.
    partition : str, default="iid"
        How these rows are spread; see :func:`flower_fedclust.data.partition`.
    floor : int, default=10
        The smallest number of rows that descriptions, pages and pictures show; smaller numbers are
        replaced by a limit (docs/floors.md). If the rows are public, 0 shows all numbers.
    engine : "inline", "shards" or "ray", default="inline"
        "inline" runs in this process: no start-up, a hundred thousand clients. "shards" spreads the
        clients over the cores of this machine or, if the environment names one as RAY_ADDRESS, of a
        Ray cluster. "ray" runs Flower's own simulation, to test what a deployment will do. All give
        the same bits for the same seed, on one kind of processor.
    n_jobs : int, optional
        How many threads compute a client's sums over its rows in this process. By default, and with
        -1, as many as there are cores, or as OMP_NUM_THREADS says; but one for clients with few
        rows, and in the processes of Ray. The result has the same bits with any number.
    device : str, optional
        Where sums over rows are computed; the model and the labels have the same bits everywhere
        (docs/scale.md), and metrics may differ in the last digits. "cuda", or "cuda:1" for the
        second card, is a GPU with PyTorch; it needs engine "inline", because one process owns the
        card. By default "cpu". "torch" is PyTorch on the processor, for tests.
    kept_rows : float, optional
        How many gigabytes of rows, as the integers that sums are computed from, are kept between
        rounds; by default an eighth of the machine's memory, or four fifths of the free memory of a
        card. With 0, rows are converted again in each round.
    secure : bool, default=False
        Whether clients mask what they send, so that the server sees only sums (docs/secure.md). The
        sums have the same bits, except with noise="clients", where each client adds a little more.
        A strategy that needs single replies is refused.
    journal : str or Path, optional
        A folder in which the run records what the server receives. If it holds the journal of the
        same run, which was interrupted, the run continues from there, with the same bits if it has
        a seed.
    progress : bool, optional
        Whether to show a progress bar; by default in a terminal, and in a notebook if ipywidgets is
        installed.

    Returns
    -------
    Result

    Raises
    ------
    ValueError
        If rows, labels, names or parameters are not valid; before anything is sent.
    ProtocolError
        If too few clients are left to finish the run.
    """
    check_choice("engine", engine, ENGINES)
    if engine != "inline" and find_spec("ray") is None:
        raise ValueError(
            f'engine is "{engine}" and Ray is not installed; pip install "flwr[simulation]", or leave the engine out, '
            "which runs in this process."
        )
    if device not in (None, "cpu") and engine != "inline":
        raise ValueError(
            f'device is "{device}" and engine is "{engine}"; one process owns a card; leave the engine out.'
        )
    opened = None if device is None else open_device(device)
    if seed is not None:
        check_integer("seed", seed, at_least=0)
    inputs = read_inputs(
        strategy,
        clients,
        parameters,
        labels=labels,
        names=names,
        describe=describe,
        floor=Floor(floor).least,
        columns=columns,
        schema=schema,
        seed=seed,
        label_column=label_column,
        client_column=client_column,
        subject_column=subject_column,
        partition=partition,
        n_clients=n_clients,
    )
    prepared_strategy, by_name = copy.copy(inputs.strategy), inputs.clients
    _make_ready(prepared_strategy, list(by_name.values()), seed)
    if journal is not None:
        prepared_strategy.journal = Journal(journal)
    if prepared_strategy.journal is not None and engine == "ray":
        raise ValueError(
            "a journal does not go with engine='ray': what clients on Ray remember is lost if the run is "
            "interrupted; use engine='inline', or leave journal out."
        )
    prepared_strategy.secure = secure
    prepared_strategy.check_secure()
    start = time.perf_counter()
    with jobs(n_jobs), on_device(opened), keeping_rows(kept_rows):
        _run(prepared_strategy, by_name, engine, seed, progress)
        result = result_of(prepared_strategy, by_name, time.perf_counter() - start)
    result = replace(result, form=_form_of(clients, result.row_ids))
    if prepared_strategy.tables is None:
        result = replace(result, floor=floor)
    if inputs.rows is None:
        return result
    doubts = (*result.doubts, *doubts_about_files(inputs.rows.empty))
    return replace(result, server_row_ids=inputs.rows.server_row_ids, doubts=doubts)


def _form_of(clients: Clients, row_ids: Sequence[NDArray[Any]]) -> Form:
    """Return the form in which the caller gave the clients, so that the result's labels have the same form."""
    if isinstance(clients, Mapping):
        return "dict"
    is_one_table = is_table(clients)
    if isinstance(clients, (str, Path)):
        is_one_table = Path(clients).suffix in ENDINGS and not Path(clients).is_dir()
    return "table" if is_one_table and all(ids.dtype.kind in "iu" for ids in row_ids) else "list"


def _make_ready(strategy: ProtocolStrategy, data: Sequence[ClientData], seed: int | None) -> None:
    """Set the seed, put columns in order, and check that strategy and clients fit each other."""
    if seed is not None:
        strategy.noise_seed = seed
        if strategy.random_state is None:
            strategy.random_state = seed
    strategy.check_parameters()
    if strategy.tables is None:
        if data and data[0].columns is not None:
            put_in_order(strategy, data[0].columns, data[0].owner)
        strategy.check_complete()
        for client in data:
            client.check()
    else:
        _check_tables(strategy.tables, data)
    _check_fit(strategy, data)
    _check_subjects(strategy, data)
    # The server waits for all clients: on Ray they appear one after the other, after the server has begun.
    strategy.expected_clients = len(data)


def _run(
    strategy: ProtocolStrategy,
    by_name: Mapping[str, ClientData],
    engine: Engine,
    seed: int | None,
    progress: bool | None,
) -> None:
    """Run the strategy; if the run fails because a client's numbers are too large or too small, name this client.

    The strategy keeps its privacy report even if the run fails, so that an error still says what the clients have sent.
    """
    data = list(by_name.values())
    # Flower logs every round; its warnings and errors stay.
    shown = bar(strategy.name, strategy.n_own_rounds, progress)
    with shown as says, quiet(logging.ERROR, "flwr"), strategy.journal or nullcontext():
        strategy.on_round = strategy.on_round or (lambda number, task: says(task, number))
        try:
            seeds = [noise_seed_of(seed, index) for index in range(len(data))]
            if engine == "inline":
                run_inline(strategy, by_name, seeds)
            elif engine == "shards":
                run_on_actors(strategy, by_name, seeds)
            else:
                _run_on_ray(strategy, data, list(by_name), seed)
        except BaseException as error:
            strategy.end_early(error)
            of_scale = next(
                (f"{client.owner}: {where}" for client in data if (where := client.out_of_scale)),
                None,
            )
            if of_scale is not None and isinstance(
                error, (ArithmeticError, ValueError, ProtocolError)
            ):
                told = DataError(of_scale)
                told.privacy_report = getattr(error, "privacy_report", None)  # type: ignore[attr-defined]
                raise told from error
            raise


def _check_tables(tables: Any, data: Sequence[ClientData]) -> None:
    """Raise a DataError if tables do not fit the schema; each reason is given once, with the clients it applies to."""
    owners: dict[str, list[str]] = {}
    for client in data:
        try:
            tables.check(client)
        except DataError as error:
            owners.setdefault(str(error).removeprefix(f"{client.owner}: "), []).append(client.owner)
    if owners:
        said = [f"{some(named, 5)}: {reason}" for reason, named in owners.items()]
        more = f" Other clients have {len(said) - 5} more reasons." if len(said) > 5 else ""
        raise DataError(" ".join(said[:5]) + more)


def _check_fit(strategy: ProtocolStrategy, data: Sequence[ClientData]) -> None:
    """Raise a ValueError if strategy and clients do not fit each other.

    They do not fit if there are too few clients or rows, or if public rows have other columns than the clients.
    """
    required = strategy.min_clients or MIN_CLIENTS
    if len(data) < required:
        raise ValueError(
            f"clients has {len(data)} entries and min_clients is {required}; give more clients, or set min_clients "
            "lower."
        )
    expected = strategy.expected_columns if strategy.tables is None else None
    if expected is not None and data[0].n_columns != expected:
        words = {"server_data": "server rows have", "origin": "origin has"}
        reasons = (has for name, has in words.items() if getattr(strategy, name, None) is not None)
        reason = next(reasons, "first centers have")
        raise ValueError(
            f"the clients have {data[0].n_columns} columns where the {reason} {expected}."
        )
    n_rows = sum(client.n_rows for client in data)
    fewest = strategy.fewest_clusters
    if fewest > n_rows:
        number = f"{fewest}" if fewest == strategy.most_clusters else f"at least {fewest}"
        raise ValueError(
            f"n_clusters is {number} and the clients have {n_rows} rows together; ask for fewer."
        )


def _check_subjects(strategy: ProtocolStrategy, data: Sequence[ClientData]) -> None:
    """Raise a ValueError if the clients' rows do not fit the privacy unit; see :func:`why_not_its_unit`."""
    without = [client.owner for client in data if client.subjects is None]
    if why_not := why_not_its_unit(strategy, [client.owner for client in data], without):
        raise ValueError(why_not)


def noise_seed_of(seed: int | None, index: int) -> int | None:
    """Return the seed of one client's noise; the server and every client have different seeds."""
    if seed is None:
        return None
    return int(np.random.SeedSequence([seed, 1 + index]).generate_state(1, np.uint64)[0])


class _EndingServer(ServerApp):
    """A server that stops waiting for replies once the simulation has ended, for example by Ctrl-C.

    Flower runs the server in a thread of its own, which would otherwise wait for ever and keep the process alive.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.is_over = threading.Event()

    def __call__(self, grid: Grid, context: Context) -> None:
        """Run the server with a grid that raises an error once the simulation has ended."""
        pull = grid.pull_messages

        def pulled(message_ids: Iterable[str]) -> Iterable[Message]:
            if self.is_over.is_set():
                raise RuntimeError("the simulation has ended.")
            return pull(message_ids)

        grid.pull_messages = pulled  # type: ignore[method-assign]
        super().__call__(grid, context)


def _run_on_ray(
    strategy: ProtocolStrategy, data: Sequence[ClientData], names: Sequence[str], seed: int | None
) -> None:
    """Run the strategy by Flower's own simulation, in which every client runs on a Ray actor.

    Each client's data are in a file, and not in the ClientApp, because Flower sends the ClientApp to an actor with each
    message. Raises a RuntimeError if the simulation ends before the protocol does.
    """
    from flwr.simulation import run_simulation

    with tempfile.TemporaryDirectory(prefix="fedclust-") as folder:
        # One file for each client, from which the ClientApp reads.
        for index, client in enumerate(data):
            Path(folder, f"{index}.pkl").write_bytes(pickle.dumps(client))
        components = ServerAppComponents(
            strategy=strategy, config=ServerConfig(num_rounds=strategy.num_rounds)
        )
        server = _EndingServer(server_fn=lambda context: components)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            try:
                run_simulation(
                    server,
                    _client_app(strategy.client_type, folder, list(names), seed),
                    num_supernodes=len(data),
                    backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
                )
            finally:
                server.is_over.set()
    if not strategy.is_finished:
        raise RuntimeError("the simulation on Ray ended before the protocol did; its log says why.")


def _client_app(
    client_type: type[ProtocolClient], folder: str, names: list[str], seed: int | None
) -> ClientApp:
    """Return the ClientApp of a simulation; clients read their rows from files in ``folder``."""

    def partition(context: Context) -> int:
        return int(context.node_config["partition-id"])

    def load(context: Context) -> ClientData:
        data: ClientData = pickle.loads(Path(folder, f"{partition(context)}.pkl").read_bytes())
        return data

    return client_app(
        client_type,
        load,
        name=lambda context: names[partition(context)],
        noise_seed=lambda context: noise_seed_of(seed, partition(context)),
    )
