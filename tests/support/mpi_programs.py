"""Programs in several processes, which `gomlx launch` starts; what each said."""
import importlib.util
import os
import re
import shutil
import subprocess
import sys

import pytest
from places import ROOT

OPEN_MPI, MPICH = (shutil.which(name) for name in ("mpirun.openmpi", "mpirun.mpich"))
OPEN_MPI = OPEN_MPI or shutil.which("mpirun")
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
           "OMPI_MCA_rmaps_base_oversubscribe": "1"}

needs_mpi = pytest.mark.skipif(not OPEN_MPI or not importlib.util.find_spec("mpi4py"),
                               reason="needs mpirun and the package mpi4py")


def run_launched(n, *program, mpirun=OPEN_MPI, **environment):
    """The process that has ended."""
    command = [sys.executable, "-P", "-m", "gomlx", "launch", "-n", str(n), "--mpirun", mpirun, "--", *program]
    return subprocess.run(command, cwd=ROOT, env=os.environ | AS_ROOT | environment, capture_output=True, text=True,
                          timeout=240, check=False)


def launched(n, *program, **options):
    """What each rank said, {rank: text}."""
    said = run_launched(n, *program, **options)
    found = {int(rank): text for rank, text in re.findall(r"^(\d+): (.*)$", said.stdout, re.M)}
    assert found, said.stdout + said.stderr
    return found
