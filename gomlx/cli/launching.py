"""launch: a program in several processes at once, through the mpirun that there is."""
import argparse
import os
import shutil
import subprocess
import sys


def add(commands):
    made = commands.add("launch", launch, "Run a program in several processes that communicate, by MPI's mpirun.",
                        examples=["gomlx launch -n 2 -- train.py --epochs 3",
                                  "gomlx launch -n 4 --hosts one,two -- python -m package"])
    made.add_argument("-n", "--processes", type=int, required=True, metavar="N", help="how many")
    made.add_argument("--hosts", metavar="HOST,...", help="where, N over all of them (default: here)")
    made.add_argument("--mpirun", default="mpirun", metavar="PATH", help="Open MPI's or MPICH's (default: mpirun)")
    made.add_argument("program", nargs=argparse.REMAINDER, metavar="-- PROGRAM ...",
                      help="a .py file, which this Python runs, or a command; its arguments")


def launch(args):
    """Returns mpirun's status."""
    program = args.program[1:] if args.program[:1] == ["--"] else args.program
    if not program:
        raise ValueError("launch: expected -- PROGRAM")
    if args.processes < 1:
        raise ValueError(f"launch: -n is {args.processes}, expected 1 or more")
    if program[0].endswith(".py"):
        program = [sys.executable, *program]
    found = shutil.which(args.mpirun)
    if found is None:
        raise ValueError(f"launch: there is no {args.mpirun}: install Open MPI or MPICH (Debian: openmpi-bin or mpich)")
    options, environment = options_of(found, args.hosts)
    return subprocess.run([found, "-n", str(args.processes), *options, *program], env=os.environ | environment,
                          check=False).returncode


def options_of(mpirun, hosts):
    """(options, environment) for this mpirun: one process that dies does not take the others with it, which get an
    exception that names it; threads are not bound to one core."""
    said = subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=False).stdout
    if "Open MPI" in said or "OpenRTE" in said:
        options = ["--oversubscribe", "--enable-recovery", "--bind-to", "none"]
        return options + (["--host", hosts] if hosts else []), {"MPI4PY_MPIABI": "openmpi"}
    if "HYDRA" in said.upper():
        return ["-disable-auto-cleanup"] + (["-hosts", hosts] if hosts else []), {"MPI4PY_MPIABI": "mpich"}
    raise ValueError(f"launch: {mpirun} is neither Open MPI's nor MPICH's: {said.strip()[:80]!r}")
