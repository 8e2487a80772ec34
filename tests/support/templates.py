"""Chat templates of the main families, shortened, each with the tokens it is written in and a small tokenizer of its
kind.
"""

from __future__ import annotations

import json

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Inner

from selfteach.model.gguf import pre_tokenizer
from selfteach.model.tokenizer import Tokenizer

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful assistant<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = """{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\nToday Date: " + strftime_now("%d %b %Y") + "\\n\\n" + system_message + "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' + message.tool_calls[0].function.name + '", "parameters": ' }}
        {{- message.tool_calls[0].function.arguments | tojson + '}<|eot_id|>' }}
    {%- else %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" + message.content | tojson + "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
MISTRAL = (
    "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token }}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"
)
MISTRAL_SYSTEM = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set messages = messages[1:] %}
{%- endif %}
{{- bos_token }}
{%- for message in messages %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST]" + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST]" + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- message["content"] + eos_token }}
    {%- endif %}
{%- endfor %}
"""
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"
)
QWEN3 = """{%- set ns = namespace(last=messages|length - 1, multi=true) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi and message.role == "user" %}
        {%- set ns.multi = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "user" or message.role == "system" %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set content, thought = message.content, '' %}
        {%- if '</think>' in content %}
            {%- set thought = content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last and thought %}
            {{- '<|im_start|>assistant\\n<think>\\n' + thought + '\\n</think>\\n\\n' + content }}
        {%- else %}
            {{- '<|im_start|>assistant\\n' + content }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson + '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
IM = ("<|im_start|>", "<|im_end|>")
# family -> (template, tokens of its own, the one that ends a turn, how text is cut)
FAMILIES = {
    "chatml": (CHATML, IM, "<|im_end|>", "smollm"),
    "llama3": (
        LLAMA3,
        ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        "<|eot_id|>",
        "llama-bpe",
    ),
    "mistral": (MISTRAL, ("<s>", "</s>"), "</s>", "sentencepiece"),
    "mistral-system": (MISTRAL_SYSTEM, ("<s>", "</s>", "[INST]", "[/INST]"), "</s>", "gemma"),
    "gemma": (GEMMA, ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"), "<end_of_turn>", "gemma"),
    "qwen3": (QWEN3, IM, "<|im_end|>", "qwen2"),
}
TEXT = ["The quick brown fox: what is asked? assistant user model\n\nsystem\nToday Date: It is brief. 12 345."] * 3


def sentencepiece(special: tuple[str, ...], first: bool) -> Inner:
    """As Llama 2's and Mistral's (`first`: a space before every text) or Gemma's: pieces over ▁, bytes for what has
    none.
    """
    trained = Inner(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "▁")
    trained.train_from_iterator(
        [line for text in TEXT for line in text.split("\n")], trainers.BpeTrainer(vocab_size=120, show_progress=False)
    )
    model = json.loads(trained.to_str())["model"]
    tokens = list(dict.fromkeys(["<unk>", *special, *(f"<0x{b:02X}>" for b in range(256)), *model["vocab"]]))
    inner = Inner(
        models.BPE(
            {t: i for i, t in enumerate(tokens)},
            [tuple(m) for m in model["merges"]],
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    inner.normalizer = normalizers.Sequence(
        [*([normalizers.Prepend("▁")] if first else []), normalizers.Replace(" ", "▁")]
    )
    steps = [
        decoders.Replace("▁", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        *([decoders.Strip(" ", 1, 0)] if first else []),
    ]
    inner.decoder = decoders.Sequence(steps)
    inner.post_processor = processors.TemplateProcessing(single=f"{special[0]} $A", special_tokens=[(special[0], 1)])
    inner.add_special_tokens([AddedToken(t, normalized=False) for t in special])
    return inner


def bytelevel(special: tuple[str, ...], pre: str) -> Inner:
    inner = Inner(models.BPE())
    inner.pre_tokenizer, inner.decoder = pre_tokenizer("here", pre), decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner.train_from_iterator(
        TEXT,
        trainers.BpeTrainer(
            vocab_size=300, special_tokens=list(special), initial_alphabet=alphabet, show_progress=False
        ),
    )
    inner.add_tokens([AddedToken("<think>", normalized=False), AddedToken("</think>", normalized=False)])
    return inner


def tokenizer_of(family: str) -> Tokenizer:
    template, special, _, cut = FAMILIES[family]
    inner = (
        sentencepiece(special, cut == "sentencepiece") if cut in ("sentencepiece", "gemma") else bytelevel(special, cut)
    )
    config = {
        "chat_template": template,
        "bos_token": special[0],
        "eos_token": {"content": special[1 if "</s>" in special or "<eos>" in special else -1]},
    }
    return Tokenizer(inner, [inner.token_to_id(config["eos_token"]["content"])], config)


TOKENIZERS = {family: tokenizer_of(family) for family in FAMILIES}


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}
