"""A journal of the mutations found while tracing, and their replay as bytecode."""

from framesmith_sideeffects.__about__ import __version__
from framesmith_sideeffects.changes import Change, GlobalChange
from framesmith_sideeffects.difference import Difference, NotRestorable
from framesmith_sideeffects.journal import Journal
from framesmith_sideeffects.load_source import CannotLoad, load_source
from framesmith_sideeffects.mutations import Mutation, NotTracked, Origin
from framesmith_sideeffects.presence import has_own_attribute
from framesmith_sideeffects.protocol import DELETED, Deleted, Restorable, TracedContainer, TracedValue
from framesmith_sideeffects.replay import Replay
from framesmith_sideeffects.restriction import ChangedAcrossCall, MutationRefused, NotMadeHere, UsedAcrossCall

__all__ = [
    "DELETED",
    "CannotLoad",
    "Change",
    "ChangedAcrossCall",
    "Deleted",
    "Difference",
    "GlobalChange",
    "Journal",
    "Mutation",
    "MutationRefused",
    "NotMadeHere",
    "NotRestorable",
    "NotTracked",
    "Origin",
    "Replay",
    "Restorable",
    "TracedContainer",
    "TracedValue",
    "UsedAcrossCall",
    "__version__",
    "has_own_attribute",
    "load_source",
]
