"""Side effects: each must happen exactly once, in order, on the caller's own objects."""

import torch

from integration_tests.harness.differential import Case


class _Holder:
    def __init__(self) -> None:
        self.count = 0
        self.items: list = []
        self.last: torch.Tensor | None = None


def list_append_and_pop() -> Case:
    log: list = [1]

    def f(x: torch.Tensor):
        log.append(x.shape[0])
        log.extend([len(log), "end"])
        log.pop(0)
        log[0] = x * 2
        log.insert(1, None)
        return x + len(log)

    return Case(f, [(torch.randn(3),), (torch.randn(3),), (torch.randn(4),)], watch=[log])


def dict_updates() -> Case:
    def f(x: torch.Tensor, table: dict):
        table["seen"] = table.get("seen", 0) + 1
        table["last"] = x.sum()
        table.setdefault("first", x * 1)
        del table["drop"]
        table["drop"] = 1
        table.update(a=1, b=[x])
        return x * table["seen"]

    table = {"drop": 1}
    return Case(f, [(torch.randn(2), table)] * 3, watch=[table])


def set_updates() -> Case:
    def f(x: torch.Tensor, seen: set, key: str):
        new = key not in seen
        seen.add(key)
        seen.discard("never")
        seen |= {"always"}
        return x * (2 if new else 1)

    seen: set = set()
    return Case(
        f, [(torch.randn(2), seen, "a"), (torch.randn(2), seen, "a"), (torch.randn(2), seen, "b")], watch=[seen]
    )


def attributes() -> Case:
    holder = _Holder()

    def f(x: torch.Tensor):
        holder.count += 1
        holder.items.append(holder.count)
        holder.last = x * holder.count
        holder.fresh = (x, holder.count)
        if hasattr(holder, "temporary"):
            del holder.temporary
        else:
            holder.temporary = 1
        return holder.last + 1

    return Case(f, [(torch.randn(2),)] * 3, watch=[holder])


def aliased_arguments() -> Case:
    def f(a: list, b: list, x: torch.Tensor):
        a.append(x * 2)
        b.append(len(a))
        a[0], b[-1] = b[-1], a[0]
        return a is b, x + len(b)

    same: list = [0]
    return Case(f, [(same, same, torch.randn(2)), ([0], [1], torch.randn(2)), (same, same, torch.randn(2))])


def containers_holding_each_other() -> Case:
    def f(x: torch.Tensor, tree: dict):
        node = {"parent": tree, "value": x + 1}
        tree["children"].append(node)
        tree["newest"] = node
        return tree["newest"]["value"], tree["children"][-1] is tree["newest"]

    def make_tree() -> dict:
        return {"children": [], "newest": None}

    def g(x: torch.Tensor, depth: int):
        tree = make_tree()
        for _ in range(depth):
            value, same = f(x, tree)
        return value, same, len(tree["children"]), tree["children"][0]["parent"] is tree

    return Case(g, [(torch.randn(2), 1), (torch.randn(2), 2), (torch.randn(2), 1)])


def tensor_in_place() -> Case:
    def f(x: torch.Tensor, y: torch.Tensor):
        x.add_(1)
        y[0] = x[0] * 2
        z = x.mul_(2)
        w = x.view(-1)
        w += 1
        return z is x, y.sum() + z.sum(), w

    return Case(f, [(torch.randn(3), torch.randn(3)) for _ in range(3)])


def outputs_that_are_inputs_and_views() -> Case:
    def f(x: torch.Tensor, y: torch.Tensor):
        return x, x.view(-1), y.t(), x[0], x + y, y

    return Case(f, [(torch.randn(3, 3), torch.randn(3, 3)) for _ in range(3)])


def iterators_advance() -> Case:
    def f(x: torch.Tensor, it):
        return x * next(it), next(it, None)

    it = iter([1, 2, 3, 4, 5])
    return Case(f, [(torch.randn(2), it)] * 3)


def random_numbers() -> Case:
    def f(x: torch.Tensor):
        noise = torch.rand_like(x)
        dropped = torch.nn.functional.dropout(x, 0.5, training=True)
        return x + noise, dropped, torch.randn(2)

    return Case(f, [(torch.randn(4),)] * 3)


def new_objects_returned() -> Case:
    def f(x: torch.Tensor, n: int):
        holder = _Holder()
        holder.count = n
        holder.items += [x * i for i in range(n)]
        holder.self_items = holder.items
        return holder, holder.items is holder.self_items

    return Case(f, [(torch.randn(2), 2), (torch.randn(2), 1), (torch.randn(2), 2)])
