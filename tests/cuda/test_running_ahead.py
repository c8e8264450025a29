"""A device begins the next step of decoding before the token of the one under way is known. The fake device runs what
it was asked for as late as can be, on memory that only it can touch, and has the processor's kernels: so whatever ends
a stream, joins it or shares its cache, all bits are the processor's."""
import os
import shutil

import pytest
from fake_device import build_fake_device
from gpu_programs import run_program

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler: gcc")

BEGIN = """
def graphs():
    return fake.fake_count(b"graph")

def told(events):
    return [(e.id, np.float32(e.logprob).tobytes(), e.text, e.finish_reason) for e in events]

cpu, gpu = gomlx.load(device="cpu"), gomlx.load(device="cuda")

def said(prompt="Once upon a time", session=None, temperature=0, **options):
    out = []
    for model in (cpu, gpu):
        if session:
            options["session"] = session[model is gpu]
        out.append(told(model.generate(prompt, temperature=temperature, **options)))
    assert out[0] == out[1], out
    return out[0]
"""


@pytest.fixture(scope="module")
def run():
    environment = {**os.environ, "GOMLX_DEVICE_LIBRARY": build_fake_device(), "GOMLX_DEVICE": ""}

    def run(program, begin=BEGIN):
        text = "\n".join("    " * 2 + line if line else line for line in begin.splitlines())
        return run_program(text + program, "GOMLX_DEVICE_LIBRARY", environment, timeout=300)

    return run


def test_a_step_is_begun_behind_the_one_under_way(run):
    """Of ten tokens the first is the prompt's, the second of a step that becomes a graph; none is begun in vain at the
    end of what was asked for. Streams that draw, or read logits, have each step for itself."""
    run("""
        def begun(taken, n=400, **options):
            before = graphs()
            options = {"temperature": 0, "ignore_eos": True, **options}
            stream = gpu.generate("Once upon a time", max_tokens=n, **options)
            for _ in range(taken):
                next(stream)
            count = graphs() - before
            stream.close()
            return count
        gpu.generate("A", max_tokens=3, temperature=0).read()
        assert begun(10) == 10 - 2 + 1, begun(10)
        assert begun(10, n=10) == 8
        for options in ({"temperature": 1.0}, {"top_logprobs": 2}, {"repetition_penalty": 1.1},
                        {"logit_bias": {5: -1.0}}, {"min_tokens": 300, "ignore_eos": False},
                        {"logits_processors": [lambda ids, logits: None]}):
            assert begun(10, **options) == 8, options
    """)


def test_what_ends_a_stream_ends_it_where_it_did(run):
    """Each end one step late, then another answer of the same session, whose saved bytes are the processor's."""
    run("""
        text = "".join(e[2] for e in said(max_tokens=60, ignore_eos=True))
        ids = [e[0] for e in said(max_tokens=60, ignore_eos=True)]
        word = text[40:44]
        ends = [{"max_tokens": 7}, {"max_tokens": 60, "stop": [word]}, {"max_tokens": 60, "stop_ids": [ids[9]]},
                {"max_tokens": 60, "stop_ids": [ids[9]], "min_tokens": 30}, {}]
        for end in ends:
            sessions = cpu.session(), gpu.session()
            first = said(session=sessions, **end)
            assert len(first) > 3
            assert sessions[0].save() == sessions[1].save()
            said(" And then", session=sessions, append=True, max_tokens=9)
            assert sessions[0].save() == sessions[1].save()
    """)


def test_a_cancelled_stream_leaves_its_session(run):
    run("""
        sessions = cpu.session(), gpu.session()
        for model, session in zip((cpu, gpu), sessions):
            stream = model.generate("Once upon a time", session=session, max_tokens=300, temperature=0)
            for _ in range(20):
                next(stream)
            stream.close()
        assert sessions[0].save() == sessions[1].save()
        said(" And so", session=sessions, append=True, max_tokens=12)
    """)


def test_blocks_of_keys_that_must_grow(run):
    """Over the ends of two blocks, and up to the end of the context."""
    run("""
        context = cpu.info["context_length"]
        long = "The fox and the crow. " * 30
        n = len(gpu.tokenizer.encode_prompt(long))
        assert len(said(long, max_tokens=600 - n, ignore_eos=True)) == 600 - n
        ids = [i % 900 + 5 for i in range(context - 20)]
        last = said(ids, ignore_eos=True)
        assert len(last) == 20 and last[-1][3] == "context", last[-1]
    """)


def test_members_that_come_and_go(run):
    """What is said in a batch is what is said alone, whoever else is in it: some draw, some end early, one is long."""
    run("""
        asked = [("Once", {"max_tokens": 40}), ("The king", {"max_tokens": 3}),
                 ("A cat", {"max_tokens": 25, "temperature": 0.9, "seed": 3}), ("The fox. " * 70, {"max_tokens": 30}),
                 ("He said", {"max_tokens": 30, "top_logprobs": 3}), ("She", {"max_tokens": 50})]
        def options(one):
            return {"temperature": 0, "ignore_eos": True, **one}
        alone = [said(prompt, **options(one)) for prompt, one in asked]
        with gpu.scheduler() as scheduler:
            for _ in range(2):
                open_ = [scheduler.generate(prompt, **options(one)) for prompt, one in asked]
                assert [told(one) for one in open_] == alone
            both = [scheduler.generate(prompt, **options(one)) for prompt, one in (asked[0], asked[5])]
            for _ in range(5):
                next(both[0])
            both[0].cancel()
            assert told(both[1]) == alone[5]
    """)


def test_a_fork_while_a_step_is_begun(run):
    """Two go on from one cache, of which a step in vain, or one that counts, has written the next position."""
    run("""
        def tokens(model, session, ids, n):
            return [(e.id, np.float32(e.logprob).tobytes()) for e in
                    gomlx._gomlx.stream(session, None, ids, max_tokens=n) if e.id >= 0]

        prompt = gpu.tokenizer.encode_prompt("Once upon a time")
        want = tokens(cpu, cpu._engine.new_session(), prompt, 40)
        for taken in (1, 2, 3, 9):
            decoder, session = gpu._engine.new_decoder(), gpu._engine.new_session()
            stream = gomlx._gomlx.stream(session, None, prompt, max_tokens=40)
            decoder.add(stream)
            found = []
            def read(n):
                while len(found) < n:
                    _, e = decoder.step()
                    found.append((e.id, np.float32(e.logprob).tobytes()))
            read(taken)
            fork = decoder.fork(stream)
            ids = prompt + [e[0] for e in want[:taken]]
            other = tokens(gpu, fork, ids, 40 - taken)
            read(taken + 1)
            again = tokens(gpu, decoder.fork(stream), ids, 40 - taken)
            read(40)
            assert found == want and other == again == want[taken:], taken
    """)


def test_other_work_between_two_steps(run):
    """Arrays that are computed meanwhile, another model's steps, and times that are no less than what passed."""
    run("""
        import time
        want = said(max_tokens=30, ignore_eos=True)
        second = gomlx.load(device="cuda")
        streams = [model.generate("Once upon a time", max_tokens=30, temperature=0, ignore_eos=True)
                   for model in (gpu, second)]
        found = [[], []]
        began = time.monotonic()
        for i in range(30):
            for k in (0, 1):
                found[k] += told([next(streams[k])])
            x = mx.arange(1000, stream=mx.gpu)
            assert (x * i).sum().item() == 499500 * i
        assert found == [want, want]
        seconds = streams[0].result.decode_seconds
        assert 0 < seconds < time.monotonic() - began, seconds
    """)


@pytest.mark.parametrize("what", ["graph", "wait", "copy", "lose"])
def test_what_fails_while_a_step_is_begun(run, what):
    """An error of the stream that it happened to, at each of its steps; the model goes on if its device does."""
    run(f"""
        want = said(max_tokens=12, ignore_eos=True)
        failed = 0
        for nth in ((1, 2, 3, 5, 8) if {what!r} != "lose" else (9,)):
            fake.fake_fail({what!r}.encode(), nth)
            try:
                assert told(gpu.generate("Once upon a time", max_tokens=12, temperature=0, ignore_eos=True)) == want
            except (gomlx.Error, RuntimeError) as error:
                failed += 1
                assert "fake" in str(error), error
            fake.fake_fail({what!r}.encode(), 0)
            if {what!r} != "lose":
                assert said(max_tokens=12, ignore_eos=True) == want, nth
        assert failed > 0
    """)


def test_recurrent_models_have_each_step_for_itself(run, tmp_path):
    """A state cannot be taken back."""
    run(f"""
        import sys
        sys.path.insert(0, {os.path.dirname(os.path.abspath(__file__))!r} + "/../support")
        from architectures import CONFIGS, LINEAR, Golden
        golden = Golden()
        case = next(case for case in CONFIGS if LINEAR in str(CONFIGS[case]))
        path, ids = golden.save({str(tmp_path)!r}, case), golden.ids(case)
        out = []
        for device in (0, 1):
            model = gomlx._gomlx.load_model(path, device=device)
            before = fake.fake_count(b"graph")
            out.append([(e.id, np.float32(e.logprob).tobytes()) for e in
                        gomlx._gomlx.stream(model.new_session(), None, ids, max_tokens=8) if e.id >= 0])
        assert out[0] == out[1] and fake.fake_count(b"graph") - before <= 6
    """, begin="")
