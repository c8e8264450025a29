"""A model that says what a test wants: small models call no tools by themselves."""
import math

# A sign by which a family's template is known, and what it writes for weather(city="Oslo") after some reasoning.
FAMILIES = {
    "qwen3": ("<tool_call>", '<think>I look.</think>\n\n<tool_call>\n{"name": "weather", "arguments": '
                             '{"city": "Oslo"}}\n</tool_call>'),
    "llama3": ("<|python_tag|>", '{"name": "weather", "parameters": {"city": "Oslo"}}'),
    "gpt_oss": ("<|channel|>", "<|channel|>analysis<|message|>I look.<|end|><|start|>assistant<|channel|>commentary "
                               'to=functions.weather <|constrain|>json<|message|>{"city":"Oslo"}<|call|>'),
    "gemma4": ("<|tool_call>", "<|channel>thought\nI look.<channel|><|tool_call>call:weather{city:"
                               '<|"|>Oslo<|"|>}<tool_call|>'),
}
# It shows what was offered, called and answered.
TEMPLATE = ("{# SIGN #}{{ tools | tojson if tools else '' }}{% for m in messages %}[{{ m.role }}]{{ m.content }}"
            "{{ m.tool_calls | tojson if m.tool_calls else '' }}{{ m.name if m.role == 'tool' else '' }}\n{% endfor %}")


def scripted(model, sign, said):
    """Gives the model a template with the sign, and makes its chats say said(text of the prompt), a text. Returns the
    list of prompts."""
    model.tokenizer._templates = {"default": TEMPLATE.replace("SIGN", sign)}
    prompts, rendered = [], model._rendered

    def with_script(messages, **options):
        text, made = rendered(messages, **options)
        prompts.append(text)
        ids = [*model.tokenizer.bare(said(text)), model.info["stop_ids"][0]["id"]]
        start = len(model.encode(text))

        def force(seen, logits):
            for i in range(len(logits)):
                logits[i] = -math.inf
            logits[ids[len(seen) - start]] = 0.0

        return text, made.replace(logits_processors=[force])

    model._rendered = with_script
    return prompts
