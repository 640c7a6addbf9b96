"""A Ray cluster on this machine: a head without cores, and N machines with one; run as a program by the tests.

It prints the address, and obeys lines on its standard input: `kill` ends a machine at once, `add` adds one. It ends
with its standard input.
"""

from __future__ import annotations

import sys

from ray.cluster_utils import Cluster

MACHINE = {"num_cpus": 1, "object_store_memory": 100 * 10**6}

if __name__ == "__main__":
    cluster = Cluster(True, head_node_args={**MACHINE, "num_cpus": 0, "include_dashboard": False})
    machines = [cluster.add_node(**MACHINE) for _ in range(int(sys.argv[1]))]
    cluster.wait_for_nodes()
    print(cluster.address, flush=True)
    for line in sys.stdin:
        if line.strip() == "kill":
            cluster.remove_node(machines.pop(), allow_graceful=False)
        else:
            machines.append(cluster.add_node(**MACHINE))
    cluster.shutdown()
