"""The plan of a run is frozen before its first release: nothing changes it, and no round goes beyond it."""

from dataclasses import replace

import numpy as np
import pytest
from engine_toys import Toy, ToyClient, drive, proxies_of

import flower_fedclust as fc
from flower_fedclust import models
from flower_fedclust.engine import PrivateStrategy, ProtocolError, Sum, parameter
from flower_fedclust.engine.parts import Part
from flower_fedclust.privacy.releases import Release

CLIENTS = [np.eye(2) * (1 + index) for index in range(4)]
VISITS = ToyClient.visits.asked()


class Planned(Toy):
    """Yields rounds that are made when they are needed."""

    with_noise = PrivateStrategy.with_noise
    makers = ()  #: Each is called with the strategy.
    found = ()  #: What the run finds out, and the parts follow from.

    epsilon: float = parameter(1.0, above=0)

    def parts(self):
        return {name: Part(ToyClient.visits, 1.0, 2) for name in ("visits", *self.found)}

    def protocol(self):
        for make in self.makers:
            yield make(self)
        return models.KMeansModel([[0.0, 0.0], [1.0, 1.0]])

    @property
    def n_protocol_rounds(self):
        return len(self.makers)


def planned(*makers, cls=Planned):
    toy = cls()
    toy.makers = makers
    return toy


def visits(part="visits", **options):
    return lambda toy: Sum(VISITS, parts=[part], **options)


def run(*makers):
    toy, proxies = planned(*makers), proxies_of(ToyClient, CLIENTS)
    drive(toy, proxies)
    plans = {
        ins.config["plan"] for proxy in proxies for ins in proxy.received if "plan" in ins.config
    }
    return toy, [proxy.asked["visits"] for proxy in proxies], plans


def ended(*makers, match, cls=Planned):
    """How often each client was asked by a run that may not go on, before it ended."""
    toy, proxies = planned(*makers, cls=cls), proxies_of(ToyClient, CLIENTS)
    with pytest.raises(ProtocolError, match=match):
        drive(toy, proxies)
    assert not toy.report.releases or toy.report.composed_epsilon <= toy.epsilon
    return [proxy.asked["visits"] for proxy in proxies]


def finds_more(toy):
    toy.found = ("found",)
    return visits()(toy)


def test_what_a_run_finds_out_changes_no_noise():
    (plain, _, plans), (other, _, other_plans) = run(visits(), visits()), run(visits(), finds_more)
    assert [message.release for message in plain.report.releases] == [
        message.release for message in other.report.releases
    ]
    assert len(plans) == 1
    assert plans == other_plans
    assert other.report.composed_epsilon <= 1.0


def test_a_part_that_the_plan_does_not_have_is_refused_before_anybody_is_asked():
    def later(toy):
        toy.found = ("found",)
        return visits("found")(toy)

    assert ended(visits(), later, match="part 'found'") == [1] * 4
    assert ended(visits("visit"), match="part 'visit'") == [0] * 4


def test_a_part_is_used_no_more_often_than_planned():
    assert ended(visits(), visits(), visits(), match="'visits'") == [2] * 4


def test_how_often_counts_for_each_client():
    halves = [visits(clients=names) for names in (["0", "1"], ["2", "3"])] * 2
    assert run(*halves)[1] == [2] * 4
    assert ended(*halves[:3], visits(clients=["1", "2"]), match="'visits'") == [2, 2, 1, 1]


def test_a_round_that_too_few_could_answer_costs_nothing():
    assert run(visits(), visits(clients=["nobody"], needed=False), visits())[1] == [2] * 4


def test_releases_that_a_round_brings_itself_are_refused():
    def by_hand(toy):
        return Sum(VISITS, releases=[Release("gaussian", 1e-9, 1.0, "nothing", share="visits")])

    assert ended(by_hand, match="'visits' comes with releases") == [0] * 4


def changed(change):
    """Return a class that changes the releases of its rounds."""

    class Changed(Planned):
        def with_noise(self, round_):
            derived = super().with_noise(round_)
            return replace(derived, releases=[change(release) for release in derived.releases])

    return Changed


@pytest.mark.parametrize(
    "other",
    [
        lambda release: replace(release, share=""),
        lambda release: replace(release, noise_multiplier=0.9 * release.noise_multiplier),
        lambda release: replace(release, mechanism="laplace"),
        lambda release: replace(release, relation="replace"),
        lambda release: replace(release, relation="replace", sample=(1, 10)),
    ],
    ids=["without a part", "less noise", "another mechanism", "another relation", "a sample"],
)
def test_another_release_than_the_planned_one_is_refused(other):
    assert ended(visits(), match="plan of the run does not have", cls=changed(other)) == [0] * 4


def test_more_noise_than_planned_is_nobodys_harm():
    more = changed(
        lambda release: replace(release, noise_multiplier=2.0 * release.noise_multiplier)
    )
    proxies = proxies_of(ToyClient, CLIENTS)
    drive(planned(visits(), cls=more), proxies)
    assert [proxy.asked["visits"] for proxy in proxies] == [1] * 4


@pytest.mark.parametrize("factor", [0.5, 0.999])
def test_a_run_that_would_cost_more_than_was_asked_for_sends_no_message(factor):
    class Greedy(Planned):
        def noise_multipliers(self, shares=None):
            return {
                name: factor * multiplier
                for name, multiplier in super().noise_multipliers(shares).items()
            }

    proxies = proxies_of(ToyClient, CLIENTS)
    with pytest.raises(ValueError, match="epsilon"):
        drive(planned(visits(), cls=Greedy), proxies)
    assert not any(proxy.received for proxy in proxies)


def test_a_run_that_goes_on_remembers_what_is_spent(tmp_path):
    class Killed(BaseException):
        pass

    def made():
        toy = planned(visits(), visits(), visits())
        toy.journal = fc.Journal(tmp_path)
        return toy

    def killed(number, task):
        if number == 3:
            raise Killed

    first, proxies = made(), proxies_of(ToyClient, CLIENTS)
    first.on_round = killed
    with pytest.raises(Killed), first.journal:
        drive(first, proxies)
    second, proxies = made(), proxies_of(ToyClient, CLIENTS)
    with pytest.raises(ProtocolError, match="'visits'"), second.journal:
        drive(second, proxies)
    assert [proxy.asked["visits"] for proxy in proxies] == [0] * 4
