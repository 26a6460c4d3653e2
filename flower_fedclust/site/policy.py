"""``site.toml``: what a site is and what it answers, written by its operator."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from flower_fedclust.engine.client import Request
from flower_fedclust.engine.rounds import Kind
from flower_fedclust.outside import read_toml
from flower_fedclust.privacy.releases import Relation

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Delta = Annotated[float, Field(gt=0, lt=1)]
Number = Annotated[int, Field(ge=1)]


class Refused(Exception):  # noqa: N818
    """The site does not answer; the message is for its operator, and the server hears one word."""


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Policy(_Table):
    """What a site answers. The defaults are the careful choices.

    Parameters
    ----------
    strategies : tuple of str, optional
        The strategies that the site takes part in. Each run has to name one or several of these, and only their client
        halves answer. A client half answers any of its tasks, including tasks that it shares with other strategies,
        with any parameters. By default every strategy that is registered by a package installed at the site. The other
        settings apply to every message in any case.
    tasks : tuple of str, optional
        The tasks of these strategies that the site answers; by default all.
    studies : tuple of str, optional
        The site only takes part in runs whose run config names one of these under ``study``. The server chooses that
        name; ``--trusted-entities`` controls who may send runs at all.
    unprotected : tuple of "sums", "centers", "codes" or "rows", default=()
        The kinds of messages that may leave without noise. Nothing limits what such messages tell together.
    row_count : bool, default=False
        Whether the exact number of rows may leave if the guarantee is for rows that are replaced: as a count, as the
        length of an array with an entry for every row, and in anything computed from rows that carry noise. Refusals
        depend on the number only if this is true. Arrays of the kinds that ``unprotected`` lists always show it.
    evaluations : int, default=0
        How many times in total a model may be evaluated on the rows: its exact cost and table of classes.
    epsilon_per_run, delta_per_run : float, default=1 and 1e-6
        The largest budget of one run, for one row of this site.
    epsilon, delta : float, default=1 and 1e-6
        The largest budget of all runs on a data set together, added up.
    relations : tuple of "add-or-remove" or "replace", default=("add-or-remove",)
        What a run's guarantee may hide: whether a row is there ("add-or-remove"), or only which of two rows it is
        ("replace"). The second shows the number of rows, and costs the same epsilon.
    least_noise_multiplier : float, default=0.5
        The least noise of any one array, divided by the largest change of the array by one row, which the site computes
        from its own clipping.
    most_shares : int, default=1
        The largest number of shares into which noise may be divided (noise="clients"): the number of sites whose shares
        you rely on, if the server sees only the sum. 1 means that all noise is the site's own.
    trusts_server_noise : bool, default=False
        Whether sums may leave without noise because the server promises to add it. The site cannot check that; the
        ledger calls such an epsilon the server's claim.
    fewest_rows : int, default=50
        With fewer rows the site answers nothing. A refusal tells no more about the number of rows than this.
    fewest_clients : int, default=2
        The smallest number of clients that a round asks, as the server says.
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
        """Raise Refused unless the site takes part in a run whose config names these strategies and this study."""
        if self.studies is not None and study not in self.studies:
            raise Refused(f"the run's study is '{study}'; studies in the policy lists {', '.join(self.studies)}.")
        if self.strategies is not None and not strategies:
            raise Refused(f"the run names no strategy; strategies in the policy lists {', '.join(self.strategies)}.")
        for name in strategies:
            if self.strategies is not None and name not in self.strategies:
                raise Refused(f"the run names {name}; strategies in the policy lists {', '.join(self.strategies)}.")
            if self.strategies is None and ":" in name:
                raise Refused(f"the run names {name}, a class of some module; strategies in the policy must list it.")

    def known_rows(self, n_rows: int) -> int:
        """Return the number of rows that refusals may depend on: the true one only if it is public."""
        return n_rows if self.row_count else self.fewest_rows

    def check_task(self, request: Request) -> None:
        """Raise Refused unless the site answers this task, for so many clients and shares of noise."""
        task = request.answer.task
        if self.tasks is not None and task not in self.tasks:
            raise Refused(f"the task is '{task}'; tasks in the policy lists {', '.join(self.tasks)}.")
        if request.n_clients < self.fewest_clients:
            raise Refused(
                f"the round asks {request.n_clients} clients for '{task}'; fewest_clients in the policy is "
                f"{self.fewest_clients}."
            )
        if not 1 <= request.n_shares <= self.most_shares:
            raise Refused(
                f"'{task}' would leave with one of {request.n_shares} shares of its noise; most_shares in the policy "
                f"is {self.most_shares}."
            )


class Limits(_Table):
    """What others may cost the site. Only the message and these settings decide, never the rows.

    Parameters
    ----------
    most_rows : int, default=1000000
        The largest number of rows of the site: a public bound, from which work is computed. With more rows the site
        does not start.
    most_work : float, default=1e14
        The largest work of a message: ``most_rows``, times the entries of its arrays, times its steps.
    most_steps : int, default=1000000
        The largest number of steps of a message: the product of all numbers of things to make or repeat, such as epochs
        or prototypes.
    message_mb : int, default=64
        The largest size of a message; each entry of an array counts as 8 bytes.
    runs_per_day, answers_per_run : int, default=50 and 10000
        How many runs may begin within 24 hours, and how many answers a run may have.
    kept_mb : int, default=4096
        The largest size of all messages and answers that are kept (see ``keep_days``). What a client remembers of the
        rows, a few copies per run, does not count, because it would show the number of rows.
    log_mb : int, default=16
        The largest size of ``audit.jsonl``. A full log replaces ``audit.1.jsonl``.
    memory_mb, cpu_seconds : int, default=16384 and 3600
        The memory and processor time of the process that answers one message, before the system ends it. A computation
        that is ended counts as spent.
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
        The site's name.
    data : str
        The file of its rows, relative to the folder of ``site.toml``. With a query, the database: a URL for SQLAlchemy,
        a DuckDB file, or "duckdb://" for files that the query names.
    query : str, optional
        The SQL query that reads the rows from the database.
    columns : tuple of str, optional
        The columns to cluster by; all by default.
    label_column : str, optional
        A column of known classes, only for the evaluation. By default there is none, whatever a server asks for.
    id_column : str, optional
        A column of row ids, for the site's own file of labels. It never leaves the site.
    most_classes : int, default=20
        A label column with more different values is refused, because it may hold names or numbers of persons.
    schema : str, optional
        A file that describes the columns, see ``docs/tables.md``. Runs with another schema are refused. Without it, any
        run with a schema is refused, because whether rows fit a server's schema would tell something about them.
    data_set : str, optional
        The name under which the ledger adds up budgets; by default the path of the file. Two files with the same people
        need the same name.
    folder : str, default="site"
        Where the site keeps its ledger, answers and results, relative to the folder of ``site.toml``.
    keep_days : int, default=30
        How long the answers and the memory of a run are kept, so that a run can continue after an interruption.
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
        """Read a ``site.toml``; raise a ValueError if it is not TOML, or if a setting is unknown or invalid."""
        path = Path(path).absolute()
        return cls.checked(read_toml(path, "correct it"), str(path), path.parent)

    @classmethod
    def checked(cls, given: dict[str, Any], where: str, base: Path) -> Self:
        """Return checked settings; errors name ``where`` they are from, and paths are relative to ``base``."""
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
