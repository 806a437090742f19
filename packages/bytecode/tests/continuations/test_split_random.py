"""Random functions, split at many items: prefix and continuation have the effects of the function, in order."""

from __future__ import annotations

import random
from collections import Counter
from types import FunctionType

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from random_functions import Writer, compiled, outcome

from framesmith_bytecode import Analyses, decode, split, verify, why_no_continuation
from framesmith_bytecode.analyses.slots import CELL

REFUSED: Counter[str] = Counter()
SPLIT_AGAIN: Counter[str] = Counter()


def lived_on(effects):
    """Whether an object outlived the run, in a cycle of an exception and its frame."""
    return sum(effect[0] == "born" for effect in effects) != sum(effect[0] == "died" for effect in effects)


def last_deaths_sorted(effects):
    """The effects with deaths at the end sorted: a cell argument dies with the prefix's frame, after other locals."""
    end = len(effects)
    while end and effects[end - 1][0] == "died":
        end -= 1
    return effects[:end] + sorted(effects[end:])


def keeps_a_cell(known, index):
    """Whether a comprehension with a cell for its variable is running at the item: both halves keep that cell."""
    return any(kind & CELL for kind in known.stack_states.kinds(index))


def agree(found, expected, *, deaths=True):
    """Compare all effects, but deaths only if they do not depend on the garbage collector."""
    for one, other in zip(found, expected, strict=True):
        effects = [run[1] for run in (one, other)]
        if not deaths or lived_on(other[1]):
            effects = [[effect for effect in run if effect[0] != "died"] for run in effects]
        effects = list(map(last_deaths_sorted, effects))
        if effects[0] != effects[1] or one[::2] != other[::2]:
            return False
    return True


def split_again(prefix, code, chance):
    """The prefix with its continuation split as well, and whether that keeps a cell."""
    known = Analyses(decode(code))
    index = chance.choice([index for index, depth in enumerate(known.stack_states.before) if depth is not None])
    reason = why_no_continuation(known, index, own_cells=True)
    SPLIT_AGAIN[reason or "split"] += 1
    if reason is not None:
        return prefix, False
    second = split(known, index).prefix
    whole = prefix.replace(co_consts=tuple(second if item is code else item for item in prefix.co_consts))
    return whole, keeps_a_cell(known, index)


def check_splits(source: str, chance: random.Random, most: int) -> int:
    function = compiled(source)
    bytecode = decode(function.__code__)
    known = Analyses(bytecode)
    expected = outcome(function)
    reached = known.stack_states.before
    indices = [index for index, depth in enumerate(reached) if depth is not None]
    done = 0
    for index in chance.sample(indices, min(most, len(indices))):
        reason = why_no_continuation(known, index, own_cells=True)
        if reason is not None:
            REFUSED[reason] += 1
            continue
        done += 1
        prefix, continuation = split(known, index)
        keeps = again_keeps = keeps_a_cell(known, index)
        if done % 8 == 0:
            verify(decode(prefix))
            verify(continuation.bytecode)
            prefix, again_keeps = split_again(prefix, continuation.code, chance)
        halved = FunctionType(prefix, function.__globals__, "target", function.__defaults__)
        halved.__kwdefaults__ = function.__kwdefaults__
        same = agree(outcome(halved), expected, deaths=not (keeps or again_keeps))
        assert same, f"differs when cut at {index} {bytecode.instructions[index]}:\n{source}"
    return done


def test_random_functions_split_anywhere(long_run):
    total = 0
    wanted = 100_000 if long_run else 1_500  # on each of five interpreters
    seed = 0
    while total < wanted:
        chance = random.Random(seed)
        total += check_splits(Writer(chance).function(), chance, 40)
        seed += 1
    print(f"{total:,} splits of {seed:,} functions, indices refused: {dict(REFUSED)}")
    print(f"of these {SPLIT_AGAIN.total():,} split in three: {dict(SPLIT_AGAIN)}")
    assert not REFUSED
    assert SPLIT_AGAIN["split"] > 0.9 * SPLIT_AGAIN.total()


@settings(
    max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate, Phase.shrink]
)
@given(st.randoms(use_true_random=False))
def test_hypothesis_functions_split_anywhere(chance):
    check_splits(Writer(chance).function(), random.Random(0), 12)


@pytest.mark.parametrize("seed", range(3))
def test_the_programs_have_effects(seed):
    """Most random programs have effects, and they end in different ways."""
    outcomes = [outcome(compiled(Writer(random.Random(1000 * seed + i)).function())) for i in range(60)]
    assert sum(any(effects for _, effects, _ in runs) for runs in outcomes) > 40
    assert {runs[0][0][0] for runs in outcomes} == {"returned", "raised"}
