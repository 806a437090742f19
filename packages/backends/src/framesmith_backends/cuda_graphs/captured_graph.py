"""A graph's launches recorded once and replayed: which calls, with what at which address. Note [Capture].

Note [Capture]
A replay does what was recorded, at the addresses of then. So a tensor that comes at the address of the call before is
read where it lies, and one that does not is copied into a buffer of the recording's. Results lie in the recording's
memory. They are handed out as new tensors over it, and no replay happens while anybody holds one of them: another
recording is made, up to a number of them, and beyond it one whose results are handed out as copies. So nothing that
was handed out ever changes under its holder.

Layers that share their code share a graph, which is called with the parameters of one after the other. Each set of
parameters has recordings of its own, as sets of sizes have.

Results of recordings come back as inputs of other graphs, activations of a backward pass above all. They have as many
addresses as there are recordings of the graph that gave them, and each recording of the graph that takes them is for
one of these addresses.
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
from framesmith_backends.cuda_graphs.capture import OF_CAPTURES, Capture, Capturer, record
from framesmith_backends.cuda_graphs.results import NotCaptured
from framesmith_backends.reporting import PLANS, warn_once

#: Sets of sizes and numbers that a graph is recorded for; sets met once that are remembered.
MOST_FORMS, MOST_MET = 16, 64
#: Sets of parameters that it is recorded for with the same sizes.
MOST_LAYERS = 128
#: What a user may do about too many of them.
FEWER_FORMS = "pad sizes to few lengths, and pass numbers that change as tensors"
#: Capture that a set has at a time for the same addresses, at a time for whatever ones, and in all.
MOST_RECORDINGS, MOST_AT_A_TIME, MOST_MADE = 4, 8, 16
#: How often an input that was read where it lies may come at a new address before it is copied from then on.
PATIENCE = 2

#: One replay at a time, and no replay while something is recorded: recordings share workspaces and random generators.
_ONE_AT_A_TIME = threading.RLock()


@dataclass(slots=True)
class Counts:
    """How often a graph was recorded, replayed, and run without either."""

    recorded: int = 0
    replayed: int = 0
    plain: int = 0


class CapturedGraph:
    """A graph's function that records what it launches and replays it: as `run`, for the same list of inputs."""

    def __init__(self, run: BoxedFn, parameters: Parameters, recorder: Capturer, about: str) -> None:
        self.run = run
        self.parameters = parameters
        self.recorder = recorder
        self.about = about
        self.counts = Counts()
        self._forms: dict[object, CallForm] = {}
        self._never = False
        self._varies = bool(parameters.varying or parameters.numbers)
        self._weights: tuple[int, ...] | None = None  # which of the tensors are parameters of modules

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        if not (self._never or self.recorder.busy()):
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
        form = self._forms.get(key)
        if form is None:  # a first call makes what later ones find: handles, workspaces, loaded kernels
            self._meet(key, args, addresses)
            return None
        recording = form.ready_for(args, addresses) or self._recorded(form, args, addresses)
        if recording is None:
            return None
        self.counts.replayed += 1
        results = recording.replay(args)
        args.clear()
        return results

    def _key(self, args: Sequence[Any]) -> object:
        """What a recording is for, but for addresses."""
        around = (torch.is_inference_mode_enabled(), *self.recorder.settings())
        if not self._varies:
            return around
        tensors = [args[at] for at in self.parameters.varying]
        layouts = [(t.shape, t.stride(), t.storage_offset()) for t in tensors]
        return (around, *layouts, *(_exactly(args[at]) for at in self.parameters.numbers))

    def _meet(self, key: tuple[Any, ...], args: Sequence[Any], addresses: list[int]) -> None:
        for known in [known for known, form in self._forms.items() if not form.has_its_weights()]:
            del self._forms[known]
        alike = [known for known, form in self._forms.items() if form.sizes == key[0]]
        crowded = len(alike) >= MOST_LAYERS if alike else len({form.sizes for form in self._forms.values()}) >= MOST_MET
        if crowded:
            what = f"the parameters of more than {MOST_LAYERS} modules" if alike else "sizes and numbers that come once"
            warn_once(f"{self.about} is not recorded for {what}{'' if alike else f'; {FEWER_FORMS}'}")
            unused = next((known for known in alike or self._forms if not self._forms[known].made), None)
            if unused is None:
                return
            del self._forms[unused]
        places = [self.parameters.tensors[place] for place in self._weights or ()]
        weights = [(weakref.ref(args[at]), address) for at, address in zip(places, key[1:], strict=True)]
        self._forms[key] = CallForm(self.parameters, key[0], weights, addresses)

    def _recorded(self, form: CallForm, args: Sequence[Any], addresses: list[int]) -> Capture | None:
        """A recording made for this call, or None."""
        if form.given_up:
            return None
        copied = form.copied(addresses)
        if copied is None:
            return None
        if not self._has_room(form):
            return None
        lends = form.make_place(addresses)
        why = None if lends else form.why_no_copies()
        if why is not None:
            warn_once(
                f"{self.about} runs without CUDA graphs where results of its last {MOST_RECORDINGS} calls are still "
                f"held, since {why}; drop them, or keep clones"
            )
            return None
        outside = sys.exception()
        try:
            recording = record(self.run, self.recorder, self.parameters, args, addresses, copied, lends)
        except NotCaptured as error:
            self._give_up(form, str(error))
            return None
        except Exception as error:
            self._has_failed(form, _first_raised(error, outside))
            return None
        if not recording.may_take(args):
            self._give_up(form, "memory that it writes to is also an input that comes at changing addresses")
            return None
        form.add(recording)
        self.counts.recorded += 1
        PLANS.info(
            "%s: recording %d, for inputs of which %d of %d are copied%s",
            self.about, form.made, len(copied), len(addresses), "" if lends else ", as are all results",
        )  # fmt: skip
        return recording

    def _has_room(self, form: CallForm) -> bool:
        """Whether there may be one more recording."""
        if not form.made:
            alike = Counter(other.sizes for other in self._forms.values() if other.made)
            if form.sizes not in alike and len(alike) >= MOST_FORMS:
                self._give_up(
                    form,
                    f"it is recorded for {MOST_FORMS} sets of sizes and numbers already; {FEWER_FORMS}",
                )
                return False
        if form.made >= MOST_MADE:
            self._give_up(form, f"its inputs came at other addresses after each of {MOST_MADE} recordings")
            return False
        return True

    def _has_failed(self, form: CallForm, error: BaseException) -> None:
        """Once where memory was short; else what cannot be recorded for these sizes cannot for others."""
        if not isinstance(error, torch.OutOfMemoryError):
            self._never = True
            self._give_up(form, f"recording failed: {_first_line(error)}")
            return
        self.recorder.make_room()
        if form.short_of_memory:
            self._give_up(form, f"there is not enough memory for it: {_first_line(error)}")
        form.short_of_memory = True

    def _give_up(self, form: CallForm, why: str) -> None:
        form.given_up = True
        warn_once(f"{self.about} runs without CUDA graphs: {why}")


def _exactly(number: object) -> object:
    """A number as what is equal for the same bits alone."""
    if isinstance(number, float):
        return number.hex()
    return type(number), number


def _first_raised(error: BaseException, outside: BaseException | None) -> BaseException:
    """The first of the errors that led to one another, but for what was being handled outside already."""
    while error.__context__ is not None and error.__context__ is not outside:
        error = error.__context__
    return error


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


@dataclass(slots=True)
class CallForm:
    """What is known of the calls with one set of sizes and numbers, `sizes`, and of parameters, `weights`.

    `last` are the addresses of the last call that was not a replay, `moving` the tensors (by their place in
    `parameters.tensors`) that are copied from now on, `moved` how often others have moved.
    """

    parameters: Parameters
    sizes: object
    weights: list[tuple[weakref.ref[torch.Tensor], int]]
    last: list[int]
    moving: set[int] = field(default_factory=set)
    moved: Counter[int] = field(default_factory=Counter)
    recordings: list[Capture] = field(default_factory=list)
    made: int = 0
    given_up: bool = False
    short_of_memory: bool = False

    def has_its_weights(self) -> bool:
        """Whether its parameters are all there, where they were."""
        found = ((reference(), address) for reference, address in self.weights)
        return all(weight is not None and weight.data_ptr() == address for weight, address in found)

    def ready_for(self, args: Sequence[Any], addresses: list[int]) -> Capture | None:
        """A recording that can be replayed for this call."""
        for recording in self.recordings:
            if recording.takes(addresses) and recording.is_free() and recording.may_take(args):
                return recording
        return None

    def copied(self, addresses: list[int]) -> list[int] | None:
        """The tensors that a recording for this call is to copy; None to wait whether the addresses will stay."""
        waiting = False
        for place, (address, last) in enumerate(zip(addresses, self.last, strict=True)):
            if place in self.moving or address == last or address in OF_CAPTURES:
                continue
            if self.was_fixed(place) and self.moved[place] < PATIENCE:
                self.moved[place] += 1
                waiting = True
            else:
                self.moving.add(place)
            self.drop_fixed(place, address)
        self.last = addresses
        return None if waiting else [place for place in sorted(self.moving) if addresses[place] not in OF_CAPTURES]

    def was_fixed(self, place: int) -> bool:
        """Whether a recording reads this tensor where it lies."""
        return self.moved[place] > 0 or any(place in recording.fixed for recording in self.recordings)

    def drop_fixed(self, place: int, address: int) -> None:
        """Forget recordings that read this tensor at an address at which it is not, unless other recordings give it."""
        self.recordings = [
            one
            for one in self.recordings
            if (known := one.fixed.get(place, address)) == address or known in OF_CAPTURES
        ]

    def make_place(self, addresses: list[int]) -> bool:
        """Whether there is a place for one more recording that lends; the oldest that is free goes if there is none."""
        lending = [one for one in self.recordings if one.lends]
        alike = [one for one in lending if one.takes(addresses)]
        if len(alike) < MOST_RECORDINGS and len(lending) < MOST_AT_A_TIME:
            return True
        among = alike if len(alike) >= MOST_RECORDINGS else lending
        unused = next((one for one in among if one.is_free()), None)
        if unused is None:
            return False
        self.recordings.remove(unused)
        return True

    def why_no_copies(self) -> str | None:
        """Why results, which are as those of other recordings, cannot be handed out as copies; or None."""
        return self.recordings[0].why_not_copied()

    def add(self, recording: Capture) -> None:
        """Those that lend come first; beyond a number of those that give copies, the oldest goes."""
        self.made += 1
        self.recordings.append(recording)
        self.recordings.sort(key=lambda one: not one.lends)
        copying = [one for one in self.recordings if not one.lends]
        if len(copying) > MOST_RECORDINGS:
            self.recordings.remove(copying[0])
