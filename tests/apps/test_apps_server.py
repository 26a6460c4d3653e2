"""What the ServerApp does before a run begins."""

from __future__ import annotations

from flower_fedclust.harness.run import settled_number_of_nodes


class SlowGrid:
    """Knows one more node each time it is asked, as a simulation does that has only begun."""

    def __init__(self, n_nodes: int) -> None:
        self.n_nodes = n_nodes
        self.asked = 0

    def get_node_ids(self) -> list[int]:
        self.asked += 1
        return list(range(min(self.asked - 1, self.n_nodes)))


def test_number_of_simulated_clients_is_not_taken_while_they_appear() -> None:
    assert settled_number_of_nodes(SlowGrid(7), quiet=0.3) == 7
