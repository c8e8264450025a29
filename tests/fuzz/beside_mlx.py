"""Random programs on gomlx and on the installed MLX, side by side: values, dtypes, shapes, classes of errors.

    python tests/fuzz/beside_mlx.py --seconds 3600 --seed 1      # an hour; prints each class of difference
    python tests/fuzz/beside_mlx.py --seed 1 --only 1234         # one program again, with what both gave

Each program (programs.py) runs in one of MODES. Both sides run in processes of their own, which may crash: they are
started again. A difference is traced to one step where that step differs alone, and looked up in known_differences.py.
Values may differ by TOLERANCE, and by what a change of the inputs in their last place makes of the result on gomlx:
that is how an ill-conditioned result, or a step across a discontinuity, is told from a wrong one.
"""
import argparse
import collections
import os
import pickle
import random
import re
import select
import signal
import struct
import subprocess
import sys
import time
from dataclasses import dataclass

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import functions  # noqa: E402
import known_differences  # noqa: E402
import programs  # noqa: E402

# How often; MLX compiles with a C++ compiler, a second for each: eager programs run compiled on gomlx alone too.
MODES = {"eager": 40, "compile": 1, "vmap": 20, "vjp": 25, "jvp": 15, "compiled vjp": 1, "vmapped vjp": 10}
LIMIT = 30                      # seconds for one program
# Relative, with the reason: both round once per step to the dtype, of functions that are right to a few units of it.
# float64 too is computed in float32 by many functions of MLX.
TOLERANCE = {"float16": 4 * 2.0**-10, "bfloat16": 4 * 2.0**-7, "float32": 2e-5, "float64": 2e-6, "complex64": 4e-5}
SUMS = re.compile(r"fft\.i?r?fft.*|.*matmul|.*conv.*|addmm|inner|vecdot|tensordot|einsum|linalg\..*|sum|mean|var|std"
                  r"|trace|cumsum|logcumsumexp|fast\..*|median|random\.(normal|gumbel|laplace)|logsumexp"
                  r"|logaddexp|nn\..*|linspace|diff|quantize")
EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-22, "complex64": 2.0**-22, "float64": 2.0**-51}


# ---------------------------------------------------------------------------------------------------- a side's process

def numbers(mx, a):
    if programs.dtype_name(a) in ("float16", "bfloat16"):
        a = a.astype(mx.float32)
    dtype = {"bool_": "bool"}.get(programs.dtype_name(a), programs.dtype_name(a))
    return np.array(a.tolist(), dtype=dtype).reshape(tuple(a.shape))


def outcome(mx, a):
    try:
        return "array", programs.dtype_name(a), tuple(a.shape), numbers(mx, a)
    except Exception as error:
        return failure(error)[0]


def failure(error):
    return [("error", type(error).__name__, str(error), [one.__name__ for one in type(error).__mro__])]


def steps_of(mx, nn, program, inputs):
    """A list of arrays for each step."""
    values, results = list(inputs), []
    for step in program.steps:
        results.append(programs.run_step(mx, nn, step, values))
        values += results[-1]
    return results


def differentiable(program):
    return [i for i, (_, dtype) in enumerate(program.inputs) if dtype in programs.INEXACT]


def last_inexact(mx, nn, program, inputs, chosen):
    """The function of the chosen inputs that gives the last step's inexact arrays, for vjp and jvp."""
    def function(*primals):
        values = list(inputs)
        for i, primal in zip(chosen, primals):
            values[i] = primal
        return [a for a in steps_of(mx, nn, program, values)[-1] if programs.dtype_name(a) in programs.INEXACT]
    return function


def some_like(mx, a, seed):
    """Numbers of the shape and dtype of an array, the same in both processes."""
    values = np.random.default_rng(seed).uniform(0.5, 1.5, tuple(a.shape)).astype(np.float32)
    return mx.array(values).astype(a.dtype)


def backward(mx, nn, program, inputs, chosen, seed, wrap=lambda f: f):
    function = last_inexact(mx, nn, program, inputs, chosen)

    def gradient(*primals):
        shapes = function(*primals)
        return mx.vjp(function, list(primals), [some_like(mx, a, seed + i) for i, a in enumerate(shapes)])[1]
    return wrap(gradient)(*(inputs[i] for i in chosen))


def batched(program, seed):
    """(inputs with an axis more, in_axes): each of the batch has the input's values, rolled."""
    r = random.Random(seed)
    inputs, axes = [], []
    for values, dtype in program.inputs:
        axis = r.choice([0, 0, -1, None])
        if axis is not None:
            values = np.stack([np.roll(values, i) for i in range(3)], axis=axis)
        inputs.append((values, dtype))
        axes.append(axis)
    if all(axis is None for axis in axes):
        values, dtype = program.inputs[0]
        inputs[0], axes[0] = (np.stack([np.roll(values, i) for i in range(3)]), dtype), 0
    return inputs, tuple(axes)


def rolled(program, k):
    """The program with the values of its inexact inputs in other places: another of a batch."""
    return programs.Program([(np.roll(values, k) if dtype in programs.INEXACT else values, dtype)
                             for values, dtype in program.inputs], program.steps, program.counts)


def loop(mx, nn, program, seed):
    """What vmap is to give: the program on each of the batch."""
    given, axes = batched(program, seed)
    rows = []
    for i in range(3):
        inputs = [(values if axis is None else np.take(values, i, axis=axis), dtype)
                  for (values, dtype), axis in zip(given, axes)]
        rows.append(steps_of(mx, nn, program, [programs.make_input(mx, one) for one in inputs])[-1])
    return [[outcome(mx, mx.stack(list(column))) for column in zip(*rows)]]


def run(mx, nn, program, mode, seed):
    """A list of outcomes for each step (eager), or one for the whole."""
    if mode == "eager":
        values, results = [programs.make_input(mx, given) for given in program.inputs], []
        for step in program.steps:
            try:
                results.append(programs.run_step(mx, nn, step, values))
            except Exception as error:
                return [[outcome(mx, a) for a in arrays] for arrays in results] + [failure(error)]
            values += results[-1]
        return [[outcome(mx, a) for a in arrays] for arrays in results]
    try:
        if mode == "vmap":
            given, axes = batched(program, seed)
            function = mx.vmap(lambda *inputs: steps_of(mx, nn, program, inputs)[-1], in_axes=axes)
            results = function(*(programs.make_input(mx, one) for one in given))
            return [[outcome(mx, a) for a in results]]
        if mode == "loop":
            return loop(mx, nn, program, seed)
        if mode == "looped vjp":
            rows = [[mx.array(a[3]).astype(getattr(mx, a[1])) for a in run(mx, nn, rolled(program, k), "vjp", seed)[0]]
                    for k in range(2)]
            return [[outcome(mx, mx.stack(list(column))) for column in zip(*rows)]]
        inputs = [programs.make_input(mx, given) for given in program.inputs]
        chosen = differentiable(program)
        if mode == "compile":
            function = mx.compile(lambda *inputs: steps_of(mx, nn, program, inputs))
            return [[outcome(mx, a) for a in arrays] for arrays in function(*inputs)]
        if mode == "vjp":
            results = backward(mx, nn, program, inputs, chosen, seed)
        elif mode == "compiled vjp":
            results = backward(mx, nn, program, inputs, chosen, seed, mx.compile)
        elif mode == "vmapped vjp":
            rows = [mx.stack([programs.make_input(mx, rolled(program, k).inputs[i]) for k in range(2)])
                    if i in chosen else a for i, a in enumerate(inputs)]
            results = backward(mx, nn, program, rows, chosen, seed, lambda f: mx.vmap(f, in_axes=(0,) * len(chosen)))
        else:
            function = last_inexact(mx, nn, program, inputs, chosen)
            primals = [inputs[i] for i in chosen]
            results = mx.jvp(function, primals, [some_like(mx, a, seed + i) for i, a in enumerate(primals)])[1]
        return [[outcome(mx, a) for a in results]]
    except Exception as error:
        return [failure(error)]


def disturbed(program, seed):
    """The program with its inexact inputs moved by up to one unit of the coarsest dtype in it."""
    r = np.random.default_rng(seed)
    unit = max(EPSILON.get(dtype, 0) for dtype in (*dtypes_of(program), "float32"))
    with np.errstate(all="ignore"):
        return programs.Program([(values * (1 + unit * r.integers(-1, 2, values.shape)).astype(values.real.dtype)
                                  if dtype in programs.INEXACT else values, dtype) for values, dtype in program.inputs],
                                program.steps, program.counts)


def alone(mx, nn, program, at):
    """A program of one step: what step `at` reads becomes its inputs."""
    values = [programs.make_input(mx, given) for given in program.inputs]
    for step in program.steps[:at]:
        values += programs.run_step(mx, nn, step, values)
    used = []

    def number(ref):
        if ref.index not in used:
            used.append(ref.index)
        return programs.Ref(used.index(ref.index))

    name, args, kwargs = program.steps[at]
    step = (name, programs.moved(args, number), programs.moved(kwargs, number))
    inputs = [(numbers(mx, values[i]), programs.dtype_name(values[i])) for i in used]
    return programs.Program(inputs, [step], program.counts[at:at + 1])


def serve(side):
    """Answers requests on standard input until it ends."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)                                   # whatever prints does not disturb the answers
    if side == "gomlx":
        import gomlx.core as mx
        import gomlx.nn as nn
    else:
        import mlx.core as mx
        import mlx.nn as nn
    while head := sys.stdin.buffer.read(8):
        request, *rest = pickle.loads(sys.stdin.buffer.read(struct.unpack("<Q", head)[0]))
        if request == "grow":
            seed, length, table = rest
            table = {name: row for name, row in functions.TABLE.items() if table is None or name in table}
            answer = programs.Grower(seed, mx, nn).grow(table, length)
        elif request == "alone":
            answer = alone(mx, nn, *rest)
        else:
            answer = run(mx, nn, *rest)
        data = pickle.dumps(answer)
        out.write(struct.pack("<Q", len(data)) + data)
        out.flush()


# -------------------------------------------------------------------------------------------------------- the two sides

class Crashed(Exception):
    """The process ended, or took too long."""


class Side:
    """One process that runs programs; started again after it has crashed."""

    def __init__(self, name):
        self.name, self.process = name, None

    def ask(self, *request):
        if self.process is None:
            self.process = subprocess.Popen([sys.executable, os.path.abspath(__file__), "--serve", self.name],
                                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        data = pickle.dumps(request)
        try:
            self.process.stdin.write(struct.pack("<Q", len(data)) + data)
            self.process.stdin.flush()
            return pickle.loads(self.read(struct.unpack("<Q", self.read(8))[0]))
        except (Crashed, OSError, EOFError) as error:
            self.process.kill()
            code, self.process = self.process.wait(), None
            reason = str(error) or (signal.Signals(-code).name if code < 0 else f"exit {code}")
            raise Crashed(reason) from None

    def read(self, n):
        data, end = b"", time.monotonic() + LIMIT
        while len(data) < n:
            if not select.select([self.process.stdout], [], [], max(0, end - time.monotonic()))[0]:
                raise Crashed("too slow")
            piece = os.read(self.process.stdout.fileno(), n - len(data))
            if not piece:
                raise Crashed
            data += piece
        return data

    def close(self):
        if self.process is not None:
            self.process.stdin.close()
            self.process.wait()
            self.process.stdout.close()


# ----------------------------------------------------------------------------------------------------------- comparison

@dataclass
class Difference:
    # value, dtype, shape, count, error, "gomlx raises", "MLX raises", "... crashes"; carried:
    kind: str
                                # values of a chain whose every step alone agrees
    mode: str
    op: str                     # the step's name, or those of the chain
    dtypes: tuple               # of what the step reads, and those that it names
    detail: str
    program: programs.Program
    at: int = 0

    def key(self):
        return self.kind, self.mode, self.op, self.detail if "rais" in self.kind or self.kind == "error" else ""


def dtypes_of(program):
    named = [value for _, args, kwargs in program.steps for value in (*args, *kwargs.values())]
    return (*(dtype for _, dtype in program.inputs), *(v.name for v in named if isinstance(v, programs.Dtype)))


def far(got, want, dtype, allowance, sums):
    """Where values differ by more than the tolerance and the allowance. Of sums a part of the tolerance is absolute:
    terms that cancel leave the rounding of the largest."""
    if dtype not in TOLERANCE:
        return (got != want) & ~(allowance > 0)
    with np.errstate(all="ignore"):
        apart = np.abs(got - want)
        finite = np.abs(want[np.isfinite(want)])
        largest = max(finite.max(initial=0), 1e-2) if sums else 1e-3     # cotangents are about 1
        near = (apart <= TOLERANCE[dtype] * (np.abs(want) + largest) + 16 * allowance) & np.isfinite(want)
    return ~(near | np.isinf(allowance) | (got == want) | (np.isnan(got) & np.isnan(want)))


def compare(ours, theirs, program=None, spread=None):
    """(kind, step, detail) of the first difference, or None. program: where each step has its outcomes; transformed
    ones are sums. spread: other outcomes of ours, of disturbed inputs."""
    for at, (mine, yours) in enumerate(zip(ours, theirs)):
        raised = [next((o for o in side if o[0] == "error"), None) for side in (mine, yours)]
        if all(raised):
            return None if raised[1][1] in raised[0][3] else ("error", at, f"{raised[0][1]} for {raised[1][1]}")
        if any(raised):
            who, (_, name, text, _) = ("gomlx raises", raised[0]) if raised[0] else ("MLX raises", raised[1])
            return who, at, f"{name}: {text}"
        if len(mine) != len(yours):
            return "count", at, f"{len(mine)} arrays for {len(yours)}"
        for i, (a, b) in enumerate(zip(mine, yours)):
            for kind, which in (("dtype", 1), ("shape", 2)):
                if a[which] != b[which]:
                    return kind, at, f"{a[which]} for {b[which]}"
            allowance = np.zeros(a[2])
            for other in spread or ():
                if at >= len(other) or i >= len(other[at]) or other[at][i][0] == "error" or other[at][i][2] != a[2]:
                    allowance = np.full(a[2], np.inf)           # it is at an edge
                    break
                with np.errstate(all="ignore"):
                    moved = np.abs(np.subtract(other[at][i][3], a[3], dtype=complex if a[1] == "complex64" else float))
                moved = np.where((other[at][i][3] == a[3]) | (np.isnan(moved) & np.isnan(a[3])), 0, moved)
                allowance = np.maximum(allowance, np.where(np.isnan(moved), np.inf, moved))
            sums = program is None or bool(SUMS.fullmatch(program.steps[at][0]))
            wrong = far(a[3], b[3], a[1], allowance, sums)
            if wrong.any():
                where = tuple(int(n) for n in np.argwhere(wrong)[0])
                return "value", at, f"{a[3][where]} for {b[3][where]} at {where}, {a[1]}"
    return None if len(ours) == len(theirs) else ("count", 0, "steps")


class Comparison:
    """Two sides, and what has been seen."""

    def __init__(self, seed, table=None):
        self.seed, self.table = seed, table
        self.gomlx, self.mlx = Side("gomlx"), Side("mlx")
        self.compiling = True
        self.ran, self.known, self.unknown = collections.Counter(), collections.Counter(), []

    def difference(self, program, mode, seed):
        """(kind, step, detail) for one program in one mode, or None."""
        try:
            ours = self.gomlx.ask("run", program, mode, seed)
        except Crashed as error:
            return "gomlx crashes", 0, str(error)
        try:
            theirs = self.mlx.ask("run", program, mode, seed)
        except Crashed as error:
            return "MLX crashes", 0, str(error)
        steps = program if mode in ("eager", "compile") else None
        found = compare(ours, theirs, steps)
        if found and found[0] == "value":
            others = [self.gomlx.ask("run", disturbed(program, k), mode, seed) for k in range(6)]
            found = compare(ours, theirs, steps, others)
        return found

    def compiled_beside_eager(self, program, seed):
        """(kind, step, detail) of what gomlx gives otherwise in a compiled function."""
        try:
            eager, compiled = (self.gomlx.ask("run", program, mode, seed) for mode in ("eager", "compile"))
        except Crashed as error:
            return "gomlx crashes", 0, str(error)
        failed = [o[1] for o in eager[-1] if o[0] == "error"]
        if failed:
            return None if compiled[0][0][:2] == ("error", failed[0]) else ("error", 0,
                                                                            f"{compiled[0][0][1]} for {failed[0]}")
        found = compare(compiled, eager, program)
        if found and found[0] == "value":
            found = compare(compiled, eager, program, [self.gomlx.ask("run", disturbed(program, k), "eager", seed)
                                                       for k in range(6)])
        return found

    def right_by_loop(self, difference, seed):
        """Whether gomlx's vmap gives what its function gives on each of the batch."""
        modes = ("vmap", "loop") if difference.mode == "vmap" else ("vmapped vjp", "looped vjp")
        try:
            together, each = (self.gomlx.ask("run", difference.program, mode, seed) for mode in modes)
        except Crashed:
            return False
        return together[0][0][0] == each[0][0][0] == "array" and compare(together, each) is None

    def traced(self, program, mode, seed, found):
        """The Difference, of one step where one alone differs in the same way."""
        kind, at, detail = found
        consistent = mode == "eager" and kind == "value"
        whole = self.gomlx.ask("run", program, mode, seed) if consistent else None
        for k in range(len(program.steps)):
            try:
                single = self.gomlx.ask("alone", program, k)
            except Crashed:
                break
            if mode != "eager" and not (differentiable(single) if mode.endswith(("vjp", "jvp")) else single.inputs):
                continue
            again = (self.compiled_beside_eager(single, seed) if mode == "compiled beside eager"
                     else self.difference(single, mode, seed))
            if again and again[0] == kind:
                return Difference(kind, mode, program.steps[k][0], dtypes_of(single), again[2], single)
            if consistent:                          # the chain gives to the bit what its steps give one by one
                parts = self.gomlx.ask("run", single, mode, seed)[0]
                consistent = all(np.array_equal(a[3], b[3], equal_nan=a[1] in programs.INEXACT)
                                 for a, b in zip(whole[k], parts) if a[0] == "array")
        names = " > ".join(name for name, _, _ in program.steps)
        return Difference("carried" if consistent else kind, mode, names, dtypes_of(program), detail, program, at)

    def one(self, number, verbose=False):
        """Makes program `number` of the seed and compares it."""
        seed = self.seed * 1_000_003 + number
        r = random.Random(seed)
        mode = r.choices(list(MODES), MODES.values())[0]
        length = r.randint(1, 6) if mode in ("eager", "compile") else r.choice([1, 1, 1, 2, 3])
        try:
            program = self.gomlx.ask("grow", seed, length, self.table)
        except Crashed as error:
            self.unknown.append((number, Difference("gomlx crashes", "growing", "?", (), str(error),
                                                    programs.Program())))
            return
        if "jvp" in mode or "vjp" in mode:
            ends = program.counts[-1] and differentiable(program)
            mode = mode if ends else "eager"
        elif (mode == "vmap" and not program.inputs) or (mode == "compile" and not self.compiling):
            mode = "eager"
        if mode == "compiled vjp" and not self.compiling:
            mode = "vjp"
        self.ran[mode] += 1
        found = self.difference(program, mode, seed)
        if mode == "eager" and found is None and program.inputs:
            mode, found = "compiled beside eager", self.compiled_beside_eager(program, seed)
        if verbose:
            print(mode, programs.source(program), sep="\n")
            for side in (self.gomlx, self.mlx):
                try:
                    print(side.name, side.ask("run", program, mode, seed))
                except Crashed as error:
                    print(side.name, "crashed:", error)
        if found is None:
            return
        difference = self.traced(program, mode, seed, found)
        reason = known_differences.reason(difference)
        if not reason and mode != "eager":          # is it there without the transform too?
            plain = self.difference(program, "eager", seed)
            reason = known_differences.reason(self.traced(program, "eager", seed, plain)) if plain else None
        if not reason and difference.mode.startswith("vmap") and self.right_by_loop(difference, seed):
            reason = known_differences.LOOP
        if reason:
            self.known[reason] += 1
        else:
            self.unknown.append((number, difference))

    def close(self):
        self.gomlx.close()
        self.mlx.close()


def report(comparison, seconds):
    print(f"{sum(comparison.ran.values())} programs in {seconds:.0f} s: "
          + ", ".join(f"{n} {mode}" for mode, n in comparison.ran.most_common()))
    for reason, n in comparison.known.most_common():
        print(f"{n:8}  known: {reason}")
    classes = collections.defaultdict(list)
    for number, difference in comparison.unknown:
        classes[difference.key()].append((number, difference))
    for (kind, mode, op, _), members in sorted(classes.items(), key=lambda item: -len(item[1])):
        number, shortest = min(members, key=lambda member: len(programs.source(member[1].program)))
        print(f"\n{len(members):8}  {kind}, {mode}: {op} of {', '.join(shortest.dtypes)}; program {number}\n"
              f"{shortest.detail[:300]}\n" + "\n".join(line[:200]
                                                       for line in programs.source(shortest.program).splitlines()))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60, help="how long (60)")
    parser.add_argument("--programs", type=int, help="how many, whatever the time; without those that MLX compiles")
    parser.add_argument("--seed", type=int, default=1, help="which programs (1)")
    parser.add_argument("--only", type=int, help="one program, with what both sides gave")
    parser.add_argument("--ops", help="only these functions, with commas between them")
    parser.add_argument("--serve", choices=["gomlx", "mlx"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    comparison = Comparison(options.seed, options.ops.split(",") if options.ops else None)
    start = time.monotonic()
    if options.only is not None:
        comparison.one(options.only, verbose=True)
    else:
        comparison.compiling = options.programs is None
        number = 0
        while number < options.programs if options.programs else time.monotonic() - start < options.seconds:
            comparison.one(number)
            number += 1
    report(comparison, time.monotonic() - start)
    comparison.close()
    sys.exit(bool(comparison.unknown))


if __name__ == "__main__":
    main()
