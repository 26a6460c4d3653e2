"""Whoever brings messages to clients and answers back runs a strategy: a carrier takes a few lines."""

import inspect
import pickle

import numpy as np
import pytest
from flwr.common import Code, EvaluateRes, FitIns, FitRes, Status

import flower_fedclust as fc
from flower_fedclust.checking.runs import new_context
from flower_fedclust.engine.messages import Answers, drive
from flower_fedclust.engine.wire import decode, encode
from flower_fedclust.simulation import noise_seed_of

ROWS = {
    name: np.random.default_rng(index).normal(size=(30 + index, 3))
    for index, name in enumerate("abcd")
}
OK = Status(Code.OK, "")


class FolderClient:
    """A client that reads its messages from files in a folder, and writes its answers beside them."""

    def __init__(self, folder, make):
        self.folder, self.make, self.context = folder, make, new_context()
        folder.mkdir()

    def answer(self):
        for path in sorted(self.folder.glob("*.message")):
            ins, client = pickle.loads(path.read_bytes()), self.make(self.context)
            path.unlink()
            arrays, config = decode(ins.parameters), dict(ins.config)
            if isinstance(ins, FitIns):
                found, n_examples, metrics = client.fit(arrays, config)
                res = FitRes(OK, encode(found), n_examples, metrics)
            else:
                res = EvaluateRes(OK, *client.evaluate(arrays, config))
            path.with_suffix(".answer").write_bytes(pickle.dumps(res))


class FolderCarrier:
    """Brings messages as files in a folder for each node; ``work`` has the clients answer."""

    def __init__(self, folder, work):
        self.folder, self.work = folder, work

    def nodes(self):
        return sorted(path.name for path in self.folder.iterdir())

    def carry(self, messages):
        for one in messages:
            (self.folder / one.node / f"{one.task}.message").write_bytes(pickle.dumps(one.ins))
        self.work()
        answers = {path.parent.name: path for path in self.folder.glob("*/*.answer")}
        replies = {node: pickle.loads(path.read_bytes()) for node, path in answers.items()}
        for path in answers.values():
            path.unlink()
        return Answers(replies)


def through_files(strategy, folder, seed, silent=()):
    """Run a strategy over files, with the seeds that a simulation gives its clients."""
    strategy.noise_seed = strategy.random_state = seed
    clients = [
        FolderClient(
            folder / name,
            lambda context, name=name, index=index: strategy.client_type(
                fc.ClientData(ROWS[name]),
                name=name,
                context=context,
                noise_seed=noise_seed_of(seed, index),
            ),
        )
        for index, name in enumerate(ROWS)
    ]
    carrier = FolderCarrier(
        folder, lambda: [one.answer() for one in clients if one.folder.name not in silent]
    )
    return drive(strategy.steps(), carrier)


def private(**options):
    return fc.PrivateFederatedKMeans(3, epsilon=8.0, max_norm=4.0, n_rounds=2, **options)


CASES = {
    "sums with noise": lambda: private(),
    "noise of the clients": lambda: private(noise="clients"),
    "replies": lambda: fc.KFED(3),
    "a model that is evaluated": lambda: fc.FederatedKMeans(
        3, init=ROWS["a"][:3], n_rounds=2, federated_evaluation=True
    ),
    "what clients remember": lambda: fc.DPFedC(2, n_rounds=3),
}


@pytest.mark.parametrize(
    ("case", "secure"), [*((case, False) for case in CASES), ("sums with noise", True)]
)
def test_messages_through_files_in_a_folder_give_the_bits_of_a_simulation(case, secure, tmp_path):
    strategy = CASES[case]()
    strategy.secure = secure
    outcome = through_files(strategy, tmp_path, seed=5)
    expected = fc.simulate(CASES[case](), ROWS, seed=5, secure=secure)
    for one, other in zip(outcome.model.to_arrays(), expected.model.to_arrays(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert strategy.report == expected.privacy
    assert strategy.traffic == list(expected.traffic)


def test_a_carrier_and_its_clients_take_at_most_fifty_lines():
    assert (
        sum(len(inspect.getsource(kind).splitlines()) for kind in (FolderClient, FolderCarrier))
        <= 50
    )


def test_a_carrier_says_nothing_of_a_silent_client_and_the_run_notes_it(tmp_path):
    strategy = fc.FederatedKMeans(3, init=ROWS["a"][:3], n_rounds=2)
    through_files(strategy, tmp_path, seed=5, silent={"d"})
    assert [(one.client, one.task) for one in strategy.failures] == [("d", "enrol")]


def test_an_error_of_a_carrier_ends_the_run_with_its_report(tmp_path):
    class Broken(FolderCarrier):
        def carry(self, messages):
            if messages[0].task != "enrol":
                raise KeyboardInterrupt
            return super().carry(messages)

    strategy = fc.KFED(3)
    clients = [
        FolderClient(
            tmp_path / name,
            lambda context, name=name: strategy.client_type(
                fc.ClientData(ROWS[name]), name=name, context=context
            ),
        )
        for name in ROWS
    ]
    with pytest.raises(KeyboardInterrupt) as caught:
        drive(strategy.steps(), Broken(tmp_path, lambda: [one.answer() for one in clients]))
    assert [message.task for message in caught.value.privacy_report.messages] == ["enrol"]
    assert "The run ended early, in round 2 ('local_centers')" in str(caught.value.privacy_report)
