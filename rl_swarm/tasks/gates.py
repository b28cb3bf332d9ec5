"""Decide which answers may reach a verifier. Answers come from peers; some verifiers of reasoning-gym execute or unfold them.

Eleven verifiers call `eval` on the answer, or sympy's `parse_expr`, which ends in `eval` (binary_matrix is one of the paper's nine
tasks): `<answer>__import__("os").system("…")</answer>` would run on every node that scores it. So the code of every verifier is
searched for such calls; if there is one, only text that denotes a value passes.

Others do exponential work on a short answer: `9**9**9`, `1e3200000` as a fraction, `R99999999` as moves of a cube, a formula over
58 names. Their gates refuse what no right answer needs. The helper's deadline and memory limit catch the rest.
"""

import ast
import math
import operator
import re
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

Gate = Callable[[str], bool]

_EVALUATORS = frozenset(("eval", "exec", "parse_expr", "sympify"))
_PLAIN_WORDS = re.compile(r"[A-Z0-9_\s,]*")  # lower case could name the verifier's own variables, such as oracle_answer
_FORMULA = re.compile(r"[A-Z∧∨¬→↔()\s]*")
_REDUCIBLE = re.compile(r"¬A|A[∧∨→↔]A|\(A\)")
_EXPRESSION = re.compile(r"[A-Za-z0-9\s.+\-*/^(),]*")
_LARGEST_POWER = 1000
_LARGEST_BITS = 100_000


def gate_for(name: str, verifier_class: type) -> Gate:
    """The gate before `verifier_class.score_answer` of the task `name`."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    called = _reachable(verifier_class.score_answer, verifier_class, set())  # type: ignore[attr-defined]
    if called & {"parse_expr", "sympify"}:
        return is_expression
    return is_literal if called else is_anything


def is_anything(answer: str) -> bool:
    return True


def is_literal(answer: str) -> bool:
    """Words in capitals without any operator, or a Python literal: evaluating it calls nothing and ends."""
    if _PLAIN_WORDS.fullmatch(answer):
        return True
    try:
        ast.literal_eval(answer)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False
    return True


def is_formula(answer: str) -> bool:
    """A well-formed formula whose names are single letters, as in every question. propositional_logic tries all 2^n values of n
    names, and takes `AA`, `(A` or `A B` for further names. It reads in quadratic time: 300 signs take 0.1 s, 2,000 take 6 s."""
    if len(answer) > 300 or not _FORMULA.fullmatch(answer):
        return False
    reduced = re.sub(r"[A-Z]", "A", re.sub(r"\s", "", answer))
    while (shorter := _REDUCIBLE.sub("A", reduced)) != reduced:
        reduced = shorter
    return reduced == "A"


def lacking(pattern: str) -> Gate:
    compiled = re.compile(pattern)
    return lambda answer: compiled.search(answer) is None


is_narrow = lacking(r"[eE][-+]?[\d_]{4,}")  # `Fraction` writes out all digits of 1e3200000; \d is any script's digit


def is_expression(answer: str) -> bool:
    """Arithmetic over numbers, variables such as x or C1 and school functions, with an exact value of bounded size.

    No attributes, strings or other names, because sympy evaluates the text; no power beyond `_LARGEST_POWER`, because sympy
    computes powers of numbers while it reads them.
    """
    if not _EXPRESSION.fullmatch(answer) or not is_narrow(answer):
        return False
    try:
        _measure(ast.parse(answer.strip(), mode="eval").body, math.inf)
    except (_Unfit, SyntaxError, ValueError, OverflowError, ZeroDivisionError, MemoryError, RecursionError):
        return False
    return True


class _Unfit(Exception):
    """An expression that is no arithmetic, or too large."""


_CONSTANTS = {"pi": math.pi, "E": math.e}
_UNFOLDING: dict[str, Callable[[float], float]] = {"exp": math.exp, "sinh": math.sinh, "cosh": math.cosh, "tanh": math.tanh}
_VALUED: dict[str, Callable[[float], float]] = {**_UNFOLDING, "sqrt": lambda value: math.sqrt(abs(value)), "abs": abs, "Abs": abs}
_OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: lambda left, right: abs(left) ** right,
    ast.BitXor: lambda left, right: abs(left) + abs(right),
}
_VARIABLE = re.compile(r"[A-Za-z][0-9]*")
_FUNCTION = re.compile(r"a?(sin|cos|tan)h?|cot|sec|csc|exp|log|ln|sqrt|[aA]bs")


def _measure(node: ast.expr, largest: float) -> tuple[float | None, float]:
    """The value of an expression, None if it depends on a variable, and about how many bits its exact form takes.

    `largest` bounds every number in it: the parts of an exponent must be small even if its value is unknown."""
    value: float | None
    bits: float
    match node:
        case ast.Constant(value=int() | float() | complex() as number) if not isinstance(number, bool):
            value, bits = abs(number), number.bit_length() if isinstance(number, int) else 64.0
        case ast.Name(id=name) if name in _CONSTANTS or _VARIABLE.fullmatch(name):
            value, bits = _CONSTANTS.get(name), 1.0
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
            value, bits = _measure(operand, largest)
            value = -value if value is not None and isinstance(node.op, ast.USub) else value
        case ast.BinOp():
            value, bits = _measure_pair(node, largest)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if args and _FUNCTION.fullmatch(name):
            inner = [_measure(each, _LARGEST_POWER if name in _UNFOLDING else largest) for each in args]
            bits = sum(each[1] for each in inner)
            value = _VALUED[name](inner[0][0]) if name in _VALUED and inner[0][0] is not None else None
        case _:
            raise _Unfit
    if bits > _LARGEST_BITS or (value is not None and not abs(value) <= min(largest, 1e308)):
        raise _Unfit
    return value, bits


def _measure_pair(node: ast.BinOp, largest: float) -> tuple[float | None, float]:
    if type(node.op) not in _OPERATORS:
        raise _Unfit
    power = isinstance(node.op, ast.Pow)
    left, left_bits = _measure(node.left, largest)
    right, right_bits = _measure(node.right, min(largest, _LARGEST_POWER) if power else largest)
    bits = right_bits + (left_bits * max(1.0, abs(right or 1.0)) if power else left_bits + 1)
    return None if left is None or right is None else _OPERATORS[type(node.op)](left, right), bits


_BY_NAME: dict[str, Gate] = {
    "coin_flip": is_narrow,
    "propositional_logic": is_formula,
    "rubiks_cube": lacking(r"\d{2,}"),  # moves are carried out one by one
    "rush_hour": lacking(r"\d{3,}"),
}


def _reachable(function: FunctionType, owner: type, seen: set[FunctionType]) -> set[str]:
    """The evaluators that a verifier can reach through the functions, methods and classes of reasoning-gym that it names."""
    seen.add(function)
    found: set[str] = set()
    for name in _names(function.__code__):
        ours = [each for each in _meanings(name, function, owner) if each.__module__.startswith("reasoning_gym")]
        if not ours and name in _EVALUATORS:
            found.add(name)
        for each in ours:
            if each not in seen:
                found |= _reachable(each, owner, seen)
    return found


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _meanings(name: str, function: FunctionType, owner: type) -> Iterator[FunctionType]:
    """The functions that a name in the code of `function` can stand for."""
    modules = [each for each in function.__globals__.values() if isinstance(each, ModuleType) and "reasoning_gym" in each.__name__]
    candidates: list[Any] = [
        function.__globals__.get(name),
        getattr(owner, name, None),
        *(vars(each).get(name) for each in modules),
    ]
    for candidate in candidates:
        members = vars(candidate).values() if isinstance(candidate, type) else [candidate]
        for member in members:
            plain = getattr(member, "__func__", member)  # a classmethod, a staticmethod or the function itself
            if isinstance(plain, FunctionType):
                yield plain
