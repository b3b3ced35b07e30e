"""Turn a CUDA C++ kernel into C++ for the emulated machine.

The preprocessor runs first, so that macros are gone. Then assembly statements become calls of functions of
``include/ptx.h``, named after their opcodes; shared arrays become pointers into the block's memory; each
kernel gets a function that launches it.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

HERE = Path(__file__).parent

_ASM = re.compile(r"\basm\s*(?:volatile)?\s*\(")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_SHARED = re.compile(r"extern\s+__shared__\s+(?:alignas\(\d+\)\s*)?(\w[\w\s]*?)\s+(\w+)\[\];")
_DECLARATOR = r"\w+(?:\[[^\]]+\])*"
_FIXED = re.compile(
    rf"(?<!extern )__shared__\s+(\w+(?:<[^;=]*>)?)\s+({_DECLARATOR}(?:\s*,\s*{_DECLARATOR})*);"
)
_KERNEL = re.compile(r"__global__\s+void\s+__launch_bounds__\s*\([^)]*\)\s*(\w+)\s*\(")
_OPERAND = re.compile(r"%(\d+)|(?<![\w.%])(0x[0-9A-F]+|\d+)\b")

_ELEMENTS = {".bf16.bf16": "__nv_bfloat16", ".f16.f16": "emulator::F16", ".e4m3.e4m3": "emulator::E4m3"}

_LAUNCH = """
extern "C" const char* launch_{name}(
    const unsigned* grid, int threads, int cluster, unsigned seed, void** arguments) {{
  return emulator::launch({name}, grid, threads, cluster, seed, arguments);
}}
"""


def translate(source: Path, includes: list[Path], defines: list[str]) -> str:
    """Return C++ for the kernels of ``source``, each with a function ``launch_NAME``."""
    command = ["g++", "-E", "-P", "-std=c++20", "-x", "c++", "-include", str(HERE / "include/launch.h")]
    command += [f"-I{path}" for path in (HERE, HERE / "include", *includes)]
    text = subprocess.run(
        [*command, *defines, str(source)], check=True, capture_output=True, text=True
    ).stdout
    text = _SHARED.sub(r"\1* const \2 = emulator::dynamic_shared<\1>();", _without_assembly(text))
    text = _FIXED.sub(_fixed_arrays, text)
    text = text.replace("__shared__ ", "emulator::refuse_static_shared(); static ")
    names = _KERNEL.findall(text)
    text = _KERNEL.sub(r"void \1(", text)
    return text + "".join(_LAUNCH.format(name=name) for name in names)


def _fixed_arrays(declaration: re.Match[str]) -> str:
    """Return references into the block's memory for a declaration of shared variables."""
    made = []
    for declared in declaration[2].split(","):
        name, _, sizes = declared.strip().partition("[")
        kind = f"{declaration[1]}[{sizes}" if sizes else declaration[1]
        made.append(
            f"using {name}_t = {kind}; {name}_t& {name} = emulator::fixed_shared<{name}_t, __COUNTER__>();"
        )
    return " ".join(made)


def _without_assembly(text: str) -> str:
    parts, end = [], 0
    for found in _ASM.finditer(text):
        if found.start() < end:
            continue
        parts.append(text[end : found.start()])
        close = _closing(text, found.end() - 1)
        parts.append(_calls(text[found.end() : close]))
        end = close + 1
    return "".join(parts) + text[end:]


def _closing(text: str, opening: int) -> int:
    """Return where the parenthesis at ``opening`` closes; strings hold none that do not match."""
    depth = 0
    for i in range(opening, len(text)):
        depth += {"(": 1, ")": -1}.get(text[i], 0)
        if depth == 0:
            return i
    raise ValueError("an assembly statement never ends")


def _calls(statement: str) -> str:
    """Return calls for the inside of ``asm(...)``."""
    sections = [_pieces(section, ",") for section in _pieces(statement, ":")]
    code = "".join(_STRING.findall(sections[0][0])).replace("\\n", "\n")
    operands = [_expression(operand) for section in sections[1:3] for operand in section if operand.strip()]
    if code.lstrip().startswith("{"):
        return f"{_name(_first_opcode(code), 'ptx_block_')}({', '.join(operands)})"
    calls = [_call(call.strip(), operands) for call in code.split(";") if call.strip()]
    return "(" + ", ".join(calls) + ")" if calls else "(void)0"


def _call(instruction: str, operands: list[str]) -> str:
    opcode, _, rest = instruction.partition(" ")
    given = [operands[int(number)] if number else literal for number, literal in _OPERAND.findall(rest)]
    if opcode.startswith("wgmma.mma_async"):
        columns = int(re.search(r"m64n(\d+)k", opcode)[1])
        elements = next(kind for name, kind in _ELEMENTS.items() if opcode.endswith(name))
        return f"ptx_wgmma<{columns}, {elements}>({', '.join([given[0], *given[columns // 2 :]])})"
    return f"{_name(opcode)}({', '.join(given)})"


def _first_opcode(block: str) -> str:
    lines = (re.sub(r"^\w+:$", "", line.strip()) for line in re.split(r"[;\n]", block.lstrip(" {\n")))
    return next(line.split()[0] for line in lines if line and line[0] != ".")


def _name(opcode: str, prefix: str = "ptx_") -> str:
    return prefix + re.sub(r"\W", "_", opcode)


def _expression(operand: str) -> str:
    """Return the expression of ``"=r"(expression)``."""
    return operand[operand.index("(", operand.rindex('"')) :].strip()


def _pieces(text: str, separator: str) -> list[str]:
    """Split at ``separator`` outside of parentheses, brackets, braces and strings."""
    parts, depth, begin, i = [], 0, 0, 0
    while i < len(text):
        char = text[i]
        if char == '"':
            i = _STRING.match(text, i).end()
            continue
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(char, 0)
        if char == separator and depth == 0:
            parts.append(text[begin:i])
            begin = i + 1
        i += 1
    return [*parts, text[begin:]]
