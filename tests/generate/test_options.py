"""GenerationOptions: options that are checked once and used by many calls."""
import pytest

import gomlx
from gomlx import GenerationOptions, Sampling


@pytest.fixture(scope="module")
def model():
    with gomlx.load() as loaded:
        yield loaded


def test_the_same_text_as_by_keywords(model):
    by_name = {"max_tokens": 12, "temperature": 0.9, "top_k": 20, "seed": 5, "stop": "xyz"}
    made = GenerationOptions(**by_name)
    asked = model.generate("Once upon a time", **by_name).read()
    assert model.generate("Once upon a time", options=made).read().tokens == asked.tokens
    assert model.generate_batch(["Once upon a time"], options=[made]).read()[0].tokens == asked.tokens
    assert [one.tokens for one in model.generate("Once upon a time", n=2, options=made).read()][0] == asked.tokens
    messages = [{"role": "user", "content": "A story."}]
    assert model.chat(messages, options=made).read().tokens == model.chat(messages, **by_name).read().tokens


def test_what_is_given_besides_changes_them(model):
    made = GenerationOptions(max_tokens=3, temperature=1.5, seed=1)
    greedy = model.generate("The cat", options=made, temperature=0, max_tokens=5).read()
    assert greedy.tokens == model.generate("The cat", temperature=0, max_tokens=5).read().tokens
    assert made.max_tokens == 3 and made.sampling_fields == {"temperature": 1.5}
    same = model.generate("The cat", options=made, temperature=None).read()       # None changes nothing
    assert same.tokens == model.generate("The cat", options=made).read().tokens


def test_given_and_replace():
    made = GenerationOptions(stop=["a"], stop_ids=(), min_p=None, top_p=0.5, ignore_eos=True)
    assert made.given() == {"stop": ["a"], "ignore_eos": True, "top_p": 0.5}
    assert made.replace(stop=None, seed=2).given() == {"ignore_eos": True, "top_p": 0.5, "seed": 2}
    assert repr(made) == "GenerationOptions(stop=['a'], ignore_eos=True, top_p=0.5)"
    assert GenerationOptions().given() == {} and GenerationOptions(stop="end").stop == ["end"]
    own = Sampling(temperature=0.3, top_k=4)
    assert made.sampling_of(own) == Sampling(temperature=0.3, top_k=4, top_p=0.5)
    assert made.replace(sampling=Sampling(min_p=0.1)).sampling_of(own) == Sampling(min_p=0.1, top_p=0.5)
    with pytest.raises(AttributeError):
        made.seed = 3


@pytest.mark.parametrize("options, error, match", [
    ({"max_tokens": -1}, ValueError, "max_tokens is -1, expected 0"), ({"max_tokens": 1.5}, TypeError, "max_tokens"),
    ({"seed": 2**64}, ValueError, "seed"), ({"stop": [1]}, TypeError, "stop: expected a text"),
    ({"parser": 3}, TypeError, "parser"), ({"prefill": "fast"}, ValueError, "prefill is 'fast', expected one of auto"),
    ({"append": True}, ValueError, "append: there is no session"), ({"session": 3}, TypeError, "session"),
    ({"probe": 3}, TypeError, "probe"), ({"steer": 3}, TypeError, "steer"), ({"timeout": 0}, ValueError, "timeout"),
    ({"sampling": {}}, TypeError, "sampling: expected a gomlx.Sampling, got dict"),
    ({"min_tokens": None}, TypeError, "min_tokens"),
    ({"max_token": 3}, TypeError, "Did you mean 'max_tokens'")])
def test_what_is_wrong_is_said_at_once(options, error, match):
    with pytest.raises(error, match=match):
        GenerationOptions(**options)


def test_options_of_another_kind(model):
    with pytest.raises(TypeError, match="options: expected gomlx.GenerationOptions, got dict"):
        model.generate("x", options={"max_tokens": 3})


def test_a_thinking_budget_needs_a_parser(model):
    with pytest.raises(ValueError, match="knows no reasoning, and no parser"):
        model.generate("x", thinking_budget=5)
