"""Find everything that is wrong with a site's setup; nothing is started or written."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from pydantic import BaseModel, ValidationError

from flower_fedclust.names import look_up
from flower_fedclust.outside import read_toml
from flower_fedclust.privacy.releases import Relation
from flower_fedclust.site.connection import refusals
from flower_fedclust.site.metrics import MISSING
from flower_fedclust.site.policy import Limits, MetricsSettings, Policy, SiteSettings
from flower_fedclust.site.supernode import check_flower, check_options

if TYPE_CHECKING:
    from flower_fedclust.engine import Entry
    from flower_fedclust.engine.client_data import ClientData
    from flower_fedclust.engine.rounds import Sent

#: The oldest and the newest version of Python (major, minor) with which a site is tested.
PYTHONS = ((3, 11), (3, 13))

#: Values that replace missing or wrong settings, so that all other settings can still be checked.
STAND_IN = {"name": "unnamed", "data": "missing"}

TABLES: dict[str, type[BaseModel]] = {
    "policy": Policy,
    "limits": Limits,
    "metrics": MetricsSettings,
}


def findings(site_toml: Path, options: Sequence[str] = ()) -> list[str]:
    """Return all that is wrong with a site's setup, each as a sentence with the place and the remedy.

    ``options`` are the options of ``flower-supernode``. If they name keys or certificates, these
    are checked, too.
    """
    problems: list[str] = []
    with _collected(problems):
        check_flower()
    if not PYTHONS[0] <= sys.version_info[:2] <= PYTHONS[1]:
        first, last = (".".join(map(str, version)) for version in PYTHONS)
        problems.append(
            f"Python {sys.version.split()[0]} runs this site; use a Python from {first} to {last}."
        )
    problems += _of_options(options)
    content: dict[str, Any] = {}
    with _collected(problems):
        content = read_toml(site_toml, "correct it")
    if not content:
        return problems or [f"{site_toml} has no settings; docs/policy.md shows a complete file."]
    if site_toml.stat().st_mode & stat.S_IWOTH:
        problems.append(f"{site_toml} can be changed by every account; chmod o-w {site_toml}")
    settings, wrong = _settings(content, site_toml.absolute())
    problems += wrong
    # imported only here, because the import needs a supported version of Flower
    from flower_fedclust.engine.roster import LONGEST_NAME, is_name

    if not is_name(settings.name):
        problems.append(
            f"name in site.toml: servers refuse it; choose at most {LONGEST_NAME} characters that print."
        )
    problems += _of_masks(settings)
    if content.get("data"):
        from flower_fedclust.data.files import with_rows_of_spreadsheet

        problems += [
            with_rows_of_spreadsheet(reason, Path(settings.data))
            for reason in checked_rows(settings)[1]
        ]
    problems += _of_folder(settings)
    if settings.metrics is not None and find_spec("prometheus_client") is None:
        problems.append(MISSING)
    return list(dict.fromkeys(problems))


def _settings(content: dict[str, Any], path: Path) -> tuple[SiteSettings, list[str]]:
    """Return the settings, and the findings about wrong settings; each wrong one is replaced by a default.

    So one wrong key does not hide what is wrong with the others. The finding about an unknown key
    names the nearest known one.
    """
    wrong: list[str] = []
    try:
        SiteSettings.model_validate(content)
    except ValidationError as invalid:
        for error in invalid.errors():
            table, keys = content, [str(key) for key in error["loc"]]
            while isinstance(table.get(keys[0]), dict) and len(keys) > 1:
                table = table[keys.pop(0)]
            table.pop(keys[0], None)
            said, where = error["msg"].lower(), ".".join(map(str, error["loc"]))
            if error["type"] == "extra_forbidden":
                fields = TABLES.get(
                    str(error["loc"][0]) if len(error["loc"]) > 1 else "", SiteSettings
                ).model_fields
                names: list[str] = []
                with _collected(names):
                    look_up(
                        keys[0],
                        {field.alias or name: None for name, field in fields.items()},
                        "setting",
                    )
                said = names[0]
            wrong.append(f"{path}: {where}: {said}{'' if said[-1] in '.?' else '; correct it.'}")
    return SiteSettings.checked({**STAND_IN, **content}, str(path), path.parent), wrong


def _of_masks(settings: SiteSettings) -> Iterator[str]:
    """Yield findings about secure sums: no public keys of other sites are set, or noise is shared without masks."""
    policy = settings.policy
    if policy.secure is not None and settings.peers is None:
        yield (
            "secure in the policy is 'required', and without peers the site believes the server whose keys these are: "
            "one that hands out its own reads every answer; list the other sites' keys under [peers]."
        )
    if policy.secure is None and policy.most_shares > 1:
        yield (
            f"most_shares in the policy is {policy.most_shares}, so answers may leave with a share of their noise and "
            'no mask; set secure = "required".'
        )


def _of_options(options: Sequence[str]) -> Iterator[str]:
    """Yield the findings about the options of ``flower-supernode``.

    Key files must hold keys of a node and be readable by the site's account only, and certificates
    must not have expired. If nothing is wrong and an address is given, the SuperLink is asked
    whether it lets the site in.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    problems: list[str] = []
    with _collected(problems):
        check_options(options)
    words = [word for option in options for word in option.split("=", 1)]
    named = dict(pairwise(words))
    if (name := named.get("--superlink")) is not None and not name.rpartition(":")[2].isdecimal():
        problems.append(f"--superlink {name}: the port is missing; give HOST:PORT.")
    if (name := named.get("--auth-supernode-private-key")) is not None:
        with _collected(problems):
            key, is_key = Path(name).expanduser().read_bytes(), False
            with _collected([]):
                is_key = isinstance(load_ssh_private_key(key, None), EllipticCurvePrivateKey)
            if not is_key:
                problems.append(
                    f"{name} is no private key of a node; make one with ssh-keygen -t ecdsa -b 384 -f node"
                )
            problems += _of_mode(Path(name).expanduser(), 0o600)
    if (name := named.get("--root-certificates")) is not None:
        with _collected(problems):
            content, dates = Path(name).expanduser().read_bytes(), []
            with _collected([]):
                dates = [
                    certificate.not_valid_after_utc
                    for certificate in x509.load_pem_x509_certificates(content)
                ]
            if not dates:
                problems.append(
                    f"{name} has no certificate; get ca.pem from the operator of the SuperLink."
                )
            problems += [
                f"{name}: a certificate has expired on {date:%Y-%m-%d}; get ca.pem from the operator of the SuperLink."
                for date in dates
                if date < datetime.now(UTC)
            ]
    if named.get("--superlink") is not None and not problems:
        problems += refusals(named, insecure="--insecure" in options)
    yield from problems


def _of_folder(settings: SiteSettings) -> Iterator[str]:
    """Yield the findings about a site's folder: its modes, its ledger, its studies and its budget.

    Files must be readable by the site's account only. The ledger, its head and the kept answers
    must agree, and some budget must be left.
    """
    from flower_fedclust.site.budget import ROUNDING, spent
    from flower_fedclust.site.kept import Kept
    from flower_fedclust.site.ledger import Ledger
    from flower_fedclust.site.studies import Studies

    folder, problems = Path(settings.folder), list[str]()
    with _collected(problems):
        for path in [folder, *sorted(folder.iterdir())] if folder.exists() else ():
            problems += _of_mode(path, 0o700 if path.is_dir() else 0o600)
    ledger = Ledger(folder / "ledger.jsonl")
    with _collected(problems):
        Kept(folder).check(ledger.read(), whole=True)
        ledger.check_head()
    with _collected(problems):
        Studies(settings).read()
    most, total = settings.policy.epsilon, spent(ledger.entries, settings.data_set or "")
    if total.epsilon >= most * ROUNDING:
        problems.append(
            f"{settings.data_set} has spent epsilon {total.epsilon:.4g} of {most:g}, so runs with noise are refused; "
            "raise epsilon in the policy if you accept that, or use other data."
        )
    yield from problems


def _of_mode(path: Path, mode: int) -> Iterator[str]:
    """Yield the findings about the owner and the mode of a private file or folder."""
    if os.name != "posix":
        return
    about = path.stat()
    if os.geteuid() != about.st_uid == 0 and os.access(path, os.R_OK) and not about.st_mode & 0o037:
        return  # a mounted secret that the site's group may read
    if about.st_uid != os.geteuid():
        yield f"{path} belongs to another account; run this check as the site's account, or chown {path}"
    elif stat.S_IMODE(about.st_mode) & 0o077:
        yield f"{path} can be read by other accounts (mode {stat.S_IMODE(about.st_mode):o}); chmod {mode:o} {path}"
    elif about.st_mode & mode != mode:
        yield f"{path} cannot be read and written (mode {stat.S_IMODE(about.st_mode):o}); chmod {mode:o} {path}"


def checked_rows(settings: SiteSettings) -> tuple[ClientData | None, list[str]]:
    """Return a site's rows (None if they cannot be read), and every reason why the site could answer no run.

    The reasons are in the policy, in the number of rows or persons, or in columns that do not fit
    the schema.
    """
    from flower_fedclust.site.app import load_rows

    reasons, data = list[str](), None
    with _collected(reasons):
        data = load_rows(settings)
    has_subjects = (
        settings.subject_column is not None if data is None else data.subjects is not None
    )
    reasons = [*_reasons_of_policy(settings.policy, has_subjects=has_subjects), *reasons]
    if data is not None:
        most, too_few = (
            settings.limits.most_rows,
            settings.policy.too_few(data.n_rows, data.n_subjects),
        )
        reasons += [f"{settings.data_set} {reason}." for reason in too_few]
        if data.n_rows > most:
            reasons.append(
                f"{settings.data_set} has {data.n_rows} rows; most_rows in the limits is {most}."
            )
        with _collected(reasons):
            data.check(data.schema)
            if not data.n_columns:
                reasons.append(f"{settings.data_set} has no columns to cluster by.")
    return data, reasons


def _reasons_of_policy(policy: Policy, *, has_subjects: bool = False) -> Iterator[str]:
    """Yield the reasons in the policy why runs would be refused, such as a strategy that does not exist.

    Nothing here depends on rows. ``has_subjects`` says whether the table names the person of each
    row.
    """
    from flower_fedclust.engine.rounds import Askable
    from flower_fedclust.registry import client_types, find, strategies

    known = []
    for name in strategies() if policy.strategies is None else policy.strategies:
        try:
            find(name)
        except ValueError as error:
            yield f"strategies in the policy: {error}"
        else:
            known.append(name)
    tasks = {
        name: None
        for client in client_types(known)
        for name in dir(client)
        if isinstance(getattr(client, name), Askable)
    }
    for task in (policy.tasks or ()) if known else ():
        try:
            look_up(task, tasks, "task of these strategies called")
        except ValueError as error:
            yield f"tasks in the policy: {error}"
    for name in known if policy.strategies is not None else ():
        yield from _needs_of_strategy(name, policy)
    for key in ("strategies", "tasks", "studies"):
        if getattr(policy, key) == ():
            yield f"{key} in the policy is empty; list some, or leave it out."
    if not has_subjects and "fewest_subjects" in policy.model_fields_set:
        yield "fewest_subjects in the policy counts persons; name the subject_column, which says whose rows they are."
    fewest = "fewest_subjects" if has_subjects else "fewest_rows"
    if policy.sample is not None and policy.sample < getattr(policy, fewest):
        yield f"sample in the policy is {policy.sample}, but {fewest} is {getattr(policy, fewest)}; raise sample."
    for key in ("epsilon", "delta"):
        of_run, of_all = getattr(policy, f"{key}_per_run"), getattr(policy, key)
        if of_run > of_all:
            yield f"{key}_per_run in the policy is {of_run:g}, but {key}, which is for all runs, is {of_all:g}."


def _needs_of_strategy(name: str, policy: Policy) -> Iterator[str]:
    """Yield why no run of a strategy can satisfy the policy, with the settings that it needs.

    A run without a guarantee needs every kind of message that the strategy's client half sends under
    ``unprotected``. A run with a guarantee needs its relation, and ``row_count`` if what it sends
    shows the number of rows.
    A client half of another package may have answers that a run need not ask for, so of these
    strategies only one that may send nothing is named.
    """
    from flower_fedclust.engine.client import ProtocolClient
    from flower_fedclust.engine.rounds import KINDS, Askable
    from flower_fedclust.engine.strategy import PrivateStrategy
    from flower_fedclust.registry import accepted_parameters, find

    entry, allowed = find(name), set(policy.unprotected)
    client = entry.strategy.client_type
    own = [task for task in dir(client) if not hasattr(ProtocolClient, task)]
    answers = [task for task in (getattr(client, one) for one in own) if isinstance(task, Askable)]
    sent = {one.reveals for task in answers for one in task.answer.sends if not one.kept_as}
    is_ours = entry.strategy.__module__.startswith("flower_fedclust")
    if sent <= allowed or (not is_ours and sent & allowed):
        return
    has_guarantee = "epsilon" in accepted_parameters(name) and issubclass(
        entry.strategy, PrivateStrategy
    )
    relation, in_parts = _guarantee_of(entry) if has_guarantee else (None, ())
    exposed = sent
    if has_guarantee:
        # Noise cannot hide whether a row is in a table if an array has an entry for every row.
        by_row = {one.reveals for one in in_parts if one.per == "row" and not one.kept_as}
        exposed = by_row if relation == "add-or-remove" else set()
    if not exposed <= allowed:
        kinds = [kind for kind in KINDS if kind in exposed]
        needed = [kind for kind in KINDS if kind in exposed | allowed]
        yield (
            f"no run of {name} can satisfy the policy: it sends {' and '.join(kinds)} without noise; set unprotected "
            f"= {_as_toml(needed)}, or take {name} out of strategies."
        )
    if relation is not None and relation not in policy.relations:
        both = [one for one in get_args(Relation) if one in (relation, *policy.relations)]
        yield (
            f"no run of {name} can satisfy the policy: its guarantee is for the relation {relation}; set relations = "
            f"{_as_toml(both)}, or take {name} out of strategies."
        )
    counted = {one.reveals for one in in_parts if one.per == "row" or one.counts_rows}
    # Whatever is computed from rows that a client has kept with noise shows how many there are.
    shown = sent if any(one.kept_as for one in in_parts) else counted
    if relation == "replace" and not policy.row_count and not shown <= allowed:
        yield (
            f"no run of {name} can satisfy the policy: what it sends shows the number of rows; set row_count = true, "
            f"or take {name} out of strategies."
        )


def _guarantee_of(entry: Entry) -> tuple[Relation | None, tuple[Sent, ...]]:
    """Return the relation of a strategy's guarantee, and the arrays for which its budget has parts.

    The relation is None, and there are no arrays, if they are not known without rows.
    """
    from flower_fedclust.engine.parts import relation_of
    from flower_fedclust.engine.strategy import PrivateStrategy
    from flower_fedclust.registry import accepted_parameters, make_strategy

    given = {"epsilon": 1.0, "n_clusters": 2, **entry.example}
    accepted = accepted_parameters(entry.strategy)
    with _collected([]):
        strategy = make_strategy(
            entry.strategy, **{key: given[key] for key in given if key in accepted}
        )
        assert isinstance(strategy, PrivateStrategy)
        parts = strategy.parts()
        answers = [answer for part in parts.values() for answer in part.askables]
        arrays = tuple(sent for answer in answers for sent in answer.answer.sends)
        return strategy.relation or relation_of(parts), arrays
    return None, ()


def _as_toml(texts: Sequence[str]) -> str:
    """Return texts as a list in TOML."""
    return json.dumps(list(texts))


@contextmanager
def _collected(reasons: list[str]) -> Iterator[None]:
    """Catch any error of the block, and add its message to ``reasons``.

    Errors of every class are caught, since each database driver has its own classes.
    """
    try:
        yield
    except Exception as error:
        of_file = isinstance(error, OSError) and error.filename
        reasons.append(f"{error.filename}: {error.strerror}." if of_file else str(error))  # type: ignore[attr-defined]
