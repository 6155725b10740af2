"""Arithmetic from text, exact and bounded: what a calculator accepts, and nothing that Python would run.

Numbers, `+ - * / // % **` (`^` is a power too), parentheses, and `abs round floor ceil sqrt min max gcd lcm`. Values
are fractions, so 0.1 + 0.2 is 0.3; a result that no finite decimal can write is rounded to 28 significant digits.
"""

import ast
import math
import operator
import re
import warnings
from collections.abc import Callable, Mapping
from decimal import Context, Decimal
from fractions import Fraction

MAX_CHARS = 1000
MAX_DEPTH = 300
MAX_BITS = 4096
"""Of a numerator or denominator; about 1,200 decimal digits."""
SIGNIFICANT_DIGITS = 28

_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_SIGNS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "^": "**"})


class BadExpression(ValueError):
    """The text is no arithmetic that is carried out here; the message says why."""


def evaluate(text: str) -> Fraction:
    """The value of an expression. Raises BadExpression."""
    if len(text) > MAX_CHARS:
        raise BadExpression(f"the expression is longer than {MAX_CHARS} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Of the parser, about text such as "1if 2".
            tree = ast.parse(_THOUSANDS.sub("", text).translate(_SIGNS).strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise BadExpression("this is not an arithmetic expression") from error
    try:
        return _value(tree.body, MAX_DEPTH)
    except ZeroDivisionError as error:
        raise BadExpression("division by zero") from error


def write(value: Fraction) -> str:
    """A value in decimal."""
    if value.denominator == 1:
        return str(value.numerator)
    context = Context(prec=SIGNIFICANT_DIGITS)
    return format(context.divide(Decimal(value.numerator), Decimal(value.denominator)).normalize(context), "f")


def _value(node: ast.expr, depth: int) -> Fraction:
    if depth == 0:
        raise BadExpression(f"the expression is nested deeper than {MAX_DEPTH}")
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return _number(number)
        case ast.UnaryOp(op=ast.UAdd() | ast.USub(), operand=operand):
            inner = _value(operand, depth - 1)
            return -inner if isinstance(node.op, ast.USub) else inner
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _bounded(_OPERATORS[type(op)](_value(left, depth - 1), _value(right, depth - 1)))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            return _bounded(_apply(name, [_value(each, depth - 1) for each in arguments]))
    raise BadExpression(f"{ast.unparse(node)[:80]} is not arithmetic")


def _number(value: int | float) -> Fraction:
    """A decimal is what was written, not the nearest binary number."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise BadExpression("a number is too large")
        return Fraction(repr(value))
    return _bounded(Fraction(value))


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise BadExpression("a number is too large")
    return value


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        if exponent == Fraction(1, 2):
            return _root(base)
        raise BadExpression("an exponent must be a whole number or 1/2")
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if base not in (0, 1, -1) and bits * abs(exponent.numerator) > 2 * MAX_BITS:
        raise BadExpression("a number is too large")
    return Fraction(base ** (exponent.numerator if base not in (1, -1) else exponent.numerator % 2))


def _root(value: Fraction) -> Fraction:
    if value < 0:
        raise BadExpression("there is no square root of a negative number")
    above, below = math.isqrt(value.numerator), math.isqrt(value.denominator)
    if above**2 == value.numerator and below**2 == value.denominator:
        return Fraction(above, below)
    context = Context(prec=SIGNIFICANT_DIGITS)
    return Fraction(context.sqrt(context.divide(Decimal(value.numerator), Decimal(value.denominator))))


def _round(value: Fraction, digits: Fraction = Fraction(0)) -> Fraction:
    if digits.denominator != 1 or abs(digits) > 100:
        raise BadExpression("round takes a whole number of digits, at most 100")
    return Fraction(round(value, int(digits)))


def _whole(function: Callable[..., int]) -> Callable[..., Fraction]:
    def apply(*values: Fraction) -> Fraction:
        if any(value.denominator != 1 for value in values):
            raise BadExpression(f"{function.__name__} takes whole numbers")
        return Fraction(function(*(value.numerator for value in values)))

    return apply


def _apply(name: str, values: list[Fraction]) -> Fraction:
    least, most, function = _FUNCTIONS[name]
    if not least <= len(values) <= most:
        raise BadExpression(f"{name} does not take {len(values)} arguments")
    return function(*values)


_OPERATORS: Mapping[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: lambda a, b: Fraction(a // b),
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
_MANY = 100
_FUNCTIONS: Mapping[str, tuple[int, int, Callable[..., Fraction]]] = {
    "abs": (1, 1, abs),
    "round": (1, 2, _round),
    "floor": (1, 1, lambda value: Fraction(math.floor(value))),
    "ceil": (1, 1, lambda value: Fraction(math.ceil(value))),
    "sqrt": (1, 1, _root),
    "min": (1, _MANY, lambda *values: min(values)),
    "max": (1, _MANY, lambda *values: max(values)),
    "gcd": (1, _MANY, _whole(math.gcd)),
    "lcm": (1, _MANY, _whole(math.lcm)),
}
