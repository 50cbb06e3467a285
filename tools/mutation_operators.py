"""What `make mutants` changes in the code: mutmut's operators, without those that touch wording, and guards besides.

mutmut takes no statement and no condition away, which is how a guard gets lost. Here each call whose result nobody
uses, each `raise`, each side of `and`, `or`, `-` and `&`, and each `filter`, `join` and `where` is taken out once, and
each condition is true once and false once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import libcst as cst
import libcst.matchers as m
from mutmut.mutation import mutators

_Operator = Callable[[Any], Iterable[cst.CSTNode]]
_NARROWING = ("filter", "join", "where")  # of frames and of statements: without it more rows are left


def install() -> None:
    """Let mutmut use these operators."""
    replaced: Mapping[object, _Operator] = {
        mutators.operator_string: operator_key,
        mutators.operator_swap_op: operator_swap,
    }
    own: list[tuple[type, _Operator]] = [
        (cst.Expr, operator_call_removal),
        (cst.Raise, operator_raise_removal),
        (cst.If, operator_condition),
        (cst.CompIf, operator_condition),
        (cst.BooleanOperation, operator_side),
        (cst.BinaryOperation, operator_side),
        (cst.Call, operator_narrowing_removal),
    ]
    kept = [(node, replaced.get(operator, operator)) for node, operator in mutators.mutation_operators]
    mutators.mutation_operators[:] = [*kept, *own]  # type: ignore[index]


def operator_key(node: cst.BaseString) -> Iterable[cst.BaseString]:
    """Change a text that code may compare: one word, in one way. What people read has spaces."""
    if isinstance(node, cst.SimpleString) and " " not in node.value:
        found = next(iter(mutators.operator_string(node)), None)
        if found is not None:
            yield found


def operator_swap(node: cst.CSTNode) -> Iterable[cst.CSTNode]:
    """Swap operators as mutmut does; of `and` and `or` `operator_side` leaves either side, which is more to notice."""
    if not isinstance(node, cst.BooleanOperation):
        yield from mutators.operator_swap_op(node)


def operator_call_removal(node: cst.Expr) -> Iterable[cst.BaseSmallStatement]:
    """Take out a call whose result nobody uses."""
    if isinstance(node.value, cst.Call):
        yield cst.Pass()


def operator_raise_removal(_: cst.Raise) -> Iterable[cst.BaseSmallStatement]:
    """Go on where an error would be raised."""
    yield cst.Pass()


def operator_condition(node: cst.If | cst.CompIf) -> Iterable[cst.If | cst.CompIf]:
    """Let a condition hold always, and never; what it computes is computed all the same."""
    test = node.test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    for operator, constant in ((cst.And(), "False"), (cst.Or(), "True")):
        yield node.with_changes(test=cst.BooleanOperation(test, operator, cst.Name(constant)))


def operator_side(node: cst.BooleanOperation | cst.BinaryOperation) -> Iterable[cst.BaseExpression]:
    """Leave one side of a condition, and the whole of what a set would be taken from."""
    if isinstance(node, cst.BooleanOperation):
        yield from (_alone(node.left), _alone(node.right))
    elif isinstance(node.operator, cst.Subtract | cst.BitAnd):
        yield _alone(node.left)


def operator_narrowing_removal(node: cst.Call) -> Iterable[cst.BaseExpression]:
    """Leave the rows that a filter, a join or a condition would take away."""
    if m.matches(node.func, m.Attribute(attr=m.OneOf(*map(m.Name, _NARROWING)), value=~m.SimpleString())):
        yield cst.ensure_type(node.func, cst.Attribute).value


def _alone(side: cst.BaseExpression) -> cst.BaseExpression:
    """Keep the side in parentheses: it may stand in another operation or go on over lines."""
    return side.with_changes(lpar=[cst.LeftParen(), *side.lpar], rpar=[*side.rpar, cst.RightParen()])
