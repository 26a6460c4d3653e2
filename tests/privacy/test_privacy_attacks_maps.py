import numpy as np
import pytest
from sklearn.datasets import load_digits, load_iris

from flower_fedclust.privacy.attacks import relative_errors, rows_from_distances, rows_from_kernel

DIGITS, IRIS = load_digits().data[:400] / 16.0, load_iris().data


def landmarks_of(rows, n_landmarks=100, seed=0):
    generator = np.random.default_rng(seed)
    return rows.mean(axis=0) + rows.std(axis=0) * generator.standard_normal((n_landmarks, rows.shape[1]))


def distances(rows, Y):
    return np.array([[np.sqrt(((row - y) ** 2).sum()) for y in Y] for row in rows])


def gamma_of(rows):
    return 0.25 / rows.var(axis=0).sum()


def sent(form, rows, Y, noise=0.0, seed=1):
    """What a client uploads, with noise in units of its spread, and the attack on it."""
    B = distances(rows, Y)
    values = B if form == "distances" else np.exp(-gamma_of(rows) * B**2)
    return values + noise * values.std() * np.random.default_rng(seed).normal(size=values.shape)


def recovered(form, rows, Y, noise=0.0):
    values = sent(form, rows, Y, noise)
    if form == "distances":
        return rows_from_distances(Y, values)
    return rows_from_kernel(Y, values, gamma=gamma_of(rows))


FORMS = ("distances", "kernel")


@pytest.mark.parametrize("rows", [DIGITS, IRIS], ids=["digits", "iris"])
@pytest.mark.parametrize("form", FORMS)
def test_every_row_is_recovered_from_what_carries_no_noise(form, rows):
    found = recovered(form, rows, landmarks_of(rows))
    assert found.shape == rows.shape
    assert relative_errors(found, rows).max() < 1e-9


@pytest.mark.parametrize("form", FORMS)
def test_the_fewest_landmarks_are_one_more_than_the_columns(form):
    assert relative_errors(recovered(form, IRIS, landmarks_of(IRIS, 5)), IRIS).max() < 1e-6


@pytest.mark.parametrize("form", FORMS)
def test_unit_and_origin_do_not_matter(form):
    for rows in (IRIS * 1e-6, IRIS * 1e6, IRIS + 1e5):
        assert relative_errors(recovered(form, rows, landmarks_of(rows)), rows).max() < 1e-6


@pytest.mark.parametrize("form", FORMS)
def test_a_direction_that_the_landmarks_do_not_span_has_their_mean(form):
    rows = np.column_stack([IRIS, np.full(150, 7.0)])
    Y = landmarks_of(rows)
    assert np.allclose(recovered(form, rows, Y), rows, atol=1e-6)
    off = rows + np.eye(5)[4]
    found = recovered(form, off, Y)
    assert np.allclose(found[:, :4], IRIS, atol=1e-6)
    assert np.allclose(found[:, 4], 7.0)


@pytest.mark.parametrize("form", FORMS)
def test_a_row_is_recovered_by_itself(form):
    Y = landmarks_of(IRIS)
    values = sent(form, IRIS, Y)
    alone = (
        rows_from_distances(Y, values[3:4])
        if form == "distances"
        else rows_from_kernel(Y, values[3:4], gamma=gamma_of(IRIS))
    )
    assert np.allclose(alone, IRIS[3:4], atol=1e-8)


@pytest.mark.parametrize("form", FORMS)
def test_more_noise_misleads_the_attack_more_and_gives_finite_rows(form):
    Y = landmarks_of(IRIS)
    errors = []
    for noise in (1e-6, 1e-3, 0.3, 10.0):
        found = recovered(form, IRIS, Y, noise)
        assert np.isfinite(found).all()
        errors.append(np.median(relative_errors(found, IRIS)))
    assert errors == sorted(errors)
    assert errors[0] < 1e-4
    assert errors[1] < 0.05
    assert errors[-1] > 1.0


def test_kernel_values_of_zero_and_above_one_are_far_away_and_at_no_distance():
    Y = landmarks_of(IRIS, 6)
    values = sent("kernel", IRIS[:3], Y)
    values[0] = 0.0
    values[1, 2] = 3.0
    values[2] = -1.0
    gamma = gamma_of(IRIS)
    found = rows_from_kernel(Y, values, gamma=gamma)
    assert np.isfinite(found).all()
    limited = values.copy()
    limited[1, 2] = 1.0
    limited[2] = 0.0
    assert np.allclose(found, rows_from_kernel(Y, limited, gamma=gamma))


@pytest.mark.parametrize("form", FORMS)
def test_too_few_landmarks_are_refused_in_a_sentence(form):
    sentence = r"^There are 4 landmarks for 4 columns; rows can be recovered from 5 landmarks or more\.$"
    Y, values = np.ones((4, 4)), np.ones((3, 4))
    with pytest.raises(ValueError, match=sentence):
        rows_from_distances(Y, values) if form == "distances" else rows_from_kernel(Y, values, gamma=1.0)


@pytest.mark.parametrize("values", [np.ones((3, 5)), np.ones(6), np.ones((6, 3, 1))])
def test_values_of_another_shape_are_refused_in_a_sentence(values):
    Y = np.random.default_rng(0).normal(size=(6, 4))
    shape = str(values.shape).replace("(", r"\(").replace(")", r"\)")
    for name, attack in (
        ("distances", lambda: rows_from_distances(Y, values)),
        ("kernel", lambda: rows_from_kernel(Y, values, gamma=1.0)),
    ):
        with pytest.raises(ValueError, match=rf"^{name} has shape {shape}; the landmarks ask for \(n_rows, 6\)\.$"):
            attack()


@pytest.mark.parametrize("gamma", [0.0, -1.0, np.inf, np.nan])
def test_gamma_out_of_range_is_refused(gamma):
    with pytest.raises(ValueError, match=r"^gamma is .*; it must be positive and finite"):
        rows_from_kernel(np.ones((6, 4)), np.ones((3, 6)), gamma=gamma)
