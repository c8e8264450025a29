"""What notebooks show: each object's _repr_html_ says what it has, and no text of a model or a file becomes markup."""
import dataclasses
import html.parser

import pytest

import gomlx
import gomlx.core as mx
from gomlx._base import notebook
from gomlx._generation.inspection import LensToken, LogitLens
from gomlx._generation.model import Info
from gomlx._generation.scoring import Score
from gomlx._generation.streams import Result
from gomlx._generation.tool_calls import ToolCall

TAGS = {"div", "span", "b", "table", "tr", "td", "th", "details", "summary"}
HOSTILE = "<script>alert(1)</script>'\"><img src=x onerror=alert(1)>&lt;\x1b[31m\u202e</div></td>"


class Page(html.parser.HTMLParser):
    """The text of a page, and its titles; whatever is not expected on it is an AssertionError."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.texts, self.titles, self._open = [], [], []
        self.feed(page)
        self.close()
        assert self._open == []
        self.text = "".join(self.texts)

    def handle_starttag(self, tag, attributes):
        assert tag in TAGS, tag
        if self._open:
            assert {name for name, _ in attributes} <= {"style", "title"}, attributes
        else:                                               # MathJax reads nothing of it
            assert attributes == [("class", "tex2jax_ignore mathjax_ignore")], attributes
        self.titles += [value for name, value in attributes if name == "title"]
        for name, value in attributes:
            assert name != "style" or not {"url", "<", "expression"} & set(value.replace("(", " ").split()), value
        self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    def handle_comment(self, data):
        raise AssertionError(data)

    handle_decl = handle_pi = unknown_decl = handle_comment


def shown(thing):
    return Page(thing._repr_html_())


@pytest.fixture(scope="module")
def model():
    with gomlx.load() as made:
        yield made


def result(**changes):
    return Result(**{"text": "a", "tokens": [1], "finish_reason": "stop", "prompt_tokens": 3, "cached_tokens": 2,
                     "generated_tokens": 1, "prefill_tps": None, "decode_tps": 10.0, "seed": 7, "stop": None,
                     "logprobs": [-0.5], "top_logprobs": [], "answer": "a"} | changes)


def plan(**changes):
    return dataclasses.replace(gomlx.plan_memory(), **changes)


def test_results(model):
    page = shown(model.generate("Once upon a time", max_tokens=5, temperature=0, seed=3).read())
    assert "5 tokens after 4" in page.text and "ended by length" in page.text and "seed 3" in page.text
    page = shown(result(reasoning="hm", answer="yes", text="<think>hm</think>yes", error=ValueError("no"),
                        tool_calls=[ToolCall("f", {"x": 1}, "raw"), ToolCall(None, None, "bad", "cannot be read")]))
    for part in ("hm", "yes", "f({'x': 1})", "cannot be read: bad", "ValueError: no"):
        assert part in page.text
    assert "<think>" not in page.text


def test_streams(model):
    stream = model.generate("Once upon a time", max_tokens=6, temperature=0)
    assert "has not begun" in shown(stream).text
    first = next(stream)
    page = shown(stream)
    assert "1 tokens so far" in page.text and first.text in page.text and "probability" in page.titles[0]
    whole = stream.read()
    assert whole.text in shown(stream).text and "ended by length" in shown(stream).text


def test_tokenizers(model):
    page = shown(model.tokenizer)
    assert "2048 tokens" in page.text and "<|im_end|>" in page.text and "1984" in page.text
    page = shown(model.tokenizer("Once upon", "a\ntime"))
    assert "5 tokens" in page.text.replace("6 tokens", "5 tokens") and "Ġupon" in page.text
    assert any(one.startswith("id 394, characters 0 to 4") for one in page.titles)


def test_models(model):
    page = shown(model)
    assert "fable-Q8_0.gguf" in page.text and "4,066,560 parameters" in page.text and "temperature 0.7" in page.text
    assert model.info["path"] not in page.text                  # a notebook that is given away says nothing of folders
    assert isinstance(model.info, dict) and "n_layers6" in shown(model.info).text


def test_a_model_of_another_backend_knows_less(model):
    class Other:
        info = Info(path="/x/y", architecture="llama", stop_ids=[], sampling={})
        vocab_size, context_length = 10, 20

    assert "Model llama y" in Page(notebook.model(Other)).text.replace("\n", " ")


def test_lenses(model):
    page = shown(model.logit_lens("Once upon a time", 2))
    assert page.text.count(" upon") >= 2 and "layer" in page.text and "0.99" in "".join(page.titles)
    page = shown(model.logit_lens("Once upon a time " * 20))
    assert f"the last {notebook.MOST_POSITIONS} of" in page.text


def test_scores(model):
    score = model.score("Once upon a 🦊 time")
    assert "".join(score.texts) == "Once upon a 🦊 time" and len(score.texts) == len(score.tokens)
    page = shown(score)
    assert f"perplexity {score.perplexity:.4g}" in page.text
    assert page.titles[0] == "the first token: nothing is before it"
    assert "perplexity" not in shown(model.score([5])).text


def test_plans():
    assert "MemoryPlan: fits" in shown(plan(fits=True)).text
    page = shown(plan(fits=False, why="too large"))
    assert "does not fit" in page.text and "too large" in page.text and "KV cache" in page.text


@pytest.mark.parametrize("array, parts", [
    (mx.array(3.5), ["float32 · scalar", "3.5"]), (mx.arange(5), ["int32 · 5", "01234"]),
    (mx.arange(1000), ["0123…996997998999"]), (mx.zeros((0, 3)), ["float32 · 0 × 3"]),
    (mx.arange(600).reshape(30, 20), ["30 × 20", "⋮", "…", "599", "26"]),
    (mx.arange(24).reshape(2, 3, 4), ["shown is [0, :, :]", "11"]), (mx.zeros((0, 0, 0)), ["0 × 0 × 0"]),
    (mx.array([True, False]), ["bool", "TrueFalse"]), (mx.array([1 + 2j]), ["complex64", "(1+2j)"]),
    (mx.ones((2, 2), mx.bfloat16), ["bfloat16"]), (mx.array([float("nan"), float("-inf")]), ["nan-inf"]),
    (mx.array(7), ["int32 · scalar", "7"]), (mx.arange(12).reshape(3, 4).T[::2], ["2 × 3", "10"])],
    ids=lambda one: "" if isinstance(one, list) else str(one.shape))
def test_arrays(array, parts):
    page = shown(array)
    for part in parts:
        assert part in page.text, page.text


@pytest.mark.parametrize("length", range(1, 13))
def test_edges_of_arrays(length):
    for shape in ((length,), (length, 2), (2, length)):
        values = mx.arange(100, 100 + length * (1 if len(shape) == 1 else 2)).reshape(shape)
        page = shown(values)
        assert str(int(values.flatten()[-1].item())) in page.text and ("…" in page.text
                                                                       or "⋮" in page.text) == (length > 9)


def test_no_text_becomes_markup(model):
    hostile = [
        result(text=HOSTILE, answer=HOSTILE, stop=HOSTILE), result(reasoning=HOSTILE, error=ValueError(HOSTILE)),
        result(tool_calls=[ToolCall(HOSTILE, {HOSTILE: HOSTILE}, HOSTILE), ToolCall(None, None, HOSTILE, HOSTILE)]),
        LogitLens([1], [HOSTILE], [[[LensToken(1, HOSTILE, 0.5)]]]),
        Score([1, 2], [None, -1.0], -1.0, 2.7, [HOSTILE, HOSTILE]),
        plan(why=HOSTILE, fits=False, path=HOSTILE, budget_from=HOSTILE),
        Info({"path": HOSTILE, HOSTILE: {HOSTILE: HOSTILE, "a": 1, "b": 2, "c": 3, "d": [HOSTILE] * 9}}),
        model.tokenizer(HOSTILE, HOSTILE), model.generate(HOSTILE, max_tokens=1)]
    for one in hostile:
        assert not any(part in one._repr_html_() for part in ("<script", "\x1b", "\u202e"))
        shown(one)
    assert Page(notebook.token_stream([HOSTILE], [-1.0], None)).text.endswith("</div></td>")
    assert Page(notebook.text("a<b>&\"'\x00")).text == "a<b>&\"'\\u0000"


def test_sizes_are_bounded(model):
    assert len(notebook.token_stream(["word "] * 100_000, [-1.0] * 100_000, None)) < 400_000
    assert "and 99000 more" in notebook.token_stream(["word "] * 100_000, [-1.0] * 100_000, None)
    assert len(result(text="x" * 10**6, answer="")._repr_html_()) < 30_000
    assert "characters more" in shown(result(text="x" * 10**6)).text
    assert len(mx.zeros((3000, 3000))._repr_html_()) < 20_000
    assert len(Info({"metadata": {str(i): "x" * 1000 for i in range(1000)}})._repr_html_()) < 100_000
    long, calls = "<" * 20_000, [ToolCall("f", {"x": "<" * 30_000}, "raw")] * 2000
    for one in (result(tool_calls=calls), Score([1] * 5000, [-1.0] * 5000, -1.0, 2.7, [long] * 5000),
                LogitLens([1] * 50, [long] * 50, [[[LensToken(1, long, 0.5)] * 10] * 50] * 40),
                Info({f"{i}{long}": {f"{j}{long}": long for j in range(200)} for i in range(200)}),
                 model.tokenizer("<" * 10**5)):
        assert len(one._repr_html_()) <= notebook.MOST_HTML + 1000
        shown(one)
    assert "too many to show" in shown(result(tool_calls=calls)).text
    assert "and 900 more" in shown(Info({str(i): 1 for i in range(1000)})).text


class Unsayable(Exception):
    def __str__(self):
        raise RuntimeError("no")


def test_what_has_no_text_is_shown_by_its_type():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    assert "Unsayable: (Unsayable without a text: RuntimeError)" in shown(result(error=Unsayable())).text
    assert "f((dict without a text: RecursionError))" in shown(result(tool_calls=[ToolCall("f", {"x": deep}, "")])).text
    assert "(int without a text: ValueError)" in shown(Info({"a": 10**5000, "b": [deep]})).text
    strange = Score([1, 2, 3], [float("nan"), float("-inf"), None], float("nan"), float("inf"), ["a\ud800", "b", "c"])
    assert "a\\ud800" in shown(strange).text
    strange = LogitLens([1], ["\ud800"], [[[LensToken(1, "\ud800", float("nan"))]]])
    assert "\\ud800" in shown(strange).text


def test_a_closed_model_is_shown_as_closed():
    with gomlx.load() as made:
        assert "closed" not in shown(made).text
    assert "the model is closed" in shown(made).text
