"""Inline elementwise definitions into their users where computing again costs no more than storing."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace

from framesmith_backends.ir import expr
from framesmith_backends.ir.expr import Cast, Const, Expr, Index, Load, cost, loads
from framesmith_backends.ir.program import Def, Program
from framesmith_backends.ir.symbolic import index
from framesmith_backends.ir.symbolic.index import Ix, Var
from framesmith_backends.ir.symbolic.size import hint, numel
from framesmith_backends.target import InlineBudget

# An expression this costly is not made part of a larger one.
LARGEST_COST = 400


def inline(program: Program, cheap: InlineBudget) -> Program:
    """Replace loads of definitions by their bodies where `why_not_inline` has no reason, in order of definition."""
    users = _users(program)
    bodies: dict[str, Expr] = {}
    defs: dict[str, Def] = {}
    in_memory = program.kept | program.alone
    for d in program.defs.values():
        body = expr.transform(d.body, lambda e: _expanded(e, program, bodies)) if bodies else d.body
        d = replace(d, body=body) if body is not d.body else d
        if d.name not in in_memory and why_not_inline(d, users[d.name], cheap) is None:
            bodies[d.name] = d.body
        else:
            defs[d.name] = d
    return replace(program, defs=defs) if bodies else program


def _users(program: Program) -> dict[str, list[tuple[Def, int]]]:
    """For each definition its users, each with the number of its different reads."""
    found: dict[str, list[tuple[Def, int]]] = defaultdict(list)
    for d in program.defs.values():
        for source, count in Counter(load.source for load in loads(d.body)).items():
            found[source].append((d, count))
    return found


def why_not_inline(d: Def, users: list[tuple[Def, int]], cheap: InlineBudget) -> str | None:
    """Return why this definition is not inlined, or None."""
    if d.reduction is not None:
        return "a reduction"
    if d.scan is not None:
        return "a scan"
    if d.failure is not None:
        return "a check"
    scattered = any(index.indirect_atoms(ix) for load in loads(d.body) for ix in load.index)
    are_several = len(users) > 1 or users[0][1] > 1
    if scattered and are_several:
        return "several users of what lies scattered"
    moved = d.body.value if isinstance(d.body, Cast) else d.body
    if not scattered and (isinstance(d.body, (Const, Index)) or isinstance(moved, Load)):
        return None
    price, reads = cost(d.body), sum(_is_read_throughout(d, load) for load in loads(d.body))
    throughout = _cost_throughout(d)
    is_cheap = max(throughout, price - throughout) <= cheap.cost
    if is_cheap and reads <= cheap.loads and sum(n for _, n in users) <= cheap.users:
        return None
    if price > LARGEST_COST:
        return "large enough"
    if are_several:
        return "several users"
    user = users[0][0]
    if hint(numel(v.size for v in user.domain)) <= hint(numel(v.size for v in d.domain)) or _is_read_once(d, user):
        return None
    return "its user needs each element more than once"


def _is_read_once(d: Def, user: Def) -> bool:
    """Whether different points of the user read different elements: each of its loops moves along one of these's axes.

    What is joined or padded reads only at some of its points, and so has more of them than there are elements.
    """
    along = {var for var in user.domain if var.size != 1}
    return all(along <= set(map(_moved_along, load.index)) for load in loads(user.body) if load.source == d.name)


def _moved_along(ix: Ix) -> Var | None:
    """Return the variable of an index that is a variable and a shift, if it is."""
    moves = [atom for atom, _ in ix.terms]
    return moves[0] if len(moves) == 1 and isinstance(moves[0], Var) else None


def _is_read_throughout(d: Def, load: Load) -> bool:
    """Whether each element of the definition reads another one; a row's mean, say, is read once for the row."""
    read = {var for ix in load.index for var in index.variables(ix)}
    return load.guard is not None or read >= {var for var in d.domain if var.size != 1}


def _cost_throughout(d: Def) -> int:
    """Return the cost per element, without operations computed once for a row or a column."""
    everywhere = {var for var in d.domain if var.size != 1}
    moves: dict[Expr, frozenset[Var]] = {}
    for e in expr.walk(d.body):
        moves[e] = expr.own_variables(e).union(*(moves[part] for part in expr.children(e)))
    return sum(expr.step_cost(e) for e in moves if moves[e] >= everywhere)


def _expanded(e: Expr, program: Program, bodies: dict[str, Expr]) -> Expr | None:
    if not isinstance(e, Load) or e.source not in bodies:
        return None
    axes = program.defs[e.source].axes
    values: dict[Var, Ix] = {v: ix for v, ix in zip(axes, e.index, strict=True) if v is not None}
    body = expr.substitute(bodies[e.source], values)
    return body if e.guard is None else expr.guarded(body, e.guard)
