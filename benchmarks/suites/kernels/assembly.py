"""The machine code of an elementary function, for any processor that LLVM knows, on any machine.

Compiled is a loop over an array, a register at a time. Its instructions are counted from the label that it goes back
to up to the jump; those of few lanes (`library`) stand behind it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from llvmlite import binding

from framesmith_backends.launch.llvm.engine import LEVEL, LLVM_PASSES
from framesmith_backends.render.llvm.builder import Builder, Value, element_bytes
from framesmith_backends.render.llvm.runtime import attributes
from framesmith_backends.target import Processor, vectors_of


@dataclass(frozen=True, slots=True)
class Platform:
    """`name` and `triple` are LLVM's, `bytes` a register's size."""

    name: str
    triple: str
    bytes: int

    @property
    def vectors(self) -> str:
        return vectors_of(self.bytes)


X86, ARM = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"
#: AVX-512, AVX2, NEON, and SVE of 256 bits, of which functions use registers of 128.
PROCESSORS = {
    one.name: one
    for one in (
        Platform("znver5", X86, 64),
        Platform("znver4", X86, 64),
        Platform("icelake-server", X86, 64),
        Platform("sapphirerapids", X86, 64),
        Platform("znver2", X86, 32),
        Platform("haswell", X86, 32),
        Platform("neoverse-n1", ARM, 16),
        Platform("neoverse-v1", ARM, 16),
    )
}


@dataclass(frozen=True, slots=True)
class Counts:
    """Instructions for a vector: all of them, and of the kinds that take long. `calls` names what is called."""

    instructions: int
    divisions: int
    roots: int
    conversions: int
    lookups: int
    spills: int
    calls: tuple[str, ...]


#: A kind of instruction: what it is called on x86, and on arm64.
KINDS = {
    "divisions": r"v?divp[sd]|v?divs[sd]|fdiv",
    "roots": r"v?sqrtp[sd]|v?sqrts[sd]|fsqrt",
    "conversions": r"v?cvt\w+|[su]cvtf|fcvt\w*",
    "lookups": r"v?gather\w+|vpermi2ps|vpermt2ps|vpermps|tbl",
}


@cache
def _targets() -> None:
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()


def assembly(function: Callable[..., Value], arity: int, kind: str, processor: Platform) -> str:
    """The text of a loop that computes the function of arrays of `kind` ("float" or "double")."""
    _targets()
    size = element_bytes(kind)
    lanes = processor.bytes // size
    vector = f"<{lanes} x {kind}>"
    b = Builder(vectors=processor.vectors)
    inputs = [Value(f"%x{k}", kind, lanes) for k in range(arity)]
    result = function(b, *inputs)
    loads = [
        line
        for k in range(arity)
        for line in (
            f"%a{k} = getelementptr {kind}, ptr %in{k}, i64 %i",
            f"%x{k} = load {vector}, ptr %a{k}, align {size}",
        )
    ]
    given = ", ".join(f"ptr noalias %in{k}" for k in range(arity))
    lines = [
        f"define void @loop({given}, ptr noalias %out, i64 %n) #0 {{",
        "entry:",
        "br label %loop",
        "loop:",
        "%i = phi i64 [ 0, %entry ], [ %next, %latch ]",
        *loads,
        *map(str, b.out),
        "br label %latch",
        "latch:",
        f"%place = getelementptr {kind}, ptr %out, i64 %i",
        f"store {result.typed}, ptr %place, align {size}",
        f"%next = add i64 %i, {lanes}",
        "%more = icmp ult i64 %next, %n",
        "br i1 %more, label %loop, label %done",
        "done:",
        "ret void",
        "}",
    ]
    target = attributes(Processor(processor.name, "", processor.bytes, converts_float16=True))
    weights = '!0 = !{!"branch_weights", i32 1, i32 100000}'
    text = "\n".join([f'target triple = "{processor.triple}"', *b.declared, *lines, target, weights])
    module = binding.parse_assembly(text)
    llvm = binding.Target.from_triple(processor.triple)
    machine = llvm.create_target_machine(cpu=processor.name, opt=LEVEL, jit=True)
    passes = binding.create_new_module_pass_manager()
    for name in LLVM_PASSES:
        getattr(passes, f"add_{name}_pass")()
    options = binding.create_pipeline_tuning_options(speed_level=LEVEL)
    passes.run(module, binding.create_pass_builder(machine, options))
    found: str = machine.emit_assembly(module)
    return found


def loop_of(text: str) -> list[str]:
    """The instructions of the function's loop."""
    body = text[text.index("\nloop:") :]
    lines = [line.strip() for line in re.sub(r"\s*(#|//).*", "", body).splitlines()]
    labels = {line[:-1]: place for place, line in enumerate(lines) if line.endswith(":")}
    for place, line in enumerate(lines):
        jump = re.match(r"(?:j[a-z]+|b\.\w+|cbn?z\s+\w+,|tbn?z\s+\w+,\s*#\d+,)\s+(\.\w+)$", line)
        if jump is not None and labels.get(jump.group(1), place) < place:
            inside = lines[labels[jump.group(1)] : place + 1]
            return [one for one in inside if one and not one.endswith(":") and not one.startswith(".")]
    raise ValueError(f"no loop in {text!r}")


def counts(text: str) -> Counts:
    """Of the loop. What is called by code behind it does not count among its instructions, but among `calls`."""
    inside = loop_of(text)
    names = [line.split()[0] for line in inside]
    found = {kind: sum(re.fullmatch(pattern, name) is not None for name in names) for kind, pattern in KINDS.items()}
    spills = sum("(%rsp" in line or "(%rbp" in line or "[sp" in line for line in inside)
    # A function is called by its name, or by its address, which x86 loads and arm64 puts together.
    calls = sorted(set(re.findall(r"\b(?:callq?\s+|bl\s+|movabsq\s+\$|:abs_g3:)([A-Za-z_]\w*(?:\.\w+)*)", text)))
    return Counts(len(inside), **found, spills=spills, calls=tuple(calls))
