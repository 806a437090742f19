"""CUDA graph capture: launches captured once and replayed, by sizes and addresses of inputs: Note [Capture].

Note [Capture] (docs/design/gpu/0019)
A replay does what was captured, at the addresses of then. A tensor that comes at the address of the call before is read
where it lies; another is copied into a buffer of the capture's. Results lie in the capture's memory, and no replay
happens while anybody holds one of them: another capture is made, up to a number of them, and beyond it one whose
results are handed out as copies. Results of captures are inputs of other graphs, which have captures for their
addresses. Layers that share their code have captures for each set of parameters.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from framesmith_aten.contract import BoxedFn
from framesmith_backends.cuda_graphs.capturable import Parameters
from framesmith_backends.cuda_graphs.capture import OF_CAPTURES, Capture, Capturer, capture_launches
from framesmith_backends.cuda_graphs.results import NotCaptured
from framesmith_backends.reporting import PLAN_LOG, log_once

#: Sets of sizes and numbers that a graph is captured for; sets met once that are remembered.
MOST_VARIANTS, MOST_MET = 16, 64
#: Sets of parameters that it is captured for with the same sizes.
MOST_LAYERS = 128
#: The advice about too many of them.
FEWER_VARIANTS = "pad sizes to few lengths, and pass varying numbers as tensors"
#: Capture that a set has at a time for the same addresses, at a time for whatever ones, and in all.
MOST_CAPTURES, MOST_AT_A_TIME, MOST_MADE = 4, 8, 16
#: The number of new addresses of an input read in place before it is copied from then on.
PATIENCE = 2

#: One replay at a time, and no replay while something is captured: captures share workspaces and random generators.
_ONE_AT_A_TIME = threading.RLock()


@dataclass(slots=True)
class Counts:
    """The numbers of captures, replays, and runs without either."""

    captured: int = 0
    replayed: int = 0
    plain: int = 0


class CapturedGraph:
    """A graph's function that captures what it launches and replays it: as `run`, for the same list of inputs."""

    def __init__(self, run: BoxedFn, parameters: Parameters, capturer: Capturer, about: str) -> None:
        self.run = run
        self.parameters = parameters
        self.capturer = capturer
        self.about = about
        self.counts = Counts()
        self._variants: dict[object, CallVariant] = {}
        self._never = False
        self._varies = bool(parameters.varying or parameters.numbers)
        self._weights: tuple[int, ...] | None = None  # which of the tensors are parameters of modules

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        if not (self._never or self.capturer.busy()):
            with _ONE_AT_A_TIME:
                results = self._replayed(args)
            if results is not None:
                return results
        self.counts.plain += 1
        return self.run(args)

    def _replayed(self, args: list[Any]) -> list[Any] | None:
        """The results by a replay, and the list emptied; None, and nothing done, where the graph is to run."""
        addresses = [args[at].data_ptr() for at in self.parameters.tensors]
        if self._weights is None:
            tensors = enumerate(self.parameters.tensors)
            self._weights = tuple(place for place, at in tensors if isinstance(args[at], torch.nn.Parameter))
        key = self._key(args), *[addresses[place] for place in self._weights]
        variant = self._variants.get(key)
        if variant is None:  # a first call makes what later ones find: handles, workspaces, loaded kernels
            self._meet(key, args, addresses)
            return None
        capture = variant.ready_for(args, addresses) or self._captured(variant, args, addresses)
        if capture is None:
            return None
        self.counts.replayed += 1
        results = capture.replay(args)
        args.clear()
        return results

    def _key(self, args: Sequence[Any]) -> object:
        """The key of a capture, but for addresses."""
        around = (torch.is_inference_mode_enabled(), *self.capturer.settings())
        if not self._varies:
            return around
        tensors = [args[at] for at in self.parameters.varying]
        layouts = [(t.shape, t.stride(), t.storage_offset()) for t in tensors]
        return (around, *layouts, *(_exactly(args[at]) for at in self.parameters.numbers))

    def _meet(self, key: tuple[Any, ...], args: Sequence[Any], addresses: list[int]) -> None:
        for known in [known for known, variant in self._variants.items() if not variant.has_its_weights()]:
            del self._variants[known]
        same = [known for known, variant in self._variants.items() if variant.sizes == key[0]]
        sizes = {variant.sizes for variant in self._variants.values()}
        if len(same) >= MOST_LAYERS if same else len(sizes) >= MOST_MET:
            what = f"the parameters of more than {MOST_LAYERS} modules" if same else "sizes and numbers that come once"
            log_once(f"{self.about} is not captured for {what}{'' if same else f'; {FEWER_VARIANTS}'}")
            unused = next((known for known in same or self._variants if not self._variants[known].made), None)
            if unused is None:
                return
            del self._variants[unused]
        positions = [self.parameters.tensors[place] for place in self._weights or ()]
        weights = [(weakref.ref(args[at]), address) for at, address in zip(positions, key[1:], strict=True)]
        self._variants[key] = CallVariant(self.parameters, key[0], weights, addresses)

    def _captured(self, variant: CallVariant, args: Sequence[Any], addresses: list[int]) -> Capture | None:
        """A capture made for this call, or None."""
        if variant.given_up:
            return None
        copied = variant.copied(addresses)
        if copied is None or not self._has_room(variant):
            return None
        lends = variant.make_place(addresses)
        why = None if lends else variant.captures[0].why_not_copied()
        if why is not None:
            log_once(
                f"{self.about} runs without CUDA graphs where results of its last {MOST_CAPTURES} calls are still "
                f"held, since {why}; drop them, or keep clones"
            )
            return None
        outside = sys.exception()
        try:
            capture = capture_launches(self.run, self.capturer, self.parameters, args, addresses, copied, lends)
        except NotCaptured as error:
            self._give_up(variant, str(error))
            return None
        except Exception as error:
            self._has_failed(variant, _first_raised(error, outside))
            return None
        if not capture.may_take(args):
            self._give_up(variant, "memory that it writes to is also an input that comes at changing addresses")
            return None
        variant.add(capture)
        self.counts.captured += 1
        PLAN_LOG.info(
            "%s: capture %d, for inputs of which %d of %d are copied%s",
            self.about, variant.made, len(copied), len(addresses), "" if lends else ", as are all results",
        )  # fmt: skip
        return capture

    def _has_room(self, variant: CallVariant) -> bool:
        """Whether there may be one more capture."""
        if not variant.made:
            same = Counter(other.sizes for other in self._variants.values() if other.made)
            if variant.sizes not in same and len(same) >= MOST_VARIANTS:
                why = f"it is captured for {MOST_VARIANTS} sets of sizes and numbers already; {FEWER_VARIANTS}"
                self._give_up(variant, why)
                return False
        if variant.made >= MOST_MADE:
            self._give_up(variant, f"its inputs came at other addresses after each of {MOST_MADE} captures")
            return False
        return True

    def _has_failed(self, variant: CallVariant, error: BaseException) -> None:
        """Once where memory was short; else what cannot be captured for these sizes cannot for others."""
        if not isinstance(error, torch.OutOfMemoryError):
            self._never = True
            self._give_up(variant, f"capture failed: {_first_line(error)}")
            return
        self.capturer.make_room()
        if variant.short_of_memory:
            self._give_up(variant, f"there is not enough memory for it: {_first_line(error)}")
        variant.short_of_memory = True

    def _give_up(self, variant: CallVariant, why: str) -> None:
        variant.given_up = True
        log_once(f"{self.about} runs without CUDA graphs: {why}")


def _exactly(number: object) -> object:
    """A key of the number that is equal for the same bits alone."""
    return number.hex() if isinstance(number, float) else (type(number), number)


def _first_raised(error: BaseException, outside: BaseException | None) -> BaseException:
    """The first of the errors that led to one another, but for what was being handled outside already."""
    while error.__context__ is not None and error.__context__ is not outside:
        error = error.__context__
    return error


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


@dataclass(slots=True)
class CallVariant:
    """The state of calls with one set of sizes and numbers, `sizes`, and of parameters, `weights`.

    `last` are the addresses of the last call that was not a replay, `moving` the tensors (by their place in
    `parameters.tensors`) that are copied from now on, `moved` how often others have moved.
    """

    parameters: Parameters
    sizes: object
    weights: list[tuple[weakref.ref[torch.Tensor], int]]
    last: list[int]
    moving: set[int] = field(default_factory=set)
    moved: Counter[int] = field(default_factory=Counter)
    captures: list[Capture] = field(default_factory=list)
    made: int = 0
    given_up: bool = False
    short_of_memory: bool = False

    def has_its_weights(self) -> bool:
        """Whether its parameters are all there, where they were."""
        found = ((reference(), address) for reference, address in self.weights)
        return all(weight is not None and weight.data_ptr() == address for weight, address in found)

    def ready_for(self, args: Sequence[Any], addresses: list[int]) -> Capture | None:
        """A capture that can be replayed for this call."""
        found = (one for one in self.captures if one.takes(addresses) and one.is_free() and one.may_take(args))
        return next(found, None)

    def copied(self, addresses: list[int]) -> list[int] | None:
        """The tensors that a capture for this call is to copy; None to wait whether the addresses will stay."""
        waiting = False
        for place, (address, last) in enumerate(zip(addresses, self.last, strict=True)):
            if place in self.moving or address == last or address in OF_CAPTURES:
                continue
            was_fixed = self.moved[place] > 0 or any(place in capture.fixed for capture in self.captures)
            if was_fixed and self.moved[place] < PATIENCE:
                self.moved[place] += 1
                waiting = True
            else:
                self.moving.add(place)
            # Captures that read the tensor where it is no longer are of no use, unless other captures give it.
            fixed = ((one, one.fixed.get(place, address)) for one in self.captures)
            self.captures = [one for one, known in fixed if known == address or known in OF_CAPTURES]
        self.last = addresses
        return None if waiting else [place for place in sorted(self.moving) if addresses[place] not in OF_CAPTURES]

    def make_place(self, addresses: list[int]) -> bool:
        """Whether there is a place for one more capture that lends; the oldest that is free goes if there is none."""
        lending = [one for one in self.captures if one.lends]
        same = [one for one in lending if one.takes(addresses)]
        if len(same) < MOST_CAPTURES and len(lending) < MOST_AT_A_TIME:
            return True
        among = same if len(same) >= MOST_CAPTURES else lending
        unused = next((one for one in among if one.is_free()), None)
        if unused is None:
            return False
        self.captures.remove(unused)
        return True

    def add(self, capture: Capture) -> None:
        """Those that lend come first; beyond a number of those that give copies, the oldest goes."""
        self.made += 1
        self.captures.append(capture)
        self.captures.sort(key=lambda one: not one.lends)
        copying = [one for one in self.captures if not one.lends]
        if len(copying) > MOST_CAPTURES:
            self.captures.remove(copying[0])
