"""How many frames each node may collect, so that all nodes together stay within the limit of the learner."""

from __future__ import annotations

from collections.abc import Mapping


def grant(
    node: int, limit: int, total: int, collected: Mapping[int, int], granted: Mapping[int, int], most: int
) -> int:
    """Frames up to which a node's workers may collect.

    What is left below the limit is shared equally among the nodes: else the one that asks first takes all of it. What
    was granted to others and is not collected yet is theirs. A lost node's part is free once `granted` leaves it out.

    Args:
        node: number of the node.
        limit: frames up to which the run may collect.
        total: frames that all workers have collected.
        collected: frames of each node's workers.
        granted: last grant of each node that is there.
        most: frames that its streams can hold.

    Returns:
        The new grant, at least the last one.
    """
    left = max(0, limit - total)
    others = sum(max(0, granted[other] - collected[other]) for other in granted if other != node)
    share = min(-(-left // len(granted)), left - others, most)
    return max(granted[node], collected[node] + max(0, share))
