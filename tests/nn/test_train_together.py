"""Runs of several processes: ranks of MPI and workers of Ray give the bits of one process."""
import json
import os
import re
import signal
import sys
import types

import pytest
import training_ranks
from mpi_programs import launched, needs_mpi, run_launched
from places import ROOT
from training_ranks import DATA, PAIRS, ROWS, options, said_of

import gomlx
from gomlx._training import identity, steps, teams

PROGRAM = os.path.join(ROOT, "tests", "support", "training_ranks.py")


@pytest.fixture(scope="module")
def model():
    with gomlx.load(threads=1) as loaded:
        yield loaded


def alone(model, loss="sft", **changes):
    return gomlx.train(model, DATA[loss], **options(loss, **changes)).finish()


def together(n, case, name="fable", folder="none", steps=3):
    return launched(n, PROGRAM, case, name, str(folder), str(steps))


# ---- ranks ----

@needs_mpi
def test_two_ranks_have_the_bits_of_one(model):
    assert together(2, "sft") == dict.fromkeys(range(2), said_of(alone(model, steps=3)))


@needs_mpi
@pytest.mark.slow
@pytest.mark.parametrize("n, loss", [(1, "sft"), (7, "sft"), (4, "dpo"), (7, "orpo"), (2, "kto")])
def test_ranks_have_the_bits_of_one(model, n, loss):
    """Of seven some have no row."""
    assert together(n, loss) == dict.fromkeys(range(n), said_of(alone(model, loss, steps=3)))


@needs_mpi
@pytest.mark.slow
def test_ranks_of_another_model(shared):
    path = os.path.join(shared, "data", "models", "qwen3")
    with gomlx.load(path, threads=2) as model:
        want = said_of(alone(model, steps=2))
    assert together(3, "sft", path, steps=2) == dict.fromkeys(range(3), want)


@needs_mpi
@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_ranks(model, tmp_path):
    want = said_of(alone(model, steps=5, eval_every=1, run=tmp_path / "whole"))
    run = gomlx.train(model, ROWS, **options(steps=5, eval_every=1, run=tmp_path / "run", save_every=1))
    next(run)
    run.stop()
    assert [one.split()[-1] for one in together(3, "resume", folder=tmp_path / "run", steps=3).values()] == ["3"] * 3
    assert together(2, "resume", folder=tmp_path / "run", steps=5) == dict.fromkeys(range(2), want)
    again = gomlx.train(model, ROWS, resume=tmp_path / "run", eval_data=ROWS[:3], progress=False)
    assert said_of(again) == want


@needs_mpi
@pytest.mark.slow
def test_a_rank_that_is_killed_ends_all_and_the_run_goes_on(model, tmp_path):
    found = together(3, "killed", folder=tmp_path / "run", steps=4)
    assert found.keys() == {0, 2}
    assert all(re.match("RuntimeError .*rank 1 is lost, its process has ended", one) for one in found.values()), found
    want = said_of(alone(model, steps=4))
    assert together(2, "resume", folder=tmp_path / "run", steps=4) == dict.fromkeys(range(2), want)


@needs_mpi
@pytest.mark.slow
def test_an_interrupt_of_one_rank_ends_all():
    found = together(2, "interrupted", steps=4)
    assert found[1].startswith("KeyboardInterrupt"), found
    assert re.match("RuntimeError distributed: rank 1 (ended its run: KeyboardInterrupt|was interrupted)",
                    found[0]), found


@needs_mpi
@pytest.mark.slow
def test_an_adapter_that_is_another_one_ends_all():
    assert together(2, "diverged", steps=4) == dict.fromkeys(
        range(2), "RuntimeError train: the adapter of rank 1 is no longer that of rank 0")


@needs_mpi
@pytest.mark.slow
@pytest.mark.parametrize("case, words", [
    ("broken", "Error step 1: the loss is nan; its rows: row "),
    ("other", "RuntimeError train: rank 1 has other settings than rank 0$")])
def test_all_ranks_end_with_what_is_wrong(case, words):
    found = together(2, case)
    assert len(found) == 2 and all(re.match(words, one) for one in found.values()), found


@needs_mpi
@pytest.mark.slow
def test_a_folder_that_is_there_ends_all_ranks(tmp_path):
    (tmp_path / "file").write_text("")
    found = together(2, "there", folder=tmp_path)
    assert found[0].startswith("FileExistsError run: ")
    assert "rank 0 ended its run: FileExistsError: run: " in found[1]


@needs_mpi
@pytest.mark.slow
def test_the_command(model, tmp_path):
    """`gomlx launch -n 2 -- gomlx train`: rank 0 alone tells of it."""
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    done = run_launched(2, sys.executable, "-P", "-m", "gomlx", "train", "fable", "--data", str(data), "--run",
                        str(tmp_path / "run"), "--steps", "2", "--threads", "1")
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"^step 2 of 2", done.stdout, re.M)) == 1
    assert os.path.exists(tmp_path / "run" / "adapter")


def test_what_is_there_is_sent_before_the_rest_is_computed():
    """Of each row the last layers' numbers, then those before them; a rank's zeros stand for what it could not give."""
    sizes = {f"layer{i}": (3, i + 1) for i in range(9)}
    task = types.SimpleNamespace(parameters={name: training_ranks.mx.zeros(shape) for name, shape in sizes.items()},
                                 rows=[0, 1])
    pieces = teams.pieces_of(task)
    assert [name for names, _, _ in pieces[::-1] for name in names] == list(sizes) and len(pieces) == 4
    assert [begin for _, begin, _ in pieces] == [end for _, _, end in pieces[1:]] + [0] and pieces[0][2] == 135
    told = []

    def row_gradients(task, row, first, ready, names, take):
        for i, these in enumerate(names):
            told.append(f"computed {row} {i}")
            take({name: training_ranks.mx.full(sizes[name], row + 1.0) for name in these}, i)
        return [0.5], {}

    work = types.SimpleNamespace(row_gradients=row_gradients)
    made, values, _ = teams.by_row(work, task, [0, 1], 0, None,
                                   lambda row, begin, end: told.append(f"sent {begin} {end}"))
    assert told == [one for row in range(2) for i, (_, begin, end) in enumerate(pieces)
                    for one in (f"computed {row} {i}", f"sent {begin} {end}")]
    assert values == [0.5, 0.5] and made.shape == (2, 135) and (made == [[1.0], [2.0]]).all()


def test_what_is_trained_together(model):
    with pytest.raises(NotImplementedError, match="lm_head.weight is trained as a whole, which several processes do"):
        teams.check_shareable(types.SimpleNamespace(adapter=types.SimpleNamespace(full={"lm_head.weight": None})))
    with pytest.raises(TypeError, match="group: expected a Group"):
        gomlx.train(model, ROWS, group=3)
    with pytest.raises(TypeError, match="ray: expected a gomlx.ScalingOptions"):
        gomlx.train(model, ROWS, ray=2)
    with pytest.raises(ValueError, match="workers is 0"):
        gomlx.ScalingOptions(workers=0)


# ---- Ray ----

class Lost(Exception):
    pass


class Result:
    def __init__(self, value):
        self.value = value


class FakeRay(types.ModuleType):
    """Calls at once, in this process. deaths: the numbers of calls whose worker is lost."""

    def __init__(self, deaths=()):
        super().__init__("ray")
        self.exceptions = types.SimpleNamespace(RayActorError=Lost, ObjectLostError=Lost)
        self.deaths, self.calls, self.made, self.killed = set(deaths), 0, 0, 0

    def is_initialized(self):
        return True

    def put(self, value):
        return value

    def wait(self, waiting, num_returns):
        return waiting[-num_returns:], waiting[:-num_returns]           # the last one first

    def get(self, result):
        if isinstance(result.value, Exception):
            raise result.value
        return result.value

    def kill(self, worker):
        self.killed += 1

    def remote(self, kind):
        def make(*args, **named):
            self.made += 1
            worker = kind(*args, **named)

            def call(*given):
                self.calls += 1
                lost = self.calls in self.deaths
                return Result(Lost(f"call {self.calls}") if lost else worker.share(*given))
            return types.SimpleNamespace(share=types.SimpleNamespace(remote=call))
        return types.SimpleNamespace(options=lambda num_cpus: types.SimpleNamespace(remote=make))


@pytest.mark.parametrize("loss", ["sft", "dpo", "kto"])
def test_lost_workers_are_replaced_and_the_bits_stay(model, loss, monkeypatch):
    want = said_of(alone(model, loss, steps=2))
    fake = FakeRay(deaths=[2, 5, 6])
    monkeypatch.setitem(sys.modules, "ray", fake)
    run = gomlx.train(model, DATA[loss], ray=gomlx.ScalingOptions(workers=3), **options(loss, steps=2)).finish()
    assert said_of(run) == want and fake.made == 6 and fake.killed == 3


def test_too_many_lost_workers_end_the_run(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", FakeRay(deaths=[1, 3]))
    run = gomlx.train(model, PAIRS, ray=gomlx.ScalingOptions(workers=2, replacements=1), **options("dpo", steps=2))
    with pytest.raises(RuntimeError, match="train: worker . of 2 is lost, after 1 that were replaced: call 3"):
        next(run)
    assert run.step == 0
    next(run)


def test_errors_of_workers_name_the_rows(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", FakeRay())
    broken = {layer: gomlx.Term(training_ranks.mx.full(term.a.shape, 3e38), term.b, 1.0)
              for layer, term in model.apply_lora().terms.items()}
    run = gomlx.train(model, ROWS, ray=gomlx.ScalingOptions(workers=2), **options(lora=gomlx.Adapter(broken)))
    with pytest.raises(gomlx.Error, match=r"step 1: the loss is nan; its rows: row \d+ \(worker 0\)$"):
        next(run)


@pytest.mark.parametrize("name, words", [
    ("instruction set", r"its instruction set is \w+, the driver's other"),
    ("gomlx", r"its gomlx is [\d.]+.*, the driver's other"),
    ("model (hidden_size)", r"its model \(hidden_size\) is \d+, the driver's other"),
    ("model (weights)", r"its model \(weights\) is [\da-f]{64}, the driver's other")])
def test_workers_that_are_not_like_the_driver(model, name, words, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", FakeRay())
    monkeypatch.setattr(steps, "identity_of", lambda of: identity.identity_of(of) | {name: "other"})
    run = gomlx.train(model, ROWS, ray=gomlx.ScalingOptions(workers=2), **options())
    with pytest.raises(gomlx.Error, match=rf"train: a worker is not what the driver is: {words} \(worker 0\)$"):
        next(run)


def test_ray_is_asked_for(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install 'gomlx\[ray\]'"):
        gomlx.train(model, ROWS, ray=gomlx.ScalingOptions(workers=2))


@pytest.mark.slow
def test_workers_of_ray(model, tmp_path):
    """One of them is killed between two steps."""
    ray = pytest.importorskip("ray")
    want = said_of(alone(model, steps=3))
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=200 << 20)
    try:
        run = gomlx.train(model, ROWS, ray=gomlx.ScalingOptions(workers=2), **options(steps=3))
        next(run)
        os.kill(worker_below(os.getpid()), signal.SIGKILL)
        assert said_of(run.finish()) == want
    finally:
        ray.shutdown()


def worker_below(process):
    """The number of a process of Ray that holds a Worker, among those that this one has started."""
    parents, names = {}, {}
    for one in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{one}/stat") as stat, open(f"/proc/{one}/cmdline") as line:
                parents[int(one)] = int(stat.read().rsplit(")", 1)[1].split()[1])
                names[int(one)] = line.read()
        except OSError:
            continue

    def below(one):
        return one == process or one in parents and below(parents[one])

    return next(one for one in names if "ray::Worker" in names[one] and below(one))


def test_shares_cover_all_rows():
    for rows in (1, 2, 5, 16):
        for size in (1, 2, 3, 7):
            cuts = [teams.bounds(rows, rank, size) for rank in range(size)]
            assert cuts[0][0] == 0 and cuts[-1][1] == rows
            assert all(a[1] == b[0] for a, b in zip(cuts, cuts[1:]))

