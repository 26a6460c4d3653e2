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
    """What a site answers; docs/policy.md explains each key. The defaults are the careful choices."""

    #: The strategies that the site takes part in, by default all that are installed. Only their client halves answer.
    strategies: tuple[str, ...] | None = None
    #: The tasks of these strategies that the site answers, by default all.
    tasks: tuple[str, ...] | None = None
    #: What a run config must name under ``study``. The server chooses that name.
    studies: tuple[str, ...] | None = None
    #: The kinds of messages that may leave without noise. Nothing limits what such messages tell together.
    unprotected: tuple[Kind, ...] = ()
    #: Whether the exact number of rows may leave if the guarantee is for rows that are replaced: as a count, as the
    #: length of an array, and in anything computed from rows that carry noise. Only then refusals depend on it.
    row_count: bool = False
    #: How many times in total a model may be evaluated on the rows: its exact cost and table of classes.
    evaluations: Annotated[int, Field(ge=0)] = 0
    #: The largest budget of one run, for one row of this site.
    epsilon_per_run: Positive = 1.0
    delta_per_run: Delta = 1e-6
    #: The largest budget of all runs on a data set together, added up.
    epsilon: Positive = 1.0
    delta: Delta = 1e-6
    #: What a run's guarantee may hide: whether a row is there, or ("replace") only which of two rows it is.
    relations: tuple[Relation, ...] = ("add-or-remove",)
    #: The least noise of any one array, relative to the largest change by one row, from the site's own clipping.
    least_noise_multiplier: Positive = 0.5
    #: Into how many shares noise may be divided (noise="clients"); 1 means that all noise is the site's own.
    most_shares: Number = 1
    #: Whether sums may leave because the server promises to add noise. The site cannot check that.
    trusts_server_noise: bool = False
    #: With fewer rows the site answers nothing. A refusal tells no more about the number of rows than this.
    fewest_rows: Number = 50
    #: The smallest number of clients that a round asks, as the server says.
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
    """What others may cost the site. Only the message and these settings decide, never the rows."""

    #: The largest number of rows: a public bound, from which work is computed. With more the site does not start.
    most_rows: Number = 1_000_000
    #: The largest work of a message: ``most_rows``, times the entries of its arrays, times its steps.
    most_work: Positive = 1e14
    #: The largest product of all numbers of things to make or repeat in a message, such as epochs or prototypes.
    most_steps: Number = 1_000_000
    #: The largest size of a message; each entry of an array counts as 8 bytes.
    message_mb: Number = 64
    #: How many runs may begin within 24 hours, and how many answers a run may have.
    runs_per_day: Number = 50
    answers_per_run: Number = 10_000
    #: The largest size of all messages and answers that are kept. What a client remembers of the rows, a few copies per
    #: run, does not count, because it would show the number of rows.
    kept_mb: Number = 4096
    #: The largest size of ``audit.jsonl``. A full log replaces ``audit.1.jsonl``.
    log_mb: Number = 16
    #: Memory and processor time of the process of one message. A computation that is ended counts as spent.
    memory_mb: Number = 16_384
    cpu_seconds: Number = 3600


class SiteSettings(_Table):
    """A site, as ``site.toml`` describes it. Paths are relative to the file's folder."""

    name: Annotated[str, Field(min_length=1)]
    #: The file of its rows. With a query, the database: a URL for SQLAlchemy, a DuckDB file, or "duckdb://" for files
    #: that the query names.
    data: Annotated[str, Field(min_length=1)]
    query: Annotated[str, Field(min_length=1)] | None = None
    #: The columns to cluster by; all by default.
    columns: tuple[str, ...] | None = None
    #: A column of known classes, only for the evaluation. There is none by default, whatever a server asks for.
    label_column: str | None = None
    #: A column of row ids, for the site's own file of labels. It never leaves the site.
    id_column: str | None = None
    #: A label column with more different values is refused, because it may hold names or numbers of persons.
    most_classes: Number = 20
    #: A file that describes the columns. Runs with another schema are refused. Without it, any run with a schema is
    #: refused, because whether rows fit a server's schema would tell something about them.
    schema_file: str | None = Field(default=None, alias="schema")
    #: The name under which the ledger adds up budgets, by default the path of the file. Files with the same people need
    #: the same name.
    data_set: str | None = None
    #: Where the site keeps its ledger, answers and results.
    folder: str = "site"
    #: How long the answers and the memory of a run are kept, so that a run can continue after an interruption.
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
