"""Python programs that tests run with models on the fake device, each in a process of its own."""
import os

from gpu_programs import run_program
from places import TESTS

BEGIN = """
import contextlib

def launches():
    return fake.fake_count(b"launch")

def told(events):
    return [(e.id, np.float32(e.logprob).tobytes(), e.text) for e in events]

def greedy(model, prompt="Once upon a time", n=12, **options):
    return told(model.generate(prompt, max_tokens=n, temperature=0, ignore_eos=True, **options))

def logits_of(model, ids):
    found = np.array(model._engine.logits([ids])[0])
    assert np.isfinite(found).all()
    return found

@contextlib.contextmanager
def both(path=None, gpu_layers=None, **options):
    with gomlx.load(path, device="cpu", **options) as cpu, \\
            gomlx.load(path, device="cuda", gpu_layers=gpu_layers, **options) as gpu:
        assert cpu.info["placement"]["device"] == "cpu" and gpu.info["placement"]["device"] == "cuda:0"
        yield cpu, gpu

def same_logits(cpu, gpu, ids):
    before = launches()
    here = logits_of(cpu, ids)
    assert launches() == before
    assert np.array_equal(here, logits_of(gpu, ids)) and launches() > before

def session_moves(first, second, prompt):
    # Saved where it began and restored on the other side; forks and cuts of both go on alike.
    session = first.session()
    greedy(first, prompt, session=session)
    saved = session.save()
    there = second.restore_session(saved)
    assert there.save() == saved and there.ids == session.ids
    fork = session.fork()
    want = greedy(first, " And then", session=session, append=True)
    assert greedy(second, " And then", session=there, append=True) == want
    assert greedy(first, " And then", session=fork, append=True) == want
    assert fork.truncate(100) == there.truncate(100)
    assert greedy(first, " But", session=fork, append=True) == greedy(second, " But", session=there, append=True)

def go_on(session, ids, n):
    return [(e.id, np.float32(e.logprob).tobytes()) for e in
            gomlx._gomlx.stream(session, None, ids, max_tokens=n) if e.id >= 0]
"""
# Before programs that write models of random weights.
GOLDEN = f"""
        import sys
        sys.path.insert(0, {os.path.join(TESTS, "support")!r})
        from architectures import CONFIGS, LINEAR, Golden
        golden = Golden()
"""


def run_models(library, program, **environment):
    """What a program prints that has the fake device, and the functions above."""
    environment = {"GOMLX_DEVICE_LIBRARY": library, "GOMLX_DEVICE": "", **environment}
    text = "\n".join("    " * 2 + line if line else line for line in BEGIN.splitlines())
    return run_program(text + program, "GOMLX_DEVICE_LIBRARY", {**os.environ, **environment}, timeout=300)
