"""Expressions of sizes in a program from elsewhere: numbers, symbols, arithmetic, and no more work than they look like.

torch gives them to sympy, which evaluates them as Python, and sympy evaluates every text that it meets on the way: a
text passes only as the name of a Symbol or the digits of a Float. Powers have small exponents and none inside another,
or a few characters ask for all memory.
"""

import ast
import re

MAX_EXPRESSION_CHARS = 4096
MAX_EXPONENT = 64

_FUNCTIONS = {
    "Symbol", "Integer", "Float", "Rational", "Add", "Mul", "Pow", "Max", "Min", "Mod", "PythonMod", "FloorDiv",
    "CleanDiv", "CeilDiv", "TruncToInt", "CeilToInt", "FloorToInt", "IntTrueDiv", "ToFloat", "Eq", "Ne", "Equality",
    "Unequality", "Lt", "Le", "Gt", "Ge", "LessThan", "GreaterThan", "StrictLessThan", "StrictGreaterThan",
    "ModularIndexing", "Where", "And", "Or", "Not", "min", "max", "abs", "int",
    "float", "bool",
}  # fmt: skip
_NUMBERS = ("Integer", "Float", "Rational", "int", "float")
_NAMED = ("Symbol", "Float")  # whose first argument may be text
_NODES = (
    ast.Expression, ast.Call, ast.keyword, ast.Name, ast.Load, ast.Constant, ast.BinOp, ast.UnaryOp, ast.Compare,
    ast.BoolOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.UAdd, ast.USub, ast.Not,
    ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.And, ast.Or,
)  # fmt: skip
_WORD = re.compile(r"[A-Za-z_]\w{0,63}|[-+]?[0-9.]{1,40}(e[-+]?\d{1,3})?")
_LARGE_EXPONENT = re.compile(r"[\d._][eE][-+]?[\d_]{4}")  # sympy works out 1e-9999999 digit by digit
_SYMBOL = re.compile(r"[suzf]+\d+")


def is_plain_expression(text: str) -> bool:
    """Numbers, symbols, arithmetic and sympy's own functions of them, that are no work to evaluate."""
    if len(text) > MAX_EXPRESSION_CHARS or _LARGE_EXPONENT.search(text):
        return False
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, MemoryError):
        return False
    allowed: set[ast.AST] = set()  # names that are called, texts that are a name or digits
    for node in ast.walk(tree):
        if not isinstance(node, _NODES):
            return False
        if isinstance(node, ast.Call):
            if not isinstance(node.func, ast.Name) or node.func.id not in _FUNCTIONS:
                return False
            allowed.add(node.func)
            if node.keywords and (node.func.id not in _NAMED or not all(map(_is_assumption, node.keywords))):
                return False
            if node.func.id in _NAMED and node.args and _is_word(node.args[0]):
                allowed.add(node.args[0])
        if (power := _power(node)) and (not _is_small(power[1]) or any(map(_power, ast.walk(power[0])))):
            return False
    return all(_is_plain_leaf(node) for node in ast.walk(tree) if node not in allowed)


def _is_plain_leaf(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float)
    return not isinstance(node, ast.Name) or _SYMBOL.fullmatch(node.id) is not None


def _is_word(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and _WORD.fullmatch(node.value) is not None


def _is_assumption(keyword: ast.keyword) -> bool:
    """As in Symbol('s0', positive=True), Float('2.0', precision=53)."""
    return (
        isinstance(keyword.value, ast.Constant)
        and isinstance(keyword.value.value, bool | int)
        and _is_small(keyword.value)
    )


def _power(node: ast.AST) -> tuple[ast.AST, ast.AST] | None:
    """Base and exponent, where it is a power."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return node.left, node.right
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Pow":
        return (node.args[0], node.args[1]) if len(node.args) >= 2 else None
    return None


def _is_small(node: ast.AST) -> bool:
    """A number, or a few of them as in Rational(1, 2), within `MAX_EXPONENT`."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        return _is_small(node.operand)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _NUMBERS:
        return not node.keywords and all(map(_is_small, node.args))
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return abs(node.value) <= MAX_EXPONENT
    return False
