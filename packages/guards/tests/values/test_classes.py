"""Guards on classes: entries lost and gained anywhere among the bases are noticed, and nothing else is."""

import abc
import copy
import gc
import weakref

import pytest

from framesmith_guards import Guard, GuardError, LocalSource, TypeSource, compile_guards
from framesmith_guards.values.classes import ClassLayout

X = LocalSource("x")


def f(x):
    return x


def classes():
    base = type("Base", (), {"a": 1, "b": 2})
    middle = type("Middle", (base,), {"c": 3})
    return base, middle, type("Top", (middle,), {"d": 4})


def program(cls):
    return compile_guards([Guard(TypeSource(X), "CLASS_LAYOUT", cls)], ("x",))


def agreed(check, args):
    answer = check(args, f)
    assert answer is check.check(args, f) is (check.explain(args, f) is None)
    return answer


def swap(owner):
    """Lose one entry and gain another: the number of entries stays."""
    name = next(name for name in ("a", "c", "d") if name in vars(owner))
    delattr(owner, name)
    owner.other = 1
    return name


@pytest.mark.parametrize("depth", range(3))
def test_a_swapped_entry_is_noticed_anywhere(depth):
    *_, top = found = classes()
    check, value = program(top), top()
    for _ in range(3):
        assert agreed(check, (value,))
    name = swap(found[depth])
    assert not agreed(check, (value,)) and not agreed(check, (value,))
    assert check.explain((value,), f).endswith(
        f"{found[depth].__name__} to have lost and gained no entries, found that it lost '{name}' and gained 'other'"
    )
    setattr(found[depth], name, 0)
    del found[depth].other
    assert agreed(check, (value,)) and agreed(check, (value,))


def test_changes_that_no_lookup_sees():
    base, middle, top = classes()
    check, value = program(top), top()
    changes = [
        lambda: setattr(base, "a", 5),
        lambda: setattr(middle, "c", "text"),
        lambda: base.__annotations__,
        lambda: getattr(middle, "__annotate__", None),
        lambda: middle.__annotations__,
        lambda: copy.copy(value),
        lambda: setattr(value, "a", 3),
        lambda: type("Sub", (top,), {"extra": 1}),
    ]
    for change in changes:
        assert agreed(check, (value,))
        change()
        assert agreed(check, (value,)) and agreed(check, (value,))


class Reading:
    def __get__(self, value, owner=None):
        return value


class Writing(Reading):
    def __set__(self, value, new):
        pass


KINDS = [1, "text", Reading(), Writing(), f, staticmethod(f), classmethod(f), property(f)]


@pytest.mark.parametrize("before", KINDS, ids=lambda kind: type(kind).__name__)
@pytest.mark.parametrize("after", KINDS, ids=lambda kind: type(kind).__name__)
def test_an_entry_of_another_kind_is_noticed(before, after):
    base, _, top = classes()
    base.a = before
    check, value = program(top), top()
    assert agreed(check, (value,))
    base.a = after
    same = type(before) is type(after) or {type(before), type(after)} == {int, str}
    assert agreed(check, (value,)) is same
    assert same or check.explain((value,), f).endswith("has another kind of 'a'")
    base.a = before
    assert agreed(check, (value,))


def test_other_bases_are_noticed():
    _, middle, top = classes()
    check, value = program(top), top()
    assert agreed(check, (value,))
    top.__bases__ = (type("Between", (middle,), {}),)
    assert not agreed(check, (value,))
    assert "expected the bases" in check.explain((value,), f)


def test_a_class_that_changes_for_ever_stays_right():
    base, _, top = classes()
    check, value = program(top), top()
    for step in range(3000):  # past the number of versions that CPython 3.13 gives one class
        base.a = step
        assert check((value,), f)
    base.later = 1
    assert not agreed(check, (value,))
    del base.later
    assert agreed(check, (value,)) and agreed(check, (value,))


def test_another_class_of_the_same_entries_is_another():
    one, other = classes()[2], classes()[2]
    check = program(one)
    for _ in range(3):
        assert agreed(check, (one(),)) and not agreed(check, (other(),))


def test_guards_keep_no_class_alive():
    *_, top = classes()
    check, gone = program(top), weakref.ref(top)
    assert check((top(),), f)
    del _, top
    gc.collect()
    assert gone() is None
    for _ in range(20):
        assert not agreed(check, (classes()[2](),))


def test_registered_subclasses_are_noticed():
    class Shape(abc.ABC):
        pass

    one, other = type("One", (), {}), type("Other", (), {})
    check = compile_guards([Guard(TypeSource(X), "NOT_SUBCLASS", Shape)], ("x",))
    for _ in range(3):
        assert agreed(check, (one(),)) and agreed(check, (other(),))
    Shape.register(one)
    for _ in range(3):
        assert not agreed(check, (one(),)) and agreed(check, (other(),))
    assert check.explain((one(),), f).endswith("expected no subclass of type " + describe_name(Shape) + ", found one")


def test_another_class_at_the_same_address_is_asked_about():
    class Shape(abc.ABC):
        pass

    check = compile_guards([Guard(TypeSource(X), "NOT_SUBCLASS", Shape)], ("x",))
    for _ in range(6):
        plain = type("One", (), {})
        assert check((plain(),), f)
        del plain
        gc.collect()
        found = type("One", (Shape,), {})
        assert not check((found(),), f)
        del found
        gc.collect()


def describe_name(cls):
    return f"{cls.__module__}.{cls.__qualname__}"


def test_layouts_are_of_classes():
    with pytest.raises(GuardError, match=r"pass type\(value\)"):
        ClassLayout.of(3)
    assert str(ClassLayout.of(bool)) == "the entries of type bool and its bases"
    assert ClassLayout.of(bool) == ClassLayout.of(bool) != ClassLayout.of(int)
