"""What a site answers: ``site.toml``, written by its operator."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from flower_fedclust.engine.consent import Request
from flower_fedclust.engine.rounds import Kind
from flower_fedclust.outside import read_toml
from flower_fedclust.privacy.releases import Relation

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Delta = Annotated[float, Field(gt=0, lt=1)]
Number = Annotated[int, Field(ge=1)]


class Refused(Exception):  # noqa: N818
    """What a site does not answer; the message is for its operator, and the server hears one word."""


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Policy(_Table):
    """What a site answers. What is left out takes the careful choice.

    Parameters
    ----------
    strategies : tuple of str, optional
        Names of those that the site takes part in: each run has to name one of these, or several, and is answered by
        their client halves alone. A client half is asked for any of its tasks, also for those that it shares with
        other strategies, and with any parameters. By default every strategy that this package, or another that is
        installed at the site, registers; each message is still judged by what follows.
    tasks : tuple of str, optional
        Of these strategies, what the site may be asked for. By default anything.
    studies : tuple of str, optional
        The site takes part in runs whose run config names one of these under ``study``, and in no others. The name is
        the server's word; who may send runs at all is for ``--trusted-entities``.
    unprotected : tuple of "sums", "centers", "codes" or "rows", default=()
        The kinds of messages that may leave without noise. Nothing limits what such messages tell together.
    row_count : bool, default=False
        Whether the exact number of rows may leave where the guarantee is for rows that are replaced: as a count, as the
        length of an array with an entry for every row, and in what is computed from rows that carry noise. Only then do
        refusals depend on it. Arrays of the kinds that ``unprotected`` lists show it in any case.
    evaluations : int, default=0
        How many times, in all, a model may be evaluated on the rows: its cost and a table of classes, exact.
    epsilon_per_run, delta_per_run : float, default=1 and 1e-6
        The largest budget of one run, for one row of this site.
    epsilon, delta : float, default=1 and 1e-6
        The largest budget of all runs on a data set together, added up.
    relations : tuple of "add-or-remove" or "replace", default=("add-or-remove",)
        What a run may promise: that a row is there or not is hidden, or only which of two rows it is. The second
        shows how many rows there are, and costs the same epsilon.
    least_noise_multiplier : float, default=0.5
        Of any one array: its noise over how far one row can move it, as the site computes it from its own clipping.
    most_shares : int, default=1
        Into how many shares noise may be divided (noise="clients"): as many as there are sites whose shares you count
        on, and a server that sees nothing but the sum. 1 accepts all of the noise, and no share.
    trusts_server_noise : bool, default=False
        Whether sums may leave without noise because the server promises to add it. The site cannot check that; the
        ledger calls such an epsilon the server's claim.
    fewest_rows : int, default=50
        With fewer rows the site answers nothing. That it has so many is all that a refusal may tell of their number.
    fewest_clients : int, default=2
        How many clients a round has to ask, as the server says.
    """

    strategies: tuple[str, ...] | None = None
    tasks: tuple[str, ...] | None = None
    studies: tuple[str, ...] | None = None
    unprotected: tuple[Kind, ...] = ()
    row_count: bool = False
    evaluations: Annotated[int, Field(ge=0)] = 0
    epsilon_per_run: Positive = 1.0
    delta_per_run: Delta = 1e-6
    epsilon: Positive = 1.0
    delta: Delta = 1e-6
    relations: tuple[Relation, ...] = ("add-or-remove",)
    least_noise_multiplier: Positive = 0.5
    most_shares: Number = 1
    trusts_server_noise: bool = False
    fewest_rows: Number = 50
    fewest_clients: Number = 2

    def check_run(self, strategies: list[str], study: str) -> None:
        """Raise Refused unless the site takes part in such a run.

        Parameters
        ----------
        strategies : list of str
            That the run config names.
        study : str
            As well; empty where it names none.
        """
        if self.studies is not None and study not in self.studies:
            raise Refused(f"the run is of the study '{study}'; studies in the policy lists {', '.join(self.studies)}.")
        if self.strategies is not None and not strategies:
            raise Refused(f"the run names no strategy; strategies in the policy lists {', '.join(self.strategies)}.")
        for name in strategies:
            if self.strategies is not None and name not in self.strategies:
                raise Refused(f"the run is of {name}; strategies in the policy lists {', '.join(self.strategies)}.")
            if self.strategies is None and ":" in name:
                raise Refused(f"the run is of {name}, a class of some module; strategies in the policy must list it.")

    def known_rows(self, n_rows: int) -> int:
        """Return how many rows of a site with this number a refusal may depend on: those that are public."""
        return n_rows if self.row_count else self.fewest_rows

    def check_task(self, request: Request) -> None:
        """Raise Refused unless the site answers this task, of so many clients, with so many shares of noise."""
        task = request.answer.task
        if self.tasks is not None and task not in self.tasks:
            raise Refused(f"'{task}' is asked for; tasks in the policy lists {', '.join(self.tasks)}.")
        if request.n_clients < self.fewest_clients:
            raise Refused(
                f"'{task}' is asked of {request.n_clients} clients; fewest_clients in the policy is "
                f"{self.fewest_clients}."
            )
        if not 1 <= request.n_shares <= self.most_shares:
            raise Refused(
                f"'{task}' would leave with one of {request.n_shares} shares of its noise; most_shares in the policy "
                f"is {self.most_shares}."
            )


class Limits(_Table):
    """What others may cost the site. Each is decided by the message and by what is written here, never by the rows.

    Parameters
    ----------
    most_rows : int, default=1000000
        How many rows the site may have: a public bound, with which work is computed. With more it does not start.
    most_work : float, default=1e14
        Of a message: ``most_rows``, times the entries of the arrays that it sends, times its steps.
    most_steps : int, default=1000000
        Of a message: the product of what it asks to be made or repeated so many times, as epochs or prototypes.
    message_mb : int, default=64
        The size of a message, of which each entry of an array counts for 8 bytes.
    runs_per_day, answers_per_run : int, default=50 and 10000
        How many runs may begin within 24 hours, and how many answers a run may have.
    kept_mb : int, default=4096
        The size of all messages and answers of runs that are kept, see ``keep_days``. What is kept of the rows besides,
        a few copies for each run, is not counted, as it would tell of their number.
    log_mb : int, default=16
        The size of ``audit.jsonl``. Then it becomes ``audit.1.jsonl``, in place of the one before.
    memory_mb, cpu_seconds : int, default=16384 and 3600
        What the process that answers one message may take of memory, and of the processor's time, before the system
        ends it. What was computed then counts as spent.
    """

    most_rows: Number = 1_000_000
    most_work: Positive = 1e14
    most_steps: Number = 1_000_000
    message_mb: Number = 64
    runs_per_day: Number = 50
    answers_per_run: Number = 10_000
    kept_mb: Number = 4096
    log_mb: Number = 16
    memory_mb: Number = 16_384
    cpu_seconds: Number = 3600


class SiteSettings(_Table):
    """A site, as ``site.toml`` describes it.

    Parameters
    ----------
    name : str
        What the site is called.
    data : str
        The file of its rows; relative to the folder of ``site.toml``. With a query the database that it asks: a URL as
        SQLAlchemy takes it, a DuckDB file, or "duckdb://" for files that the query names.
    query : str, optional
        What is read from the database, in SQL.
    columns : tuple of str, optional
        The columns to cluster by; all by default.
    label_column : str, optional
        A column of known classes, for the evaluation alone. None by default, whatever a server asks for.
    id_column : str, optional
        A column that tells the rows apart, for the site's own file of labels. It never leaves.
    most_classes : int, default=20
        A label column of more different values is refused: it may be a name or a number of a person.
    schema : str, optional
        A file that says what the columns are, see ``docs/tables.md``: a run with another schema is refused. So is any
        run with a schema where this is left out: whether rows fit a schema of a server's would tell of them.
    data_set : str, optional
        Under which name the ledger adds budgets up; the path of the file by default. Two files with the same people
        need one name.
    folder : str, default="site"
        Where the site keeps its ledger, answers and results; relative to the folder of ``site.toml``.
    keep_days : int, default=30
        For how long the answers and the memory of a run are kept, so that a run can go on after an interruption.
    policy : Policy
    limits : Limits
    """

    name: Annotated[str, Field(min_length=1)]
    data: Annotated[str, Field(min_length=1)]
    query: Annotated[str, Field(min_length=1)] | None = None
    columns: tuple[str, ...] | None = None
    label_column: str | None = None
    id_column: str | None = None
    most_classes: Number = 20
    schema_file: str | None = Field(default=None, alias="schema")
    data_set: str | None = None
    folder: str = "site"
    keep_days: Number = 30
    policy: Policy = Policy()
    limits: Limits = Limits()

    @field_validator("columns")
    @classmethod
    def _some_columns(cls, columns: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if columns == ():
            raise ValueError("name a column, or leave it out for all")
        return columns

    @classmethod
    def from_toml(cls, path: str | Path) -> Self:
        """Read a ``site.toml``; what is relative in it is relative to its folder.

        Raises
        ------
        ValueError
            If it is not TOML, or if something in it is unknown or cannot be right.
        """
        path = Path(path).absolute()
        return cls.checked(read_toml(path, "correct it"), str(path), path.parent)

    @classmethod
    def checked(cls, given: dict[str, Any], where: str, base: Path) -> Self:
        """Return the settings that a table of names and values gives.

        Parameters
        ----------
        given : dict
        where : str
            From where it is, for messages.
        base : Path
            The folder to which paths in it are relative.

        Raises
        ------
        ValueError
            If something in it is unknown or cannot be right.
        """
        try:
            found = cls.model_validate(given)
        except ValidationError as error:
            wrong = [f"{'.'.join(map(str, one['loc']))}: {one['msg'].lower()}" for one in error.errors()]
            raise ValueError(f"{where}: {'; '.join(wrong)}.") from None
        data = found.data if "://" in found.data else str(base / found.data)
        schema = None if found.schema_file is None else str(base / found.schema_file)
        return found.model_copy(
            update={
                "data": data,
                "schema_file": schema,
                "data_set": found.data_set or re.sub("//[^@/]*@", "//", data),  # without a password
                "folder": str(base / found.folder),
            }
        )
