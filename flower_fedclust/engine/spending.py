"""The plan of a run, frozen before its first release, and what of it is spent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from flower_fedclust.engine.rounds import ProtocolError
from flower_fedclust.privacy.accounting import Plan
from flower_fedclust.privacy.releases import Release
from flower_fedclust.privacy.report import Message


class Spending:
    """A frozen plan, and how often each client was asked for each of its shares.

    Nothing that a run learns changes the plan, and no round may go beyond it: so the epsilon of the report is at most
    the one that was asked for, whatever a strategy does.

    Parameters
    ----------
    plan : Plan

    Raises
    ------
    ValueError
        If the plan composes to more than was asked for.
    """

    def __init__(self, plan: Plan) -> None:
        plan.check()
        self.plan = plan
        self._asked: Counter[tuple[str, str]] = Counter()

    def spend(self, task: str, releases: Iterable[Release | None], clients: Sequence[str]) -> None:
        """Count the releases of a round for the clients that are asked.

        Raises
        ------
        ProtocolError
            If the plan does not have one of them, or not as often.
        """
        if self.plan.epsilon is None:
            return
        noisy = [release for release in releases if release is not None and release.noise_multiplier > 0]
        for release in noisy:
            share = self.plan.shares.get(release.share)
            if (
                share is None
                or (share.mechanism, share.relation, share.sample)
                != (release.mechanism, release.relation, release.sample)
                or release.noise_multiplier < self.plan.multipliers[release.share]
            ):
                raise ProtocolError(
                    f"'{task}' has a release of '{release.share}' that the plan of the run does not have; name "
                    "a part that parts() names before the run begins."
                )
        names = [release.share for release in noisy]
        if len(set(names)) < len(names):
            raise ProtocolError(f"'{task}' has two releases of one share; a share pays for one array of a round.")
        for name in names:
            self._asked.update((client, name) for client in clients)
            if any(self._asked[client, name] > self.plan.shares[name].count for client in clients):
                raise ProtocolError(
                    f"'{task}' is asked once more than the plan of the run has releases of '{name}': "
                    f"{self.plan.shares[name].count}."
                )

    def go_on(self, messages: Iterable[Message], clients: Sequence[str]) -> None:
        """Count what a round released before the run was interrupted; a round that was asked twice counts once."""
        for message in dict.fromkeys(messages):
            if message.release is not None:
                self._asked.update((client, message.release.share) for client in message.clients or clients)
