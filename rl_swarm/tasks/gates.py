"""What text a verifier may be given. Answers come from peers, and several of reasoning-gym's verifiers execute them.

Nine verifiers call `eval` on the answer or sympy's `parse_expr`, which ends in `eval` (binary_matrix is one of the paper's nine
tasks): `<answer>__import__("os").system("…")</answer>` would run on every node that scores it. So before a verifier sees
an answer, its code is searched for such calls, and where one is found, only text that denotes a value gets through.
"""

import ast
import re
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

Gate = Callable[[str], bool]

_EVALUATORS = frozenset(("eval", "exec", "parse_expr", "sympify"))
_WORDS_ONLY = re.compile(r"[\w\s,]*")
_FORMULA = re.compile(r"[A-Z∧∨¬→↔()\s]*")
_EXPRESSION = re.compile(r"[A-Za-z0-9\s.+\-*/^(),]*")
_ATTRIBUTE = re.compile(r"[A-Za-z)]\s*\.|\.\s*[A-Za-z(]")
_FUNCTION = re.compile(r"a?(sin|cos|tan)h?|cot|sec|csc|exp|log|ln|sqrt|[aA]bs|pi")


def gate_for(name: str, verifier_class: type) -> Gate:
    """The gate before `verifier_class.score_answer` of the task `name`."""
    if name == "propositional_logic":
        return is_formula
    called = _reachable(verifier_class.score_answer, verifier_class, set())  # type: ignore[attr-defined]
    if called & {"parse_expr", "sympify"}:
        return is_expression
    return is_literal if called else is_anything


def is_anything(answer: str) -> bool:
    return True


def is_literal(answer: str) -> bool:
    """Words without any operator, or a Python literal: evaluating it calls nothing, and ends."""
    if _WORDS_ONLY.fullmatch(answer):
        return True
    try:
        ast.literal_eval(answer)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False
    return True


def is_expression(answer: str) -> bool:
    """Arithmetic over numbers, one-letter variables and school functions: no attribute, text or name that leads further."""
    words = re.findall(r"[A-Za-z]+", answer)
    return (
        _EXPRESSION.fullmatch(answer) is not None
        and _ATTRIBUTE.search(answer) is None
        and all(len(word) == 1 or _FUNCTION.fullmatch(word) for word in words)
    )


def is_formula(answer: str) -> bool:
    """propositional_logic tries all 2^n values of the n names in an answer, of which it checks only the capital letters, and reads
    it in quadratic time: 2,000 signs of negation took 6 s, 300 take 0.1 s."""
    return len(answer) <= 300 and _FORMULA.fullmatch(answer) is not None


def _reachable(function: FunctionType, owner: type, seen: set[FunctionType]) -> set[str]:
    """Which evaluators a verifier can reach through the functions, methods and classes of reasoning-gym that it names."""
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
