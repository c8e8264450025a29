"""Chat templates: where they are found, what they may use, how they fail; prompts begin with BOS exactly once."""
import datetime
import json

import pytest

import gomlx
from gomlx._generation import chat, chat_formats, defaults
from gomlx._generation.tokenizer import Tokenizer

pytest.importorskip("jinja2")
HI = [{"role": "user", "content": "hi"}]


def write(folder, **files):
    for name, value in files.items():
        path = folder / name.replace("__", ".")
        path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")


def test_blocks_are_trimmed_as_templates_expect():
    template = "{% for m in messages %}\n    {% if true %}\n<{{ m.content }}>\n    {% endif %}\n{% endfor %}\nend"
    assert chat.render(template, HI) == "<hi>\nend"


def test_names_that_templates_use():
    template = ("{% generation %}{% set a = 1 %}{% endgeneration %}{% for i in range(9) %}{% if i == 2 %}{% continue %}"
                "{% elif i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %} {{ strftime_now('%Y') }} {{ tools | tojson "
                "}}")
    year = str(datetime.date.today().year)
    assert chat.render(template, HI, tools=[{"a": "<é>'&"}]) == f"013 {year} [{{\"a\": \"<é>'&\"}}]"
    assert chat.render("{{ {'b': [1], 'a': 2} | tojson(indent=2, sort_keys=true) }}", HI) == \
        '{\n  "a": 2,\n  "b": [\n    1\n  ]\n}'


def test_products_and_powers_of_templates():
    assert chat.render("{{ '-' * 3 }} {{ 2 * 3 }} {{ 2 ** 10 }} {{ 0.5 * 4 }}", HI) == "--- 6 1024 2.0"


def test_a_template_that_refuses():
    with pytest.raises(ValueError, match=r"refuses these messages \(user\): roles must alternate"):
        chat.render("{{ raise_exception('roles must alternate') }}", HI)


@pytest.mark.parametrize("template, line, words", [
    ("a\n{% for %}", 2, "Expected"),
    ("a\n\n{{ messages[0].x.y }}", 3, "UndefinedError"),
    ("{{ 1 + 'a' }}", 1, "TypeError"),
    ("a\n{{ ''.__class__.__mro__ }}", 2, "SecurityError"),
    ("a\n{{ messages.append(1) }}", 2, "SecurityError"),
    ("a\n{{ 'x' * 10**10 }}", 2, "OverflowError"),
    ("{{ 5000000 * [1] }}", 1, "OverflowError"),
    ("{{ 10**9**9 }}", 1, "OverflowError"),
])
def test_a_broken_template_names_its_line(template, line, words):
    with pytest.raises(gomlx.Error, match=f"chat template, line {line}: .*{words}"):
        chat.render(template, HI)


LAUGHS = "{% set a = ['x'] %}" + "{% set a = [a, a, a, a, a, a, a, a, a, a] %}" * 12
GROWING = "{%% set ns = namespace(s=%s) %%}{%% for i in range(100) %%}{%% set ns.s = ns.s %s ns.s %%}{%% endfor %%}"


@pytest.mark.parametrize("template", [
    "{{ '%09999999999d' % 1 }}", "{{ '%*d' % (10**9, 1) }}", "{{ '%.999999999f' % 1 }}",
    "{{ '%09999999999d'|format(1) }}",
    "{{ '%((a))99999999999d' % {'(a)': 1} }}", "{{ ('%(a)s' * 10000) % {'a': 'x' * 1000000} }}",
    *(f"{{{{ 'x'.{name}(10**10) }}}}" for name in ("center", "ljust", "rjust", "zfill", "expandtabs")),
    "{{ 'x'|center(10**10) }}", "{{ 'x'|center(width=10**10) }}", "{% filter center(10**10) %}x{% endfilter %}",
    "{{ '{:>9999999999}'.format(1) }}", "{{ '{:{w}}'.format(1, w=10**10) }}", "{{ '{:>٩٩٩٩٩٩٩٩٩٩}'.format(1) }}",
    "{{ '{a:>9999999999}'.format_map({'a': 1}) }}", "{{ ('{:>9999999999}'|safe).format(1) }}",
    "{% set f = '{:>9999999999}'.format %}{{ f(1) }}", "{{ ('{:>9999999999}'|attr('format'))(1) }}",
    "{{ ('{0}' * 10000).format('x' * 100000) }}", "{{ 'a b'|indent(10**9) }}",
    "{{ ('a\\n' * 10000)|indent('x' * 10000) }}",
    "{{ range(100000)|join('x' * 100000) }}", "{{ ('x' * 100000).join(['a'] * 100000) }}",
    "{{ ('x' * 10000)|replace('', 'y' * 10000) }}", "{{ ('x' * 10000).replace('x', 'y' * 10000) }}",
    "{{ range(10**9)|list }}", "{{ [1]|tojson(indent=10**9) }}",
    "{{ ([1] * 10000)|tojson(separators=('x' * 10000, 'y')) }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "{% block a %}{{ self.a() }}{% endblock %}",
    "{% macro f(n, s) %}{% if n %}{% set t = s ~ n %}{{ f(n - 1, t) }}{{ t|length }}{% endif %}{% endmacro %}"
    "{{ f(100, 'x' * 1000000) }}",
    GROWING % ("'xxxx'", "~"), GROWING % ("'xxxx'", "+"), GROWING % ("[[1], []]", "+"), GROWING % ("7", "*"),
    LAUGHS + "{{ a }}", LAUGHS + "{{ a == a }}", "{{ lipsum(10**9) }}", "{{ ('x' * 1000000)|wordwrap(1) }}",
    "{{ (1).to_bytes(10**10, 'big') }}", "{{ 'x'.encode().center(10**10) }}", "{{ 'a'.translate({97: 'x'}) }}",
    "{{ [1]|batch(10**9, 'x')|list }}", "{{ [1]|slice(10**9)|list }}", "{{ 1|round(-10**9) }}",
    "{{ 1|round(10**9, 'floor') }}",
    "{{ ([['x'] * 1000] * 10000)|sum(start=[])|length }}", "{{ ('f' * 100000)|int(0, 16) }}",
    "{{ strftime_now('%0999999999Y') }}",
    "{% set s = 'x' * 1000000 %}" + "".join(f"{{% set a{i} = s[1:] %}}" for i in range(500)),
    "{% autoescape 'x'|center(10**10) %}{% endautoescape %}",
    "{% set x %}{% for a in range(1000) %}{% for b in range(1000) %}" + "x" * 100 + "{% endfor %}{% endfor %}{% endset "
                                                                                    "%}",
    "{% for a in [1] %}" * 25 + "{% endfor %}" * 25, "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "x" * 300000,
])
def test_templates_that_would_exhaust_memory(template):
    import resource
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(gomlx.Error, match="chat template"):
        chat.render(template, HI)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10


@pytest.mark.parametrize("body", ["", "{{ a }}", "{% if a == b %}{% endif %}", "{% set c = a + b %}"])
def test_templates_that_do_not_end(monkeypatch, body):
    from gomlx._generation import template_sandbox
    monkeypatch.setattr(template_sandbox, "SECONDS", 0.2)
    loops = "{% for a in range(100000) %}" * 3 + "{% for b in range(9) %}" + body + "{% endfor %}" * 4
    with pytest.raises(gomlx.Error, match="chat template, line 2: .*(computes for more than|makes more than)"):
        chat.render("x\n" + loops, HI)


def test_the_bounds_grow_with_the_messages():
    template = "{% for m in messages %}{{ m.role ~ ': ' ~ m.content[:] + '\n' }}{% endfor %}" \
        "{{ (messages + messages)|length }}"
    messages = [{"role": "user", "content": "x" * 5_000_000}, {"role": "user", "content": "y"}] * 3
    assert chat.render(template, messages) == "".join(f"user: {one['content']}\n" for one in messages) + "12"


def test_a_text_that_grows_with_each_message():
    template = ("{% set ns = namespace(s='') %}{% for m in messages %}{% set ns.s = ns.s ~ m.content %}{% endfor %}"
                "{{ ns.s }}")
    messages = [{"role": "user", "content": "x" * 200}] * 2000          # 400 MB are made, 0.4 MB are in use
    assert chat.render(template, messages) == "x" * 400_000


def test_what_templates_do_is_as_in_jinja():
    template = ("{% set ns = namespace(n=0, l=[]) %}{% for m in messages if m.role != 'x' %}"
                "{% set ns.n = ns.n + loop.index %}"
                "{% set ns.l = ns.l + [m['content']] %}{{ loop.last }}{{ loop.length }}{% endfor %} "
                "{{ ns.n }} {{ ns.l|join(', ') }} "
                "{{ '%s is %5.1f%%' % ('a', 2) }} {{ '{:>4}|{x!r}'.format(7, x='y') }} {{ {'b': (1, 2)}['b'][::-1] "
                "}} "
                "{{ [1, 2, 3]|map('string')|select('in', ['1', '3'])|list }} "
                "{{ [[1], [2]]|sum(start=[]) }} {{ 2.55|round(1) }} "
                "{{ 'a\nb'|indent(2) }} {{ 'aXb'|replace('X', '&') }} {{ range(5)|batch(2, 0)|list }} "
                "{{ 'x'.center(3) }}."
                "{% autoescape true %}<{{ '<' ~ '&' }}{% endautoescape %} "
                "{{ [{'a': 1}, {'a': 2}]|sum(attribute='a') }}")
    assert chat.render(template, [*HI, {"role": "user", "content": "ho"}]) == \
        "False2True2 3 hi, ho a is   2.0%    7|'y' (2, 1) ['1', '3'] [1, 2] 2.5 a\n  b a&b [[0, 1], [2, 3], [4, 0]]" \
        "  x ." \
        "<&lt;&amp; 3"


def test_errors_name_the_file_of_the_template(tmp_path, tokenizer):
    write(tmp_path, chat_template__jinja="a\n{{ 'x'|center(10**10) }}",
          tokenizer_config__json={"chat_template": [{"name": "tool_use", "template": "{{ 1 + 'a' }}"}]})
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    tokenizer._templates = chat.templates_in_folder(tmp_path, config)
    with pytest.raises(gomlx.Error, match="chat_template.jinja, line 2: OverflowError"):
        tokenizer.apply_chat_template(HI)
    with pytest.raises(gomlx.Error, match="tokenizer_config.json: chat_template 'tool_use', line 1: TypeError"):
        tokenizer.apply_chat_template(HI, tools=[{}])
    tokenizer._templates = chat.templates_in_gguf({"tokenizer.chat_template": "{% for %}"}, "x.gguf")
    with pytest.raises(gomlx.Error, match="x.gguf: tokenizer.chat_template, line 1: Expected"):
        tokenizer.apply_chat_template(HI)


@pytest.mark.parametrize("messages", ["hi", {"role": "user"}, ["hi"], [{"content": "hi"}]])
def test_what_messages_are(messages):
    with pytest.raises(TypeError, match="messages"):
        chat.render("x", messages)


def test_messages_of_an_iterator():
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    assert chat.render(
    chat_formats.FORMATS["chatml"],
    iter(messages)) == chat.render(
        chat_formats.FORMATS["chatml"],
         messages) != ""


def test_where_templates_are_found(tmp_path):
    write(tmp_path, tokenizer_config__json={"chat_template": "config"})
    config = {"chat_template": "config"}
    assert chat.templates_in_folder(tmp_path, config) == {"default": "config"}
    write(tmp_path, chat_template__json={"chat_template": "json"})
    assert chat.templates_in_folder(tmp_path, config) == {"default": "json"}
    write(tmp_path, chat_template__jinja="jinja")
    assert chat.templates_in_folder(tmp_path, config) == {"default": "jinja"}
    several = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]
    assert chat.named(several, "f") == {"default": "d", "tool_use": "t"}
    assert chat.templates_in_gguf({"tokenizer.chat_template": "d", "tokenizer.chat_template.tool_use": "t",
                                   "x": 1}) == \
        {"default": "d", "tool_use": "t"}


class FakeTokenizer:
    """Tokenizer's own methods over an engine whose ids are code points, with specials as given; BOS 1, EOS 2."""
    specials, vocab_size, bos_token, eos_token, model_type, _templates = {"<bos>": 1}, 200000, None, None, None, {}
    encode_prompt, apply_chat_template = Tokenizer.encode_prompt, Tokenizer.apply_chat_template
    chat_template, chat_format, template_for = Tokenizer.chat_template, Tokenizer.chat_format, Tokenizer.template_for
    _prefix, bare, per_layer_inputs = Tokenizer._prefix, Tokenizer.bare, False

    def token_to_id(self, text):
        return self.specials.get(text)

    def is_special(self, token_id):
        return token_id in self.specials.values()

    def encode(self, text, add_special_tokens=True, truncation=None, padding=None):
        ids = []
        while text:
            special = next((token for token in self.specials if text.startswith(token)), None)
            ids.append(self.specials[special] if special else ord(text[0]))
            text = text[len(special) if special else 1:]
        return [1] * add_special_tokens + ids + [2] * add_special_tokens


@pytest.fixture
def tokenizer():
    return FakeTokenizer()


def test_bos_once_and_no_eos(tokenizer):
    assert tokenizer.encode_prompt("xy") == [1, 120, 121]
    assert tokenizer.encode_prompt("<bos>xy") == [1, 120, 121]
    assert tokenizer.encode_prompt("") == [1]


def test_templates_by_name_and_fallback(tokenizer):
    with pytest.raises(gomlx.Error, match="no chat template"):
        tokenizer.apply_chat_template(HI)
    tokenizer.specials = {"<|im_start|>": 5, "<|im_end|>": 6}
    assert tokenizer.apply_chat_template(HI) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.apply_chat_template(HI, add_generation_prompt=False) == "<|im_start|>user\nhi<|im_end|>\n"
    tokenizer._templates = {"default": "d{{ bos_token }}{{ extra }}", "tool_use": "t"}
    tokenizer.bos_token = "<bos>"
    assert tokenizer.apply_chat_template(HI, extra=1) == "d<bos>1"
    assert tokenizer.apply_chat_template(HI, tools=[{}]) == "t"


def test_stop_ids_are_a_union_with_sources(tokenizer):
    tokenizer.specials = {"<|im_end|>": 2, "<|endoftext|>": 0}
    tokenizer.eos_token = "<|im_end|>"
    stops = defaults.stop_ids(tokenizer, generation={"eos_token_id": [0, 7]}, config={"eos_token_id": 9})
    assert stops == {0: ["generation_config.json", "special token <|endoftext|>"], 7: ["generation_config.json"],
                     9: ["config.json"], 2: ["tokenizer_config.json", "special token <|im_end|>"]}
    metadata = {"tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.eot_token_id": 8, "tokenizer.ggml.eom_token_id": 9}
    assert defaults.stop_ids(tokenizer, metadata=metadata) == {
        2: ["GGUF eos", "special token <|im_end|>"], 8: ["GGUF eot"], 9: ["GGUF eom"],
        0: ["special token <|endoftext|>"]}


@pytest.mark.parametrize("specials, ends", [
    ({"<|end|>": 7, "<|return|>": 8, "<|call|>": 9}, {8, 9}),               # gpt-oss
    ({"<|end|>": 7}, {7}),                                                  # Phi
    ({"<turn|>": 106, "</s>": 3, "<|tool_response>": 50}, {106, 50}),       # Gemma 4
    ({"</s>": 2, "<|tool_response>": 50}, {2}),
])
def test_turn_ends_of_families(tokenizer, specials, ends):
    tokenizer.specials = specials
    assert defaults.stop_ids(tokenizer).keys() == ends


@pytest.mark.parametrize("generation, want", [
    ({}, {}),
    ({"do_sample": False, "temperature": 0.7}, {}),
    ({"do_sample": True}, {"temperature": 1.0}),
    ({"temperature": 0.7, "top_p": 0.95, "top_k": 20}, {"temperature": 0.7, "top_p": 0.95, "top_k": 20}),
    ({"repetition_penalty": 1.05}, {"repetition_penalty": 1.05}),
    ({"do_sample": True, "temperature": None, "min_p": 0.1}, {"temperature": 1.0, "min_p": 0.1}),
])
def test_sampling_defaults_of_generation_config(generation, want):
    assert defaults.sampling_from_config(generation) == want


def test_sampling_defaults_of_gguf():
    metadata = {"general.sampling.temp": 0.699999988079071, "general.sampling.top_p": 0.949999988079071,
                "general.sampling.top_k": 40, "general.name": "x"}
    assert defaults.sampling_from_gguf(metadata) == {"temperature": 0.7, "top_p": 0.95, "top_k": 40}
    assert defaults.sampling_from_gguf({"general.name": "x"}) == {}
    with pytest.raises(gomlx.Error, match="general.sampling.temp is 'hot', expected a number"):
        defaults.sampling_from_gguf({"general.sampling.temp": "hot"})


# ---- built-in formats; renderings of the families' own templates ----

A = [{"role": "user", "content": "U1"}]
B = [{"role": "system", "content": "SYS"}, {"role": "user", "content": " U1 "}, {"role": "assistant", "content": "A1"},
     {"role": "user", "content": "U2"}]


@pytest.mark.parametrize("name, a, b", [
    ("chatml", "<|im_start|>user\nU1<|im_end|>\n<|im_start|>assistant\n",
     "<|im_start|>system\nSYS<|im_end|>\n<|im_start|>user\n U1 <|im_end|>\n<|im_start|>assistant\nA1<|im_end|>\n"
     "<|im_start|>user\nU2<|im_end|>\n<|im_start|>assistant\n"),
    ("llama3", "<bos><|start_header_id|>user<|end_header_id|>\n\nU1<|eot_id|>"
     "<|start_header_id|>assistant<|end_header_id|>\n\n",
     "<bos><|start_header_id|>system<|end_header_id|>\n\nSYS<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nU1"
     "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nA1<|eot_id|>"
     "<|start_header_id|>user<|end_header_id|>\n\n"
     "U2<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"),
    ("gemma", "<bos><start_of_turn>user\nU1<end_of_turn>\n<start_of_turn>model\n",
     "<bos><start_of_turn>user\nSYS\n\nU1<end_of_turn>\n<start_of_turn>model\nA1<end_of_turn>\n"
     "<start_of_turn>user\nU2<end_of_turn>\n<start_of_turn>model\n"),
    ("gemma4", "<bos><|turn>user\nU1<turn|>\n<|turn>model\n<|channel>thought\n<channel|>",
     "<bos><|turn>system\nSYS<turn|>\n<|turn>user\nU1<turn|>\n<|turn>model\nA1<turn|>\n<|turn>user\nU2<turn|>\n"
     "<|turn>model\n<|channel>thought\n<channel|>"),
    ("deepseek", "<bos><｜User｜>U1<｜Assistant｜><think>\n",
     "<bos>SYS<｜User｜> U1 <｜Assistant｜>A1<｜end▁of▁sentence｜><｜User｜>U2<｜Assistant｜><think>\n"),
    ("mistral", "<bos>[INST] U1 [/INST]", "<bos>[INST] SYS\n\n U1  [/INST]A1<eos>[INST] U2 [/INST]"),
    ("llama2", "<bos>[INST] U1 [/INST]",
     "<bos>[INST] <<SYS>>\nSYS\n<</SYS>>\n\nU1 [/INST] A1 <eos><bos>[INST] U2 [/INST]"),
])
def test_built_in_formats(tokenizer, name, a, b):
    tokenizer.bos_token, tokenizer.eos_token = "<bos>", "<eos>"
    assert tokenizer.apply_chat_template(A, chat_format=name) == a
    assert tokenizer.apply_chat_template(B, chat_format=name) == b
    if b.startswith("<bos>"):
        assert tokenizer.encode_prompt(b).count(1) == b.count("<bos>")        # those of the template, none besides


def test_the_built_in_format_of_gpt_oss(tokenizer):
    text = tokenizer.apply_chat_template(B, chat_format="harmony")
    head, _, rest = text.partition("<|start|>developer")
    assert head.startswith("<|start|>system<|message|>You are ChatGPT") and "Reasoning: medium" in head
    assert rest == ("<|message|># Instructions\n\nSYS\n\n<|end|><|start|>user<|message|> U1 <|end|>"
                    "<|start|>assistant<|channel|>final<|message|>A1<|end|><|start|>user<|message|>U2<|end|>"
                    "<|start|>assistant")
    assert "Reasoning: high" in tokenizer.apply_chat_template(A, chat_format="harmony", reasoning_effort="high")


def test_gemma_4_thinks_when_asked(tokenizer):
    assert tokenizer.apply_chat_template(A, chat_format="gemma4", enable_thinking=True) == \
        "<|turn>system\n<|think|>\n<turn|>\n<|turn>user\nU1<turn|>\n<|turn>model\n"
    tokenizer.per_layer_inputs = True
    assert tokenizer.apply_chat_template(A, chat_format="gemma4").endswith("<|turn>model\n")
    history = [*A, {"role": "assistant", "content": "<|channel>thought\nhm\n<channel|>A1"}]
    assert tokenizer.apply_chat_template(history, chat_format="gemma4", add_generation_prompt=False) == \
        "<|turn>user\nU1<turn|>\n<|turn>model\nA1<turn|>\n"


@pytest.mark.parametrize("switch, end", [({}, ""), ({"enable_thinking": True}, "<think>\n"),
                                         ({"enable_thinking": False}, "<think>\n\n</think>\n\n")])
def test_chatml_that_thinks(tokenizer, switch, end):
    history = [*A, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nA1"}, *A]
    assert tokenizer.apply_chat_template(history, chat_format="chatml_think", **switch) == \
        "<|im_start|>user\nU1<|im_end|>\n<|im_start|>assistant\nA1<|im_end|>\n<|im_start|>user\nU1<|im_end|>\n" \
        "<|im_start|>assistant\n" + end
    assert chat.thinking_variable(chat_formats.FORMATS["chatml_think"], True) == {"enable_thinking": True}


@pytest.mark.parametrize("specials, model_type, want", [
    (("<|im_start|>", "<|im_end|>", "<think>"), "qwen3", "chatml_think"),
    (("<|start|>", "<|message|>", "<|channel|>"), None, "harmony"), (("<|turn>", "<turn|>"), "gemma4", "gemma4"),
    (("<start_of_turn>", "<end_of_turn>"), "gemma2", "gemma"),
    (("<|start_header_id|>", "<|eot_id|>"), "llama", "llama3"),
    (("<｜User｜>", "<｜Assistant｜>"), "llama", "deepseek"), (("<|im_start|>", "<|im_end|>"), "qwen2", "chatml"),
    (("[INST]", "[/INST]"), None, "mistral"), ((), "mistral", "mistral"), ((), "llama", None),
])
def test_which_built_in_format(tokenizer, specials, model_type, want):
    tokenizer.specials = {token: 10 + i for i, token in enumerate(specials)}
    tokenizer.model_type = model_type
    assert tokenizer.chat_format == want


def test_the_models_own_template_goes_first(tokenizer):
    tokenizer.specials = {"<|im_start|>": 5, "<|im_end|>": 6}
    tokenizer._templates = {"default": "own"}
    assert tokenizer.apply_chat_template(HI) == "own"
    assert tokenizer.apply_chat_template(HI, chat_format="chatml").startswith("<|im_start|>user")
    with pytest.raises(ValueError, match="chat_format: unknown format 'alpaca'; expected one of chatml, "):
        tokenizer.apply_chat_template(HI, chat_format="alpaca")


def test_the_switch_for_reasoning():
    assert chat.thinking_variable("{{ enable_thinking }}", False) == {"enable_thinking": False}
    assert chat.thinking_variable("{% if thinking %}x{% endif %}", True) == {"thinking": True}
    for template in ("{{ messages }}", "{% set enable_thinking = 1 %}{{ enable_thinking }}", "a {# enable_thinking #}"):
        with pytest.raises(ValueError, match="no such switch"):
            chat.thinking_variable(template, True)


def test_switches_and_tools_that_the_template_does_not_know():
    with gomlx.load() as model:
        with pytest.raises(ValueError, match="enable_thinking is False, but .* no such switch"):
            model.chat(HI, enable_thinking=False)
        with pytest.raises(ValueError, match="chat template takes none"):
            model.chat(HI, tools=[{"name": "f"}])
        stream = model.chat(HI, max_tokens=8, temperature=0)
        assert {part.channel for part in stream.parts()} == {"answer"}
        result = stream.result
        assert (result.reasoning, result.answer, result.tool_calls) == (None, result.text, [])
        assert result.message == {"role": "assistant", "content": result.text}
