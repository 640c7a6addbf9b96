"""A real SLURM of the tests' own: nodes that claim 48 CPUs and 6 GPUs each, on this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch")
CLUSTER = Path(__file__).parent / "cluster.sh"


@pytest.fixture(scope="session")
def slurm() -> Iterator[dict[str, str]]:
    """The environment in which SLURM's commands reach a cluster of four nodes."""
    path = f"{os.environ['PATH']}:/usr/sbin"
    if missing := [name for name in PROGRAMS if shutil.which(name, path=path) is None]:
        pytest.skip(f"{', '.join(missing)} missing: apt-get install slurmctld slurmd slurm-client munge")
    folder = tempfile.mkdtemp(prefix="slurm_")  # not pytest's own, which is too deep for munged's socket
    port = 20_000 + os.getpid() % 10_000
    environment = {
        **os.environ, "PATH": path, "SIM_DIR": folder, "SIM_NAME": f"t{os.getpid()}n", "SIM_PORT": str(port),
        "SIM_NODES": "4", "SLURM_CONF": f"{folder}/etc/slurm.conf",
    }  # fmt: skip
    try:
        subprocess.run([CLUSTER, "start"], env=environment, check=True)
        yield environment
    finally:
        subprocess.run([CLUSTER, "stop"], env=environment, check=True)
        shutil.rmtree(folder)
