"""A model that writes harmony: a tokenizer of bytes and markers, and a chat template of our own."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from wisp_runtime.server.text.tokenizer import _byte_alphabet

START, RETURN = "<|start|>", "<|return|>"
CHANNEL, CONSTRAIN, MESSAGE, END, CALL = (
    f"<|{name}|>" for name in ("channel", "constrain", "message", "end", "call")
)
MARKERS = (START, RETURN, CHANNEL, CONSTRAIN, MESSAGE, END, CALL)  # of ids from 256 on; 257 ends answers
IDS = {text: 256 + number for number, text in enumerate(MARKERS)}

# What gpt-oss's own does, in few words: the effort in the system's message, instructions and tools in the
# developer's; thinking of former turns is left out, that between the calls of one turn is not.
TEMPLATE = """
{%- set last = namespace(answer=-1, name='') -%}
{%- for message in messages if message.role == 'assistant' and not message.tool_calls -%}
  {%- set last.answer = messages.index(message) -%}
{%- endfor -%}
<|start|>system<|message|>Reasoning: {{ reasoning_effort or 'medium' }}
# Valid channels: analysis, commentary, final.<|end|>
{%- set system = messages[0].role in ('system', 'developer') -%}
{%- if system or tools -%}
<|start|>developer<|message|>
  {%- if system -%}# Instructions
{{ messages[0].content }}
{% endif -%}
  {%- if tools -%}# Tools
{% for tool in tools -%}
type {{ tool.function.name }} = (_: {{ tool.function.parameters | tojson }}) => any;
{% endfor -%}
  {%- endif -%}<|end|>
{%- endif -%}
{%- for message in messages[1 if system else 0:] -%}
  {%- if message.role == 'assistant' -%}
    {%- if message.thinking and messages.index(message) > last.answer -%}
<|start|>assistant<|channel|>analysis<|message|>{{ message.thinking }}<|end|>
    {%- endif -%}
    {%- if message.content -%}
<|start|>assistant<|channel|>{{ 'commentary' if message.tool_calls else 'final' }}<|message|>
      {{- message.content }}<|end|>
    {%- endif -%}
    {%- for call in message.tool_calls or [] -%}
      {%- set last.name = call.function.name -%}
<|start|>assistant to=functions.{{ last.name }}<|channel|>commentary json<|message|>
      {{- call.function.arguments | tojson }}<|call|>
    {%- endfor -%}
  {%- elif message.role == 'tool' -%}
<|start|>functions.{{ last.name }} to=assistant<|channel|>commentary<|message|>
    {{- message.content }}<|end|>
  {%- else -%}
<|start|>{{ message.role }}<|message|>{{ message.content }}<|end|>
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|start|>assistant{%- endif -%}
"""


def write_harmony(directory: Path, template: str = TEMPLATE) -> Path:
    """Write the tokenizer, its config and the template."""
    tokenizer = Tokenizer(models.BPE(vocab=_byte_alphabet(), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in MARKERS])
    directory.mkdir(exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": RETURN}))
    (directory / "chat_template.jinja").write_text(template)
    return directory


def harmony_tokens(text: str) -> list[int]:
    """Return the tokens of a text: markers, and bytes."""
    parts = re.split(f"({'|'.join(map(re.escape, MARKERS))})", text)
    return [token for part in parts for token in ([IDS[part]] if part in IDS else part.encode())]


def harmony_text(tokens) -> str:
    """Return the text of tokens, markers written out."""
    return b"".join(
        MARKERS[token - 256].encode() if token > 255 else bytes([token]) for token in tokens
    ).decode()
