"""Files from outside: whatever one holds, its reader raises one sentence of ours that names it and holds no value."""

import ast
import json
import os
import random
import shutil
import sys
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import flower_fedclust as fc
from flower_fedclust import DataError, cli
from flower_fedclust.data import read_folder, read_query, read_table
from flower_fedclust.engine import ProtocolError
from flower_fedclust.harness.compare import Results
from flower_fedclust.harness.comparison import comparison_from, settings_from_toml
from flower_fedclust.harness.page import write_report
from flower_fedclust.harness.runner import run_comparison
from flower_fedclust.results.files import read_labels
from flower_fedclust.site.policy import SiteSettings
from flower_fedclust.tables import Schema

OURS = (ValueError, FileExistsError, ProtocolError)  # a MissingFileError is a ValueError
#: What stands in the tables, and in no message.
SECRET = 7700471
TABLE = pd.DataFrame(
    {
        "age": [SECRET + row % 3 * 40.5 for row in range(24)],
        "dose": [row % 3 * 9.25 for row in range(24)],
        "site": ["north", "south"] * 12,
    }
)
SCHEMA = """
[columns.age]
kind = "number"
bounds = [0, 9000000]
[columns.dose]
kind = "number"
bounds = [0, 30]
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a file of every kind that is read from outside."""
    folder = tmp_path_factory.mktemp("made")
    plain = TABLE.drop(columns="site")
    TABLE.to_csv(folder / "rows.csv", index=False)
    TABLE.to_parquet(folder / "rows.parquet")
    np.save(folder / "rows.npy", plain.to_numpy())
    (folder / "schema.toml").write_text(SCHEMA)
    (folder / "site.toml").write_text(
        'name = "north"\ndata = "rows.csv"\n[policy]\nepsilon = 3.0\n'
    )
    (folder / "study.toml").write_text(
        'strategies = ["k-fed"]\ndata = "rows.csv"\nclient-column = "site"\nn-clusters = 3\n'
    )
    parts = [part for _, part in plain.groupby(TABLE["site"])]
    fc.simulate(fc.KFED(3), parts, seed=0, journal=folder / "journal").save(folder / "result")
    fc.simulate(fc.KFED(3), parts, seed=0, schema=Schema.from_toml(SCHEMA)).model.save(
        folder / "prepared"
    )
    (folder / "visits").mkdir()
    for name, part in zip(("north", "south"), parts, strict=True):
        part.to_csv(folder / "visits" / f"{name}.csv", index=False)
    chosen = {
        "strategies": "k-fed",
        "data": folder / "rows.csv",
        "client_column": "site",
        "n_clusters": 3,
        "seeds": 1,
    }
    run_comparison(comparison_from(chosen), folder / "comparison", progress=False, jobs=1)
    with pytest.importorskip("duckdb").connect(str(folder / "visits.db")) as connection:
        connection.sql(f"CREATE TABLE visits AS SELECT * FROM '{folder}/rows.csv'")
    return folder


def go_on(folder):
    parts = [part for _, part in TABLE.drop(columns="site").groupby(TABLE["site"])]
    return fc.simulate(fc.KFED(3), parts, seed=0, journal=folder)


#: By file: what reads it.
READERS = {
    "rows.csv": lambda path: read_table(path, client_column="site"),
    "rows.parquet": lambda path: read_table(path, client_column="site"),
    "rows.npy": read_table,
    "visits/north.csv": lambda path: read_folder(path.parent),
    "visits.db": lambda path: read_query("SELECT age, dose FROM visits", str(path)),
    "schema.toml": Schema.of,
    "site.toml": SiteSettings.from_toml,
    "study.toml": lambda path: comparison_from(settings_from_toml(path)),
    "prepared/model.json": lambda path: fc.Model.load(path.parent),
    "prepared/model.npz": lambda path: fc.Model.load(path.parent),
    "result/labels/0.csv": read_labels,
    **{
        f"result/{name}": lambda path: fc.load(path.parent)
        for name in (
            "result.json",
            "model.json",
            "model.npz",
            "metrics.json",
            "privacy.json",
            "traffic.csv",
        )
    },
    "journal/journal.sqlite": lambda path: go_on(path.parent),
}


def changed(content, name, n_flips):
    """Yield contents as somebody else, or a fault of a disk, may have left them: the same ones every time."""
    for size in sorted(
        {0, 1, 7, len(content) // 4, len(content) // 2, len(content) - 9, len(content) - 1} - {-1}
    ):
        yield content[:size]
    drawn = random.Random(name)
    for _ in range(n_flips):
        flipped = bytearray(content)
        for _ in range(drawn.choice((1, 1, 8))):
            flipped[drawn.randrange(len(flipped))] ^= 1 << drawn.randrange(8)
        yield bytes(flipped)
    for magic in (
        b"PK\x03\x04",
        b"PAR1",
        b"\x93NUMPY\x01\x00",
        b"\x1f\x8b",
        b"\xff\xfe",
        b"\0" * 40,
        b"\x80\x04\x95",
    ):
        yield magic + content
        yield magic + content[len(magic) :]
    yield content * 2
    yield b"\n" * 50
    yield b"a,b\n" + b"x" * 200_000 + b',"' + b"y" * 200_000
    yield b"," * 2000
    yield b'"' * 9
    for opened in (b"[", b'{"a":', b"a = [", b"[a.", b"a."):
        yield opened * 20_000
    yield b"a = " + b"9" * 5000
    yield b"[" + b"9" * 5000 + b"]"
    yield b"{}"
    yield b"null"
    yield b"1e999"


def npy(header):
    header = header.ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(64)


CLAIMS = [
    npy(b"{'descr': '" + kind + b"', 'fortran_order': False, 'shape': " + shape + b", }")
    for kind in (b"<f8", b"|O", b"<U999999999", b"<M8[ns]", b"V8")
    for shape in (
        b"(962072674304, 1)",
        b"(-1, 2)",
        b"(4, 2)",
        b"(1, 10000000000000)",
        b"(9999999999999999999999, 9)",
    )
] + [
    npy(b"(" * 60),
    npy(b"{'descr': '<f8'}"),
    npy(b"{'descr': [], 'fortran_order': 1, 'shape': ()}"),
]


def refusal(read, path):
    """Return what a reader says of a file, "" where it reads it; whatever else comes out fails the test."""
    try:
        read(path)
    except OURS as error:
        said = str(error)
        # Where the end of the line of names is lost, a row stands in it.
        is_read = path.suffix == ".csv" and path.is_file() and path.stat().st_size < 2**24
        is_name = is_read and str(SECRET).encode() in path.read_bytes().split(b"\n")[0]
        assert is_name or str(SECRET)[:5] not in said, said
        assert said.endswith((".", "?")), said
        assert "\n" not in said, said
        # What is wrong with a setting is said of the setting.
        assert path.name in said or path.parent.name in said or path.name == "study.toml", said
        return said
    return ""


@pytest.fixture
def copied(made, tmp_path, request):
    shutil.copytree(made, tmp_path / "made")
    return tmp_path / "made"


#: A few tries, and many in `make check`.
EFFORT = pytest.mark.parametrize("effort", [1, pytest.param(50, marks=pytest.mark.long)])


@EFFORT
@pytest.mark.parametrize("name", READERS)
def test_whatever_a_file_holds_its_reader_says_so_in_a_sentence(copied, name, effort):
    path, read = copied / name, READERS[name]
    content = path.read_bytes()
    assert not refusal(read, path)
    journal = {one.name: one.read_bytes() for one in (copied / "journal").iterdir()}
    for given in changed(content, name, n_flips=4 if effort == 1 else 600):
        for one, kept in journal.items() if name.startswith("journal/") else ():
            (copied / "journal" / one).write_bytes(kept)
        path.write_bytes(given)
        refusal(read, path)


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize(
    "kind", ["nothing", "folder", "pipe", "device", "circle", "forbidden", "huge"]
)
def test_what_is_no_file_that_can_be_read_is_refused_at_once(copied, monkeypatch, name, kind):
    path, read = copied / name, READERS[name]
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "circle":
        path.symlink_to(path)
    elif kind == "forbidden":
        path.write_bytes(b"0")
        whole = os.open

        def forbid(given, *arguments, **options):
            if Path(given) == path:
                raise PermissionError(13, "Permission denied", str(given))
            return whole(given, *arguments, **options)

        monkeypatch.setattr(os, "open", forbid)
    elif kind == "huge":
        with path.open("wb") as file:
            file.truncate(7 * 2**40)
    said = refusal(read, path)
    # Without it the folder holds one client less, or a journal of nothing.
    assert said or (
        kind in ("nothing", "circle", "folder")
        and name in ("visits/north.csv", "journal/journal.sqlite")
    )


@pytest.mark.parametrize("claim", CLAIMS)
def test_an_array_that_claims_more_than_its_file_holds_takes_no_memory(copied, claim):
    (copied / "rows.npy").write_bytes(claim)
    said = refusal(read_table, copied / "rows.npy")
    assert claim != CLAIMS[0] or "rows.npy: its header claims more bytes" in said
    with zipfile.ZipFile(copied / "result" / "model.npz", "w") as archive:
        archive.writestr("arr_0.npy", claim)
    refusal(lambda path: fc.Model.load(path.parent), copied / "result" / "model.npz")


def test_arrays_that_unfold_to_more_than_their_file_are_refused(copied):
    path = copied / "result" / "model.npz"
    np.savez_compressed(path, np.zeros((10_000, 100)))
    with pytest.raises(DataError, match=r"model\.npz"):
        fc.Model.load(path.parent)


def test_a_table_that_claims_more_than_there_is_memory_is_refused(copied, monkeypatch):
    size = (copied / "rows.parquet").stat().st_size
    repeated = pd.concat([TABLE] * 1000)
    repeated.to_parquet(copied / "many.parquet")
    assert (copied / "many.parquet").stat().st_size < 2 * size
    monkeypatch.setattr("flower_fedclust.outside.machine_memory", lambda: 3 * size)
    assert len(read_table(copied / "rows.parquet", client_column="site").rows) == 24
    with pytest.raises(DataError, match=r"many\.parquet is too large"):
        read_table(copied / "many.parquet", client_column="site")


def test_a_query_of_what_is_no_database_says_how_to_query_files(copied):
    with pytest.raises(DataError, match=r"FROM 'rows\.csv'.*duckdb://"):
        read_query("SELECT age FROM rows", str(copied / "rows.csv"))
    assert refusal(lambda path: read_query("SELECT 1", str(path)), copied / "visits") != ""
    for url in ("mysterysql://me:swordfish@host/base", "sqlite:////nowhere/swordfish.db"):
        with pytest.raises(DataError, match="the database cannot be opened") as caught:
            read_query("SELECT 1", url)
        assert "swordfish" not in str(caught.value)


def leaves(found, place=()):
    """Yield where something stands in JSON."""
    yield place
    for key, value in (
        found.items()
        if isinstance(found, dict)
        else enumerate(found)
        if isinstance(found, list)
        else ()
    ):
        yield from leaves(value, (*place, key))


def with_other(found, place, other):
    if not place:
        return other
    copy = dict(found) if isinstance(found, dict) else list(found)
    copy[place[0]] = with_other(found[place[0]], place[1:], other)
    return copy


OTHERS = (None, "", "../../x", -1, 10**400, 1e308, [], {}, [[1, None]], {"a": []}, True)


def with_others(content, name, n_most):
    """Yield JSON that has something else in one place."""
    found = json.loads(content)
    pairs = [(place, other) for place in leaves(found) for other in OTHERS]
    drawn = random.Random(name).sample(pairs, min(n_most, len(pairs)))
    for place, other in drawn:
        yield json.dumps(with_other(found, place, other)).encode()


JSON = [name for name in READERS if name.endswith(".json")]


@EFFORT
@pytest.mark.parametrize("name", JSON)
def test_json_that_has_something_else_somewhere_is_read_or_refused(copied, name, effort):
    path, read = copied / name, READERS[name]
    for given in with_others(path.read_bytes(), name, n_most=60 * effort):
        path.write_bytes(given)
        refusal(read, path)


@pytest.mark.parametrize(
    "text", ["[" * 10**5, "{" * 3, '{"a":' * 40 + "0" + "}" * 40, " " * 2**26], ids=len
)
def test_the_model_of_tables_that_a_server_sends_is_read_within_limits(text):
    with pytest.raises(ValueError, match=r"JSON|Expecting"):
        fc.Model.named("table").from_arrays([np.frombuffer(text.encode(), dtype=np.uint8)])


def shown(folder):
    results = Results(folder)
    results.to_markdown()
    repr(results)
    write_report(folder)


@pytest.mark.long
@pytest.mark.parametrize(
    "name", ["comparison.json", "run.json", "metrics.json", "privacy.json", "labels"]
)
def test_a_comparison_in_whose_folder_a_file_is_damaged_is_shown_or_refused(copied, name):
    folder = copied / "comparison"
    (path,) = (
        [folder / name] if (folder / name).exists() else sorted(folder.glob(f"runs/*/{name}"))[:1]
    )
    path = sorted(path.iterdir())[0] if path.is_dir() else path
    content = path.read_bytes()
    given = [
        *changed(content, name, 30),
        *(with_others(content, name, 200) if path.suffix == ".json" else ()),
    ]
    for one in given:
        path.write_bytes(one)
        refusal(shown, folder)


def fedclust(capsys, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["fedclust", *map(str, arguments)])
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.err


K_FED = ("k-fed", "--n-clusters", 3)
BROKEN = {
    "rows.npy": CLAIMS[0],
    "zip.npy": b"PK\x03\x04" + bytes(100),
    "rows.csv": b"age,dose\n1,2\n1,2,3\n",
    "bytes.csv": b"age,dose\n\xff\xfe,2\n",
    "quote.csv": b'age,dose\n1,"' + b"7700471" * 1000,
    "empty.csv": b"",
    "none.csv": b"age,dose\n",
    "rows.parquet": b"PAR1" + bytes(100) + b"PAR1",
}


@pytest.mark.parametrize("name", BROKEN)
def test_every_command_refuses_a_broken_file_in_one_sentence(
    copied, tmp_path, capsys, monkeypatch, name
):
    path = tmp_path / name
    path.write_bytes(BROKEN[name])
    monkeypatch.chdir(tmp_path)
    for command in (
        ("run", *K_FED, "--data", path),
        ("run", *K_FED, "--data", path, "--schema", copied / "schema.toml"),
        ("predict", copied / "result", "--data", path),
        ("schema", "init", path),
        ("schema", "check", copied / "schema.toml", path),
        (
            "compare",
            "--strategies",
            *K_FED,
            "--seeds",
            1,
            "--data",
            path,
            "--out",
            tmp_path / "out",
        ),
        ("plan", "--like", path),
    ):
        code, said = fedclust(capsys, monkeypatch, *command)
        assert code != 0, command
        assert name in said, command
        assert "Traceback" not in said
        assert str(SECRET)[:5] not in said


@pytest.mark.parametrize(
    "content", [b"[" * 50_000, b"\xff\xfe", b"", b"a = [" * 9000], ids=range(4)
)
def test_every_command_refuses_a_broken_description_in_one_sentence(
    copied, tmp_path, capsys, monkeypatch, content
):
    monkeypatch.chdir(tmp_path)
    for name in ("schema.toml", "study.toml", "result/model.json", "result/model.npz", "site.toml"):
        (copied / name).write_bytes(content)
    rows = copied / "rows.csv"
    for name, command in (
        ("schema.toml", ("run", "k-fed", "--data", rows, "--schema", copied / "schema.toml")),
        ("schema.toml", ("explain", "k-fed", "--schema", copied / "schema.toml")),
        ("schema.toml", ("schema", "check", copied / "schema.toml", rows)),
        ("study.toml", ("compare", copied / "study.toml", "--out", tmp_path / "out")),
        ("model.json", ("predict", copied / "result", "--data", rows)),
        ("site.toml", ("site", copied / "site.toml")),
        ("site.toml", ("ledger", "show", copied / "site.toml")),
    ):
        code, said = fedclust(capsys, monkeypatch, *command)
        assert code != 0, command
        assert name in said, command
        assert said.count("\n") == 1, said
        assert "Traceback" not in said


#: Modules that read without `reading`: files of this package, of packages it needs, or of its own processes.
THEIR_OWN = {
    "outside.py": "it is what the others call",
    "data/files.py": "readers that are called inside of it",
    "data/csv_files.py": "readers that are called inside of it",
    "cli/app_template/app.py": "an example",
    "harness/runner.py": "/proc, and rows and results of its own processes",
    "checking/suite.py": "what the check itself saved",
    "data/datasets.py": "files of packages",
    "cli/files.py": "templates of this package",
    "harness/run.py": "a note of one line, compared and not parsed",
    "simulation.py": "rows for its own processes",
    "site/ledger.py": "what the site itself wrote, checked by its hashes",
    "site/kept.py": "what the site itself wrote, checked by its hashes",
    "site/app.py": "the site's own key",
    "site/check.py": "the operator's own keys and certificates",
    "site/connection.py": "the operator's own keys and certificates",
}
READS = {
    "read_csv",
    "read_table",
    "read_parquet",
    "read_pickle",
    "loadtxt",
    "genfromtxt",
    "fromfile",
    "memmap",
}
READS |= {"read_text", "read_bytes", "ZipFile"}
LOADS = {
    ("np", "load"),
    ("tomllib", "load"),
    ("tomllib", "loads"),
    ("json", "load"),
    ("pickle", "load"),
}


def test_no_module_reads_a_file_in_a_way_of_its_own():
    folder, found = Path(fc.__file__).parent, []
    for path in sorted(folder.rglob("*.py")):
        guarded = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.With) and any(
                "reading(" in text or "parsing(" in text for text in opened(node)
            ):
                guarded |= {id(one) for one in ast.walk(node)}
            if not isinstance(node, ast.Call) or id(node) in guarded:
                continue
            name = ast.unparse(node.func).rpartition(".")
            is_ours = name[0] == "" and name[2] in ("read_table", "read_csv")
            if (name[2] in READS and not is_ours) or (name[0], name[2]) in LOADS:
                found.append(path.relative_to(folder).as_posix())
    assert set(found) <= THEIR_OWN.keys()


def opened(node):
    return [ast.unparse(item.context_expr) for item in node.items]
