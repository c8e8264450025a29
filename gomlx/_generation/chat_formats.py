"""Chat formats of families, for models whose files bring no template. A model's own template always goes before these.

Each is a Jinja template, rendered as a model's own is. Which one a model gets is told by its vocabulary: the markers
of turns are tokens of their own. Mistral's first versions and Llama 2 have none; Mistral is told by its model_type, and
Llama 2, which nothing tells from a base model, only on demand.
"""
from __future__ import annotations

from gomlx._files import architectures

# Of Gemma 4 the small ones, which have per-layer inputs, take no empty thought: it would bring them to reason untagged.
# Gemma and the older Mistral have no system turn: its text goes before the first user's.
HEAD = ("{%- set headed = messages and messages[0].role in ('system', 'developer') -%}"
        "{%- set system = messages[0].content | trim if headed else '' -%}"
        "{%- set turns = messages[1:] if headed else messages -%}")

FORMATS = {
    "chatml": "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
              "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "chatml_think": "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
                    "{{ (m.content.split('</think>')[-1] | trim if m.role == 'assistant' else m.content) }}"
                    "{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
                    "{% if enable_thinking is defined %}"
                    "{{ '<think>\n' if enable_thinking else '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}",
    "llama3": "{{ bos_token }}{% for m in messages %}"
              "{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' }}"
              "{% endfor %}"
              "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
    "gemma": HEAD + "{{ bos_token }}{% for m in turns %}"
             "{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' }}"
             "{{ system + '\n\n' if system and loop.first }}{{ m.content | trim + '<end_of_turn>\n' }}{% endfor %}"
             "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}",
    "gemma4": HEAD + "{{ bos_token }}{% if system or enable_thinking %}"
              "{{ '<|turn>system\n' + ('<|think|>\n' if enable_thinking else '') + system + '<turn|>\n' }}{% endif %}"
              "{% for m in turns %}{{ '<|turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' }}"
              "{{ (m.content.split('<channel|>')[-1] if m.role == 'assistant' else m.content) | trim + '<turn|>\n' }}"
              "{% endfor %}{% if add_generation_prompt %}{{ '<|turn>model\n' }}"
              "{% if not enable_thinking and not per_layer_inputs %}{{ '<|channel>thought\n<channel|>' }}{% endif %}"
              "{% endif %}",
    "harmony": "{{ '<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\n'"
               " 'Knowledge cutoff: 2024-06\nCurrent date: ' + strftime_now('%Y-%m-%d') + '\n\nReasoning: '"
               " + (reasoning_effort or 'medium') + '\n\n# Valid channels: analysis, commentary, final. Channel must be"
               " included for every message.<|end|>' }}"
               "{% for m in messages %}{% if m.role in ('system', 'developer') %}"
               "{{ '<|start|>developer<|message|># Instructions\n\n' + m.content + '\n\n<|end|>' }}"
               "{% elif m.role == 'assistant' %}"
               "{{ '<|start|>assistant<|channel|>final<|message|>' + m.content + '<|end|>' }}"
               "{% else %}{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{% endif %}{% endfor %}"
               "{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}",
    "deepseek": "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}"
                "{{ '<｜Assistant｜>' + m.content.split('</think>')[-1] + '<｜end▁of▁sentence｜>' }}"
                "{% else %}{{ ('<｜User｜>' if m.role == 'user' else '') + m.content }}{% endif %}{% endfor %}"
                "{% if add_generation_prompt %}{{ '<｜Assistant｜><think>\n' }}{% endif %}",
    "mistral": HEAD + "{{ bos_token }}{% for m in turns %}{% if m.role == 'assistant' %}{{ m.content + eos_token }}"
               "{% else %}{{ '[INST] ' + (system + '\n\n' if system and loop.first else '') + m.content + ' [/INST]' }}"
               "{% endif %}{% endfor %}",
    "llama2": HEAD + "{% for m in turns %}{% if m.role == 'assistant' %}{{ ' ' + m.content | trim + ' ' + eos_token }}"
              "{% else %}{{ bos_token + '[INST] '"
              " + ('<<SYS>>\n' + system + '\n<</SYS>>\n\n' if system and loop.first else '')"
              " + m.content | trim + ' [/INST]' }}{% endif %}{% endfor %}",
}
# Tokens that only one family has; the first pair whose tokens all exist decides.
MARKERS = ((("<|start|>", "<|message|>", "<|channel|>"), "harmony"), (("<|turn>", "<turn|>"), "gemma4"),
           (("<start_of_turn>", "<end_of_turn>"), "gemma"), (("<|start_header_id|>", "<|eot_id|>"), "llama3"),
           (("<｜User｜>", "<｜Assistant｜>"), "deepseek"),
           (("<|im_start|>", "<|im_end|>", "<think>"), "chatml_think"), (("<|im_start|>", "<|im_end|>"), "chatml"),
           (("[INST]", "[/INST]"), "mistral"))
MODEL_TYPES = {"ministral": "mistral"}         # of types that only other backends run


def choose(has_token, model_type=None):
    """The name of the family's format, or None."""
    for tokens, name in MARKERS:
        if all(map(has_token, tokens)):
            return name
    return MODEL_TYPES.get(model_type) or architectures.chat_format(model_type)


def configure(tokenizer, config):
    """Tells a tokenizer what a config.json says that these formats ask of it."""
    text = config.get("text_config") if isinstance(config.get("text_config"), dict) else config
    tokenizer.model_type = config.get("model_type")
    tokenizer.per_layer_inputs = bool(text.get("hidden_size_per_layer_input"))
