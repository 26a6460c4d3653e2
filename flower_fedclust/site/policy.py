"""``site.toml``, written by the operator of a site: what the site is, what it answers, and what others may cost it.

Each key is a field of one of four classes: :class:`SiteSettings` (the site and its rows),
:class:`Policy` (which questions the site answers), :class:`Limits` (how much work a message may
cause) and :class:`MetricsSettings`.

The time and the memory that an answer takes would reveal something about the rows. So whether a
message is refused depends only on its content and on bounds that the operator has made public,
never on the rows. The system also limits the process of each message, but these limits are far
higher.
"""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from flwr.common import Parameters
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from flower_fedclust.engine.client import Request
from flower_fedclust.engine.rounds import Kind
from flower_fedclust.engine.wire import decode
from flower_fedclust.outside import parse_json, read_toml
from flower_fedclust.privacy.accounting import Plan
from flower_fedclust.privacy.releases import Relation
from flower_fedclust.tables.floors import FLOOR

#: The most characters of: a name or a text argument (run, study, task, client half); all texts of a message together
#: (schema, plan and so on); a text from others that is written into a log, the ledger or a table.
LONGEST_NAME, LONGEST_TEXT, LONGEST_SAID = 200, 2**20, 500

#: The largest binary exponent that a message may ask for; floats do not have larger ones.
LARGEST_EXPONENT = 1100

#: The tasks whose sums a run uses to print numbers of rows.
DESCRIBES = ("description", "plain_description", "survival", "plain_survival")

#: The bytes for which an entry of an array counts, whatever its type, because it may become a float64.
ENTRY = 8

MEGABYTE = 10**6
DAY = 86400

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Delta = Annotated[float, Field(gt=0, lt=1)]
Number = Annotated[int, Field(ge=1)]


#: Unit of protection -> the word for whom an epsilon protects.
WHO = {"record": "row", "subject": "person"}


class Refused(Exception):  # noqa: N818
    """The site does not answer. The message is for its operator; the server is told only one word."""

    kind = "policy"  #: The label under which the metrics count this refusal.


class TooMuch(Refused):
    """A message asks for more than the limits allow, or cannot be read."""

    kind = "limits"


class _Table(BaseModel):
    """Base of the tables of ``site.toml``: an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Policy(_Table):
    """The questions that a site answers. docs/policy.md explains each key. The defaults are the careful choices."""

    #: The strategies that the site takes part in, by default all that are installed. Only the client halves of these
    #: strategies answer.
    strategies: tuple[str, ...] | None = None
    #: The tasks of these strategies that the site answers, by default all.
    tasks: tuple[str, ...] | None = None
    #: The names of studies: the run config must have one of these under ``study``. The server chooses what stands
    #: there.
    studies: tuple[str, ...] | None = None
    #: The kinds of messages that may leave without noise. Nothing limits what such messages together reveal.
    unprotected: tuple[Kind, ...] = ()
    #: Whether the exact number of rows may leave, in runs whose guarantee is about rows that are replaced: as a
    #: count, as the length of an array, or in anything computed from rows that carry noise. If it is false, no
    #: refusal depends on the exact number.
    row_count: bool = False
    #: How many times in total a model may be evaluated on the rows, which reveals its exact cost and its table of
    #: classes.
    evaluations: Annotated[int, Field(ge=0)] = 0
    #: The largest budget of one run, for one row of this site.
    epsilon_per_run: Positive = 1.0
    delta_per_run: Delta = 1e-6
    #: The largest budget of all runs on a data set together, added up.
    epsilon: Positive = 1.0
    delta: Delta = 1e-6
    #: The neighboring relations that a run's guarantee may use. With "add-or-remove" the guarantee hides whether a
    #: row is there, with "replace" only which of two possible rows is there.
    relations: tuple[Relation, ...] = ("add-or-remove",)
    #: The smallest noise of an array, relative to the largest change that one row can make. The site computes this
    #: change from its own clipping.
    least_noise_multiplier: Positive = 0.5
    #: Into how many shares the noise may be divided among clients (noise="clients"). With 1, this site adds all noise
    #: itself.
    most_shares: Number = 1
    #: Whether sums may leave because the server promises to add noise. The site cannot check that.
    trusts_server_noise: bool = False
    #: With fewer rows than this, the site answers nothing. A refusal reveals nothing else about the number of rows.
    fewest_rows: Number = 50
    #: With fewer persons than this, a site with a subject_column answers nothing.
    fewest_subjects: Number = 50
    #: A site with more rows than this takes part with a fixed random sample of so many rows, so that it has no more
    #: weight than they give. With a subject_column, so many persons are drawn, each with all rows.
    sample: Number | None = None
    #: The smallest number of rows that a run may print about clusters and their survival. The site believes what the
    #: server says about this.
    floor: Annotated[int, Field(ge=0)] = FLOOR
    #: The smallest number of clients that a round may ask. The site believes the number that the server names.
    fewest_clients: Number = 2
    #: "required": whatever depends on the rows leaves the site masked, for a secure sum, except for the number of
    #: rows if row_count allows it.
    secure: Literal["required"] | None = None
    #: "studies": each study waits until the operator approves it, for at most seven days.
    approve: Literal["studies"] | None = None

    def check_run(self, strategies: list[str], study: str) -> None:
        """Raise Refused unless the site takes part in a run with these strategies and this study.

        The run config names ``study`` and ``strategies``, so the server has chosen them.
        """
        if self.studies is not None and study not in self.studies:
            raise Refused(
                f"the run's study is '{study}'; studies in the policy lists {', '.join(self.studies)}."
            )
        if self.strategies is not None and not strategies:
            raise Refused(
                f"the run names no strategy; strategies in the policy lists {', '.join(self.strategies)}."
            )
        for name in strategies:
            if self.strategies is not None and name not in self.strategies:
                raise Refused(
                    f"the run names {name}; strategies in the policy lists {', '.join(self.strategies)}."
                )
            if self.strategies is None and ":" in name:
                raise Refused(
                    f"the run names {name}, a class of some module; strategies in the policy must list it."
                )

    def check_floor(self, task: str, config: Mapping[str, Any]) -> None:
        """Raise Refused if a run would print numbers of rows below the policy's floor."""
        if task not in DESCRIBES:
            return
        arguments = parse_json(str(config.get("arguments", "{}")))
        stated = arguments.get("floor", 0) if isinstance(arguments, dict) else 0
        if not isinstance(stated, int) or stated < self.floor:
            raise Refused(
                f"'{task}' would print numbers of rows below the site's floor; floor in the policy is {self.floor}, so "
                f"the run needs floor = {self.floor} or more."
            )

    def epsilon_of(self, plan: Plan) -> float:
        """Return the epsilon that a plan costs one row of the site.

        If the site takes part with a sample, a row that is added or removed also moves another row
        out of the sample, or into it.
        """
        return plan.epsilon_of_row(self.delta_per_run, in_sample=self.sample is not None)

    def known_rows(self, n_rows: int) -> int:
        """Return the number of rows on which refusals may depend: the true one only if row_count is true."""
        return n_rows if self.row_count else self.fewest_rows

    def too_few(self, n_rows: int, n_subjects: int) -> Iterator[str]:
        """Yield why a table has too few rows or, if rows name their persons, too few persons."""
        if n_rows < self.fewest_rows:
            yield f"has {n_rows} rows; fewest_rows in the policy is {self.fewest_rows}"
        if 0 < n_subjects < self.fewest_subjects:
            yield f"has rows of {n_subjects} persons; fewest_subjects in the policy is {self.fewest_subjects}"

    def check_task(self, request: Request) -> None:
        """Raise Refused unless the policy allows the task, the number of clients, and the shares of noise."""
        task = request.answer.task
        if self.tasks is not None and task not in self.tasks:
            raise Refused(
                f"the task is '{task}'; tasks in the policy lists {', '.join(self.tasks)}."
            )
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


def whom(plan: Plan) -> Literal["record", "subject"]:
    """Return whom the epsilon of a site protects.

    In a run that protects whole clients, the epsilon is computed for a single row of the site.
    """
    return "subject" if plan.unit == "subject" else "record"


def unit_of(entry: Mapping[str, Any]) -> Literal["record", "subject"]:
    """Return whom the guarantee in an entry of a ledger protects: a record, unless the entry names subjects."""
    return "subject" if entry.get("unit") == "subject" else "record"


class Limits(_Table):
    """Limits on the work and the space that others may cost the site."""

    #: The largest number of rows: a public bound, from which work is computed. With more rows the site does not
    #: start.
    most_rows: Number = 1_000_000
    #: The largest work of a message: ``most_rows``, times the entries of its arrays, times its steps.
    most_work: Positive = 1e14
    #: A message says how many things to make and how often to repeat something (prototypes, epochs): the largest
    #: product of all these numbers.
    most_steps: Number = 1_000_000
    #: The largest size of a message; each entry of an array counts as 8 bytes.
    message_mb: Number = 64
    #: How many runs may begin within 24 hours, and how many answers a run may have.
    runs_per_day: Number = 50
    answers_per_run: Number = 10_000
    #: The largest size of all kept messages and answers. What a client remembers of its rows, a few copies for each
    #: run, does not count, because its size would reveal the number of rows.
    kept_mb: Number = 4096
    #: The largest size of ``audit.jsonl``. A full log replaces ``audit.1.jsonl``.
    log_mb: Number = 16
    #: The size of the rows as numbers, in megabytes, above which the table stays in its files and is read in batches
    #: in every round.
    rows_mb: Number = 1024
    #: The threads that compute an answer that is a sum over rows; by default one for each core.
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    #: Where answers that are sums over rows are computed. "cuda" means a GPU, which gives the same bits.
    device: Annotated[str, Field(pattern=r"^(cpu|torch|cuda(:\d{1,2})?)$")] = "cpu"
    #: The memory and the processor time that the process of one message may use. If the system ends it, its answer
    #: counts as spent.
    memory_mb: Number = 16_384
    cpu_seconds: Number = 3600


class MetricsSettings(_Table):
    """Where ``fedclust site`` serves metrics and the health of the site."""

    address: str = "127.0.0.1"
    port: Annotated[int, Field(ge=1, le=65535)] = 9464


class SiteSettings(_Table):
    """A site, as ``site.toml`` describes it. Paths are relative to the file's folder."""

    name: Annotated[str, Field(min_length=1)]
    #: The file with the rows. With a query, the database: a URL for SQLAlchemy, a DuckDB file, or "duckdb://" if the
    #: query names files.
    data: Annotated[str, Field(min_length=1)]
    query: Annotated[str, Field(min_length=1)] | None = None
    #: The columns to cluster by; all by default.
    columns: tuple[str, ...] | None = None
    #: A column of known classes, used only for the evaluation. By default there is none, whatever a server asks for.
    label_column: str | None = None
    #: A column of row ids, for the site's own file of labels. It never leaves the site.
    id_column: str | None = None
    #: A column of text or integers that says which person a row is about, if a person may have several rows; by
    #: default the schema's. It never leaves the site. With such a column, runs that protect single rows are refused.
    subject_column: str | None = None
    #: A label column with more different values than this is refused: it may hold names or ID numbers.
    most_classes: Number = 20
    #: A file that describes the columns. Runs with another schema are refused. Without this file, every run with a
    #: schema is refused, because whether rows fit a server's schema would reveal something about them.
    schema_file: str | None = Field(default=None, alias="schema")
    #: The name under which the ledger adds up what runs have spent on these rows, by default the path of the file.
    #: Files about the same people must have the same name.
    data_set: str | None = None
    #: Where the site keeps its ledger, answers and results.
    folder: str = "site"
    #: How long the answers and the memory of a run are kept, so that a run can continue after an interruption.
    keep_days: Number = 30
    #: For secure sums: the public keys of the other sites, by name. By default the site trusts the keys that the
    #: server passes on.
    peers: dict[str, Annotated[str, Field(pattern="^[0-9a-f]{64}$")]] | None = None
    policy: Policy = Policy()
    limits: Limits = Limits()
    #: Where metrics are served; without this table, there are none.
    metrics: MetricsSettings | None = None

    @field_validator("columns")
    @classmethod
    def _some_columns(cls, columns: tuple[str, ...] | None) -> tuple[str, ...] | None:
        """Refuse an empty list of columns."""
        if columns == ():
            raise ValueError("name a column, or leave it out for all")
        return columns

    @classmethod
    def from_toml(cls, path: str | Path) -> Self:
        """Read a ``site.toml``.

        Raises a ValueError if it is not TOML, or if a setting is unknown or invalid; the message
        names every such setting.
        """
        path = Path(path).absolute()
        return cls.checked(read_toml(path, "correct it"), str(path), path.parent)

    @classmethod
    def checked(cls, content: dict[str, Any], where: str, base: Path) -> Self:
        """Return checked settings.

        ``where`` is the file that errors name, and ``base`` the folder to which paths are relative.
        """
        try:
            settings = cls.model_validate(content)
        except ValidationError as error:
            wrong = [
                f"{'.'.join(map(str, fault['loc']))}: {fault['msg'].lower()}"
                for fault in error.errors()
            ]
            raise ValueError(f"{where}: {'; '.join(wrong)}.") from None
        data = settings.data if "://" in settings.data else str(base / settings.data)
        schema = None if settings.schema_file is None else str(base / settings.schema_file)
        return settings.model_copy(
            update={
                "data": data,
                "schema_file": schema,
                # By default the path, or the URL without its password.
                "data_set": settings.data_set or re.sub("//[^@/]*@", "//", data),
                "folder": str(base / settings.folder),
            }
        )


# Checks of how much work others may cause.


def check_names(**names: str) -> None:
    """Raise Refused unless each of these names is short and printable, because the ledger will hold them."""
    for label, name in names.items():
        if len(name) > LONGEST_NAME:
            raise TooMuch(
                f"the {label} has a name of {len(name)} characters; {LONGEST_NAME} is the most."
            )
        if not name.isprintable():
            raise TooMuch(f"the {label} has a name with characters that do not print.")


def check_message(limits: Limits, config: Mapping[str, Any], tensors: Sequence[bytes]) -> None:
    """Raise Refused if a message is too large, or asks for too much work.

    Work is rows times entries times steps. Rows are the most rows that the site may have. Entries
    are counted over all arrays of the message. Steps are the product of all arguments that say how
    many things are made or how often something is repeated. Such arguments are called ``n_...``;
    tests/site/test_site_limits.py checks that no task has others.
    """
    texts = sum(len(value) for value in config.values() if isinstance(value, (str, bytes)))
    if texts > LONGEST_TEXT:
        raise TooMuch(f"the message has texts of {texts} characters; {LONGEST_TEXT} is the most.")
    if size_of_message(config, tensors) > limits.message_mb * MEGABYTE:
        raise TooMuch(f"the message is larger than message_mb in the limits, {limits.message_mb}.")
    n_entries = 0
    for array in decode(Parameters(list(tensors), "numpy.ndarray")):
        if array.dtype.kind not in "biuf" or array.dtype.itemsize > ENTRY:
            raise TooMuch(
                f"the message has an array of {array.dtype.str[:20]}; only plain numbers are read."
            )
        n_entries += math.prod(max(length, 1) for length in array.shape)
    if ENTRY * n_entries > limits.message_mb * MEGABYTE:
        raise TooMuch(
            f"the message has {n_entries} entries, more than message_mb in the limits allows."
        )
    steps = math.prod(_amounts(config))
    if steps > limits.most_steps:
        raise TooMuch(
            f"the message asks for {steps:.3g} steps; most_steps in the limits is {limits.most_steps}."
        )
    work = limits.most_rows * max(n_entries, 1) * steps
    if work > limits.most_work:
        raise TooMuch(
            f"the message asks for work of {work:.3g}; most_work in the limits is {limits.most_work:g}."
        )


def _amounts(config: Mapping[str, Any]) -> Iterable[float]:
    """Yield the arguments that are amounts; raise Refused if an argument is malformed or far too large."""
    if "view" in config:
        of_view = parse_json(str(config["view"]))
        if not isinstance(of_view, dict):
            raise TooMuch("the view of the message cannot be read.")
        yield from _amounts(of_view)
    arguments = parse_json(str(config.get("arguments", "{}")))
    if not isinstance(arguments, dict):
        raise TooMuch("the arguments of the message have no names.")
    for name, value in arguments.items():
        if not isinstance(value, (bool, int, float, str)) or len(name) > LONGEST_NAME:
            raise TooMuch("an argument of the message is neither a number nor a text.")
        if isinstance(value, str):
            check_names(argument=value)
        elif is_amount(name):
            if not abs(value) < 2**63:
                raise TooMuch(f"'{printable(name)}' is not a usable amount.")
            yield max(abs(value), 1)
        elif isinstance(value, int) and abs(value) > (
            LARGEST_EXPONENT if is_exponent(name) else 2**63
        ):
            raise TooMuch(f"'{printable(name)}' is too large.")


def is_amount(name: str) -> bool:
    """Tell whether an argument says how many things are made, or how often something is repeated."""
    return name.startswith("n_")


def is_exponent(name: str) -> bool:
    """Tell whether an argument is a power of two."""
    return name == "exponent" or name.endswith("_bits")


def size_of_message(config: Mapping[str, Any], tensors: Sequence[bytes]) -> int:
    """Return how many bytes a message takes if the site keeps it."""
    return sum(map(len, tensors)) + sum(
        len(value) for value in config.values() if isinstance(value, (str, bytes))
    )


def check_run(
    limits: Limits, entries: Sequence[Mapping[str, Any]], run: str, keep_days: int
) -> None:
    """Raise Refused if a run may not begin, or may not have another answer.

    ``entries`` holds all entries of the ledger. There are limits on the runs per day, on the
    answers of a run, and on the bytes that are kept.
    """
    begun: dict[str, str] = {}
    for entry in entries:
        begun.setdefault(entry["run"], entry["time"])
    n_begun = sum(first >= ago(1) for first in begun.values())
    if run not in begun and n_begun >= limits.runs_per_day:
        raise TooMuch(
            f"{n_begun} runs have begun within a day; runs_per_day in the limits is {limits.runs_per_day}."
        )
    n_answers = sum(entry["run"] == run for entry in entries)
    if n_answers >= limits.answers_per_run:
        raise TooMuch(
            f"the run has had {n_answers} answers; answers_per_run in the limits is {limits.answers_per_run}."
        )
    # A run's answers are kept for keep_days after its last answer.
    last = {entry["run"]: entry["time"] for entry in entries}
    kept = sum(
        entry.get("n_bytes", 0) + entry.get("n_asked", 0)
        for entry in entries
        if last[entry["run"]] >= ago(keep_days)
    )
    if kept > limits.kept_mb * MEGABYTE:
        raise TooMuch(
            f"answers of {kept / MEGABYTE:.0f} MB are kept; kept_mb in the limits is {limits.kept_mb}."
        )


def ago(days: float) -> str:
    """Return the time so many days ago, written as in the ledger."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - days * DAY))


def restrict_process(limits: Limits) -> None:
    """Make the system end this process if it exceeds the limits for memory or processor time."""
    try:
        import resource
    except ImportError:  # not a POSIX system
        return
    # With CUDA, only the memory that the process fills is limited, because CUDA reserves addresses for all memory of
    # the machine and of the card.
    of_memory = resource.RLIMIT_AS if limits.device == "cpu" else resource.RLIMIT_DATA
    for kind, most in (
        (of_memory, limits.memory_mb * MEGABYTE),
        (resource.RLIMIT_CPU, limits.cpu_seconds),
    ):
        _, hard = resource.getrlimit(kind)
        resource.setrlimit(
            kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard)
        )


def peak_memory() -> int | None:
    """Return the most memory that this process has used, in megabytes; None if the system does not say."""
    try:
        import resource
    except ImportError:  # not a POSIX system
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit // MEGABYTE


def printable(value: Any) -> Any:
    """Return a text from others as one short printable line; return anything but a text unchanged."""
    if not isinstance(value, str):
        return value
    short = (
        value
        if len(value) <= LONGEST_SAID
        else f"{value[:LONGEST_SAID]}… ({len(value)} characters)"
    )
    return "".join(
        character
        if character.isprintable()
        else character.encode("unicode_escape", "backslashreplace").decode()
        for character in short
    )
