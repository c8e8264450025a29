"""Rows of files as token ids: which formats there are, which tokens count, and what is said of rows that are wrong."""
import json
import os

import pytest

import gomlx
from gomlx import lora
from gomlx._generation.chat import Template

CHAT = [{"role": "user", "content": "What is 1+1?"}, {"role": "assistant", "content": "Two."},
        {"role": "user", "content": "And 2+2?"}, {"role": "assistant", "content": "Four, of course."}]
ENDS = {"deepseek_v3": "<｜end▁of▁sentence｜>", "gemma3": "<end_of_turn>", "llama3_2": "<|eot_id|>",
        "mistral_nemo": "</s>", "qwen3": "<|im_end|>"}


@pytest.fixture(scope="module")
def model():
    with gomlx.load() as loaded:
        yield loaded


def fresh(model):
    """A tokenizer like the model's, whose template may be changed."""
    return gomlx.Tokenizer.from_gguf(model.info["path"])


def with_template(model, text):
    tokenizer = fresh(model)
    tokenizer._templates["default"] = Template(text, "test")
    return tokenizer


def answers(tokenizer, one):
    """The texts of the runs of tokens that count."""
    found, inside = [], False
    for token, counted in zip(one.ids, one.counted):
        if counted and not inside:
            found.append([])
        if counted:
            found[-1].append(token)
        inside = bool(counted)
    return [tokenizer.decode(part) for part in found]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


# ---- what counts ----

@pytest.mark.parametrize("name", ENDS)
def test_answers_count_as_they_are_generated(shared, name):
    tokenizer = gomlx.Tokenizer.from_file(os.path.join(shared, "data", "tokenizers", name))
    [row] = lora.load_data([{"messages": CHAT}], tokenizer).rows
    thought = "<think>\n\n</think>\n\n" if name == "qwen3" else ""
    assert answers(tokenizer, row.sequences[0]) == ["Two." + ENDS[name], f"{thought}Four, of course." + ENDS[name]]
    [last] = lora.load_data([{"messages": CHAT}], tokenizer, mask="last").rows
    assert answers(tokenizer, last.sequences[0]) == [f"{thought}Four, of course." + ENDS[name]]
    assert last.sequences[0].ids == row.sequences[0].ids
    prompt = tokenizer.apply_chat_template(CHAT[:3], tokenize=True)
    assert list(last.sequences[0].ids[:last.sequences[0].start]) == prompt
    [every] = lora.load_data([{"messages": CHAT}], tokenizer, mask=None).rows
    assert list(every.sequences[0].ids) == tokenizer.apply_chat_template(CHAT, None, False, tokenize=True)
    assert every.sequences[0].counted == b"\0" + b"\1" * (len(every.sequences[0].ids) - 1)


def test_formats_that_say_the_same_are_the_same(model):
    same = [
        {"messages": CHAT[:2]},
        {"conversations": [{"from": "human", "value": "What is 1+1?"}, {"from": "gpt", "value": "Two."}]},
        {"instruction": "What is 1+1?", "output": "Two."},
        {"prompt": "What is 1+1?", "completion": "Two."},
        {"prompt": CHAT[:1], "completion": CHAT[1:2]},
    ]
    found = [lora.load_data([row], model) for row in same]
    assert len({one.fingerprint for one in found}) == 1
    assert [one.kind for one in found] == ["chat", "chat", "completion", "completion", "completion"]
    one = lora.load_data([{"instruction": "Add.", "input": "1+1", "output": "Two."}], model)
    assert "Add.\n\n1+1<|im_end|>" in one.preview(colour=False)


def test_preferences_and_labels(model):
    pairs = [{"prompt": "What is 1+1?", "chosen": "Two.", "rejected": "Six."},
             {"prompt": CHAT[:1], "chosen": CHAT[1:2], "rejected": [{"role": "assistant", "content": "Six."}]},
             {"chosen": CHAT[:2], "rejected": [CHAT[0], {"role": "assistant", "content": "Six."}]}]
    found = [lora.load_data([row], model) for row in pairs]
    assert len({one.fingerprint for one in found}) == 1 and found[0].kind == "preference"
    assert [answers(model.tokenizer, one) for one in found[0][0].sequences] == [["Two.<|im_end|>"], ["Six.<|im_end|>"]]
    made = lora.load_data([{"prompt": "a", "completion": "b", "label": True}], model)
    assert made.kind == "label" and made[0].label is True


def test_texts_and_plain_completions_end(model):
    [row] = lora.load_data([{"text": "Once upon a time"}], model).rows
    ids = model.tokenizer.encode_prompt("Once upon a time")
    assert list(row.sequences[0].ids) == [*ids, model.tokenizer.eos_token_id] and row.targets == len(ids)
    [row] = lora.load_data([{"prompt": "Once upon", "completion": " a time"}], model, template=False).rows
    assert answers(model.tokenizer, row.sequences[0]) == [" a time<|im_end|>"]
    assert list(row.sequences[0].ids[:row.sequences[0].start]) == model.tokenizer.encode_prompt("Once upon")


def test_tools_reach_the_template(shared):
    tokenizer = gomlx.Tokenizer.from_file(os.path.join(shared, "data", "tokenizers", "qwen3"))
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
    messages = [{"role": "user", "content": "Rain?"},
                {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {
                    "name": "weather", "arguments": {"city": "Oslo"}}}]},
                {"role": "tool", "content": "yes"}, {"role": "assistant", "content": "It rains."}]
    [row] = lora.load_data([{"messages": messages, "tools": [tool]}], tokenizer).rows
    found = answers(tokenizer, row.sequences[0])
    assert len(found) == 2 and '"arguments": {"city": "Oslo"}' in found[0] and found[1].endswith("It rains.<|im_end|>")
    [again] = lora.load_data([{"messages": messages, "tools": json.dumps([tool])}], tokenizer).rows
    assert again.sequences == row.sequences


def test_what_a_system_says_and_tools_reach_the_template(shared):
    tokenizer = gomlx.Tokenizer.from_file(os.path.join(shared, "data", "tokenizers", "qwen3"))
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
    more = {"tools": [tool], "system": "Be brief."}
    rows = [{"messages": [{"role": "system", "content": "Be brief."}, *CHAT[:2]], "tools": [tool]},
            {"messages": CHAT[:2], **more}, {"prompt": CHAT[0]["content"], "completion": "Two.", **more},
            {"prompt": CHAT[:1], "completion": CHAT[1:2], **more},
            {"instruction": CHAT[0]["content"], "output": "Two.", **more},
            {"conversations": [{"from": "human", "value": "What is 1+1?"}, {"from": "gpt", "value": "Two."}], **more}]
    found = [lora.load_data([row], tokenizer) for row in rows]
    assert len({one.fingerprint for one in found}) == 1
    text = found[0].preview(colour=False)
    assert "Be brief." in text and '"name": "weather"' in text
    pair = lora.load_data([{"prompt": "What is 1+1?", "chosen": "Two.", "rejected": "Six.", **more}], tokenizer)[0]
    assert pair.sequences[0] == found[0][0].sequences[0]


def test_what_would_have_no_effect_is_refused(model):
    for row, message in (
            ({"messages": CHAT, "label": True}, "label: only beside prompt and completion"),
            ({"messages": [{"role": "system", "content": "a"}, *CHAT], "system": "b"}, "of the role system already"),
            ({"messages": CHAT, "system": 5}, "system is 5, expected a text")):
        with pytest.raises(ValueError, match=message):
            lora.load_data([row], model)
    for row in ({"messages": CHAT}, {"prompt": CHAT[:1], "completion": CHAT[1:2]}):
        with pytest.raises(ValueError, match="row 0: template=False is for prompts and completions"):
            lora.load_data([row], model, template=False)
    with pytest.raises(ValueError, match="tools: without a chat template"):
        lora.load_data([{"prompt": "a", "completion": "b", "tools": [{"name": "c"}]}], model, template=False)


def test_templates_that_cannot_be_masked_exactly_are_refused(model):
    hides = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content if loop.last else '...' }}<|im_end|>\n"
             "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
    with pytest.raises(ValueError, match=r"row 0: this chat template cannot be masked exactly: the prompt before "
                                         r"message 1 .* 'What"):
        lora.load_data([{"messages": CHAT}], with_template(model, hides))
    thinks = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
              "{% if add_generation_prompt %}<|im_start|>assistant\n<think>{% endif %}")
    with pytest.raises(ValueError, match="'<think>' stands in the prompt, 'Two"):
        lora.load_data([{"messages": CHAT[:2]}], with_template(model, thinks))
    merged = "{% for m in messages %}{{ m.content }} {% endfor %}{% if add_generation_prompt %}Once upon a t{% endif %}"
    with pytest.raises(ValueError, match="one token there"):
        lora.load_data([{"messages": [CHAT[0], {"role": "assistant", "content": "Once upon a time"}]}],
                       with_template(model, merged))
    endless = ("{% for m in messages %}{{ m.role }}: {{ m.content }}{{ '.' if loop.last else '\n' }}{% endfor %}"
               "{% if add_generation_prompt %}\nassistant:{% endif %}")
    with pytest.raises(ValueError, match="message 1 is not how|no token ends the answer of message 1"):
        lora.load_data([{"messages": CHAT}], with_template(model, endless))


# ---- files ----

def test_a_folder_has_a_file_for_each_split(model, tmp_path):
    write(tmp_path / "train.jsonl", [{"text": "Once upon a time"}] * 2)
    write(tmp_path / "valid.jsonl", [{"text": "There was a cat"}])
    assert len(lora.load_data(tmp_path, model)) == 2 and len(lora.load_data(tmp_path, model, split="valid")) == 1
    with pytest.raises(FileNotFoundError, match=r"no test\.jsonl; it has train\.jsonl, valid\.jsonl"):
        lora.load_data(tmp_path, model, split="test")
    path = tmp_path / "list.json"
    path.write_text(json.dumps([{"text": "Once upon a time"}] * 2))
    assert lora.load_data(path, model).fingerprint == lora.load_data(tmp_path, model).fingerprint


@pytest.mark.parametrize("line, message", [
    ("{", r"train\.jsonl:3: not JSON"),
    ("[1]", r"train\.jsonl:3: expected an object"),
    ('{"texts": 1}', r"train\.jsonl:3: keys texts, expected messages; conversations"),
    ('{"text": 1}', r"train\.jsonl:3: text is 1, expected a text"),
    ('{"messages": []}', r"train\.jsonl:3: no message of the role assistant"),
    ('{"messages": [{"role": "user", "content": "a"}]}', r"train\.jsonl:3: no message of the role assistant"),
    ('{"messages": [{"content": "a"}, {"role": "assistant", "content": "b"}]}', r"train\.jsonl:3: messages\[0\]"),
    ('{"conversations": [{"from": "cat", "value": "a"}]}', r"train\.jsonl:3: .*from is 'cat', expected one of system"),
    ('{"prompt": "a", "chosen": "b", "rejected": "b"}', r"train\.jsonl:3: chosen and rejected are the same"),
    ('{"chosen": "b", "rejected": "c"}', r"train\.jsonl:3: a preference without a prompt"),
    ('{"prompt": "a", "completion": "b", "label": 1}', r"train\.jsonl:3: label is 1, expected true or false"),
    ('{"prompt": "a", "completion": "b"}', r"train\.jsonl:3: a row of kind completion .* those before it are of kind"),
])
def test_wrong_rows_are_named_by_file_and_line(model, tmp_path, line, message):
    path = tmp_path / "train.jsonl"
    path.write_text('{"text": "Once upon a time"}\n\n' + line + "\n")
    with pytest.raises(ValueError, match=message):
        lora.load_data(path, model)


def test_a_byte_order_mark_is_no_text_and_pipes_are_not_opened(model, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "Once upon a time"}\n', encoding="utf-8-sig")
    assert lora.load_data(path, model).fingerprint == lora.load_data([{"text": "Once upon a time"}], model).fingerprint
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="pipe' is a pipe or a device"):
        lora.load_data(tmp_path / "pipe", model)


def test_empty_data_is_an_error(model, tmp_path):
    (tmp_path / "train.jsonl").write_text("\n")
    with pytest.raises(ValueError, match="no rows, expected one at least"):
        lora.load_data(tmp_path, model)
    with pytest.raises(ValueError, match="no rows"):
        lora.load_data([], model)
    with pytest.raises(FileNotFoundError):
        lora.load_data(tmp_path / "nothing.jsonl", model)


def test_rows_that_are_too_long_are_listed(model, tmp_path, caplog):
    long = "Once upon a time there was a cat. " * 20
    path = write(tmp_path / "train.jsonl", [{"text": "A cat"}, {"text": long}, {"text": "A dog"}])
    made = lora.load_data(path, model, max_tokens=32)
    assert [len(row.sequences[0].ids) for row in made][1] == 32 and len(made) == 3
    [cut] = made.cut
    assert (cut.where, cut.kept) == ("train.jsonl:2", 32) and cut.tokens > 100
    assert f"rows of more than 32 tokens: train.jsonl:2 ({cut.tokens})" in caplog.text
    made = lora.load_data(path, model, max_tokens=32, too_long="drop")
    assert [row.where for row in made] == ["train.jsonl:1", "train.jsonl:3"] and made.cut[0].kept == 0
    write(path, [{"prompt": long, "completion": "yes"}, {"prompt": "a", "completion": "b"}])
    made = lora.load_data(path, model, max_tokens=32)                   # nothing that counts is left of the first
    assert [row.where for row in made] == ["train.jsonl:2"] and made.cut[0].kept == 0


def test_a_preview_shows_what_counts(model):
    made = lora.load_data([{"prompt": "Hello", "completion": "you <b>"}] * 5, model)
    assert made.preview(1, colour=False).startswith(
        f"row 0: {made[0].tokens} tokens, {made[0].targets} count\n"
        "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n[[you <b><|im_end|>]]")
    assert made.preview(1).count("\033[32m") == 1 and "and 4 more rows" in made.preview(1)
    shown = made._repr_html_()
    assert "&lt;|im_end|&gt;" in shown and "<b>" not in shown.replace("<b>Dataset</b>", "")
    assert "5 rows of kind completion" in repr(made)
