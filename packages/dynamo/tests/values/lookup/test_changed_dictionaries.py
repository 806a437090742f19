"""Instance dictionaries and module registries that change between calls; storage offsets of inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from driver import compiled
from worlds import X

# Dictionaries of objects


class Plain:
    a = 0.0


def by_object_first(x: Any, o: Any, d: Any) -> Any:
    o.a = 10.0
    d["b"] = d["a"] + 1
    return x + d["a"] + o.a + d.get("b")


def by_dictionary_first(x: Any, o: Any, d: Any) -> Any:
    d["a"] = 10.0
    o.b = 3.0
    return x + d["a"] + o.a + len(d)


def only_read(x: Any, o: Any, d: Any) -> Any:
    return x + o.a + d["a"]


def same_dictionary(x: Any, o: Any, d: Any) -> Any:
    return x + (1 if o.__dict__ is d else 2) + (10 if vars(o) == d else 20)


@pytest.mark.parametrize("order", [(True, False), (False, True), (True, True), (False, False, True)])
@pytest.mark.parametrize("program", [by_object_first, by_dictionary_first, only_read])
def test_an_object_beside_its_dictionary(program: Callable[..., Any], order: tuple[bool, ...]) -> None:
    def outcomes(wrap: Callable[..., Any]) -> list[Any]:
        call, found = wrap(program), []
        for own in order:
            o = Plain()
            o.a = 1.0
            d = vars(o) if own else {"a": 5.0}
            found += [call(X, o, d), vars(o), d]
        return found

    assert str(outcomes(compiled)) == str(outcomes(lambda fn: fn))


# Module registries


class Buffered(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("b", torch.zeros(3))
        self.w = torch.nn.Parameter(torch.ones(3))
        self.inner = torch.nn.Identity()


def deleted_and_set(module: Any, x: Any) -> Any:
    del module.b
    module.b = x + 1
    return module.b * 2


def deleted_set_and_deleted(module: Any, x: Any) -> Any:
    del module.b
    module.b = x + 1
    del module.b
    return x + hasattr(module, "b")


def parameter_deleted_and_set(module: Any, x: Any) -> Any:
    del module.w
    module.w = x + 1
    return module.w * 2


def set_and_set(module: Any, x: Any) -> Any:
    module.b = x + 1
    module.b = module.b * 2
    return module.b


def stored_in_the_registry(module: Any, x: Any) -> Any:
    module._buffers["c"] = x + 1
    module.c = x + 2
    return module.c


@pytest.mark.parametrize(
    "program",
    [deleted_and_set, deleted_set_and_deleted, parameter_deleted_and_set, set_and_set, stored_in_the_registry],
)
def test_registered_names_are_deleted_and_set_again(program: Callable[..., Any]) -> None:
    def outcomes(wrap: Callable[..., Any]) -> list[Any]:
        made = Buffered()
        result = wrap(program)(made, X)
        return [result, list(made._buffers), list(made._parameters), sorted(vars(made)), dict(made.state_dict())]

    with torch.no_grad():
        assert str(outcomes(compiled)) == str(outcomes(lambda fn: fn))


def test_storage_offset() -> None:
    base = torch.arange(8.0)

    def program(x: Any) -> Any:
        return x * 0 + x.storage_offset() + x[1:].storage_offset()

    call = compiled(program)
    for at in (2, 1, 4, 2):
        assert torch.equal(call(base[at : at + 1]), program(base[at : at + 1]))
    plain = compiled(lambda x: x + 1)
    for at in (2, 1, 4):
        plain(base[at : at + 1])
    assert len(plain.of_kind("entry")) == 1


def test_a_dictionary_of_attributes_is_one_object() -> None:
    class Thing:
        pass

    def program(x: torch.Tensor, o: Thing, table: dict[str, float]) -> Any:
        made = Thing()
        made.a = o.a = 2.0  # type: ignore[attr-defined]
        return x + 1, vars(o) is vars(o), vars(o) is table, vars(made) is made.__dict__, globals() is globals()

    subject = compiled(program)
    thing, other = Thing(), Thing()
    for table in (vars(thing), vars(other), {}, vars(thing)):
        assert subject(X, thing, table)[1:] == program(X, thing, table)[1:]
