from concurrent.futures import ThreadPoolExecutor
from threading import Event, get_ident

import numpy as np
import pytest
import threadpoolctl
from threadpoolctl import threadpool_info, threadpool_limits

from flower_fedclust.numerics.threads import jobs, mapped, one_thread


def threads(user_api=None):
    np.ones((2, 2)) @ np.ones((2, 2))
    return {
        (info["user_api"], info["filepath"]): info["num_threads"]
        for info in threadpool_info()
        if user_api in (None, info["user_api"])
    }


def blas_threads():
    return set(threads("blas").values())


def let_any_thread_set_blas():
    """Threadpoolctl 3.7 and later ignore all threads but the one that limited OpenBLAS first."""
    if clear := getattr(threadpoolctl.OpenBLASController, "clear_controlling_thread", None):
        clear(force=True)


@pytest.fixture(autouse=True)
def two_threads():
    """More than one thread outside, whatever OMP_NUM_THREADS says."""
    let_any_thread_set_blas()
    limits = threadpool_limits(2)
    assert set(threads().values()) == {2}
    let_any_thread_set_blas()
    yield
    let_any_thread_set_blas()
    limits.restore_original_limits()
    let_any_thread_set_blas()


@pytest.fixture
def pool():
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture
def other_context(pool):
    """A context that a worker has entered; call the fixture for the worker to leave it, and live on."""
    entered, leave = Event(), Event()

    def other():
        with one_thread():
            entered.set()
            assert leave.wait(30)

    done = pool.submit(other)
    assert entered.wait(30)

    def end():
        leave.set()
        done.result(30)

    yield end
    leave.set()


def test_inside_there_is_one_thread_for_blas_and_openmp():
    with one_thread():
        inside = threads()
    assert {api for api, _ in inside} == {"blas", "openmp"}
    assert set(inside.values()) == {1}


def test_the_number_of_threads_is_restored_after():
    before = threads()
    with one_thread():
        pass
    assert threads() == before


def test_an_inner_context_leaves_the_outer_one_at_one_thread():
    before = threads()
    with one_thread():
        with one_thread():
            assert set(threads().values()) == {1}
        assert set(threads().values()) == {1}
    assert threads() == before


def test_the_number_of_threads_is_restored_after_an_error_inside_two_contexts():
    before = threads()
    with pytest.raises(KeyError), one_thread(), one_thread():
        raise KeyError
    assert threads() == before
    with one_thread():
        assert set(threads().values()) == {1}


def openmp_threads_of_a_worker():
    with threadpool_limits(2, user_api="openmp"), one_thread():
        return set(threads("openmp").values())


def test_a_worker_thread_has_one_thread_for_openmp(pool):
    assert pool.submit(openmp_threads_of_a_worker).result() == {1}


def test_a_worker_thread_inside_the_context_of_another_has_one_thread_for_openmp(pool):
    with one_thread():
        assert pool.submit(openmp_threads_of_a_worker).result() == {1}


def test_a_context_lasts_when_that_of_another_thread_ends(other_context):
    assert blas_threads() == {1}
    with one_thread():
        other_context()
        assert set(threads().values()) == {1}
    assert blas_threads() == {2}


def test_a_context_of_another_thread_lasts_when_this_one_ends(other_context):
    with one_thread():
        pass
    assert blas_threads() == {1}
    other_context()
    assert blas_threads() == {2}


def test_a_context_works_in_a_thread_after_it_was_used_in_another(pool):
    def inside():
        with one_thread():
            return blas_threads()

    with one_thread():
        pass
    assert pool.submit(inside).result() == {1}
    with one_thread():
        assert blas_threads() == {1}
    assert blas_threads() == {2}


def test_a_thread_that_maps_by_itself_starts_no_more_threads():
    def inner(_):
        return get_ident()

    def outer(_):
        return get_ident(), list(mapped(inner, range(20), -1))

    with jobs(3):
        found = list(mapped(outer, range(6)))
    assert all(inside == [own] * 20 for own, inside in found)


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_mapped_function_computes_with_one_thread(n_jobs):
    assert list(mapped(lambda _: blas_threads(), range(5), n_jobs)) == [{1}] * 5
    assert blas_threads() == {2}


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_function_that_raises_the_end_of_an_iteration_does_not_end_the_others(n_jobs):
    def third_is_empty(index):
        return next(iter([])) if index == 2 else index

    with pytest.raises(RuntimeError, match="StopIteration"):
        list(mapped(third_is_empty, range(5), n_jobs))
