"""Jinja's sandbox with bounds: a template may be hostile, and what it makes, holds and computes has limits.

    with within(Budget(given)): ...             # given: the size of what the template is rendered from

Nothing grows without being seen: expressions that make something (Bounding), operators, calls, filters, tests and
output all come by the budget. What can make much of little says its size before it is made; all other operations make
at most a few times what they are given. (1) A value has at most `longest` characters and items, shared ones counted as
often as they are in it, so that no comparison or text of it takes long. (2) All values that are in use together have at
most `memory` bytes: large ones without references are found by their reference counts, small ones count for good.
(3) The rendering takes at most `seconds` of this thread's time. All three grow with the messages, since honest
templates go through them more than once.
"""
import contextlib
import contextvars
import functools
import itertools
import json
import re
import sys
import time
from collections.abc import Mapping

from jinja2 import (
    TemplateError,
    TemplateSyntaxError,
    filters,
    meta,
    nodes,
    pass_context,
    pass_environment,
    pass_eval_context,
)
from jinja2.ext import Extension, loopcontrols
from jinja2.runtime import markup_join, str_join
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEscapeFormatter, SandboxedFormatter
from jinja2.visitor import NodeTransformer
from markupsafe import Markup

SECONDS, LONGEST, MEMORY = 5, 1 << 20, 1 << 25  # and for each character or item that was given:
SLOWER, LONGER, MORE = 1e-4, 4, 100
LARGE = 1 << 12                                 # bytes of a value whose end is noticed
MOST_GIVEN = 1 << 24                            # what is counted of the messages
MAX_SOURCE = 1 << 18                            # characters of a template
MAX_BITS = 1 << 14                              # of an integer
MAX_POWER = 1024                                # of base and exponent
MAX_PLACES = 100                                # of round()

# What a template may call of values; of other objects it may look at attributes.
METHODS = {
    str: set("""capitalize casefold center count endswith find format format_map index isalnum isalpha isascii isdecimal
             isdigit isidentifier islower isnumeric isprintable isspace istitle isupper join ljust lower lstrip
             partition removeprefix removesuffix replace rfind rindex rjust rpartition rsplit rstrip split splitlines
             startswith strip swapcase title upper zfill""".split()),
    Mapping: {"copy", "get", "items", "keys", "values"},
    list: {"copy", "count", "index"},
    tuple: {"count", "index"},
    float: {"is_integer"},
    int: {"is_integer"},
}
FILTERS = """abs attr capitalize count d default dictsort e escape first float forceescape groupby int items last length
          list lower map max min reject rejectattr reverse safe select selectattr sort string title trim truncate unique
          upper wordcount""".split()
# A conversion of the operator %, widths and precisions of three digits at most.
CONVERSION = re.compile(r"%%|%(?:\([^()]*\))?[-#0 +]*[0-9]{0,3}(?:\.[0-9]{0,3})?[hlL]?[diouxXeEfFgGcrsa]")

BUDGET = contextvars.ContextVar("budget")


class Refused(Exception):
    """raise_exception(text) in a template."""


def references(values):
    return [sys.getrefcount(one) for one in values]


ALONE = references([object()])[0]               # of a value that only the list refers to


class Budget:
    def __init__(self, given):
        size = min(measure(given, MOST_GIVEN), MOST_GIVEN)
        self.longest, self.memory = LONGEST + LONGER * size, MEMORY + MORE * size
        self.left = self.memory
        self.large = []                         # values, and in the same order
        self.costs = []
        self.seconds = SECONDS + SLOWER * size
        self.end = time.thread_time() + self.seconds

    def step(self):
        if time.thread_time() > self.end:
            raise OverflowError(f"it computes for more than {self.seconds:.0f} seconds")

    def demand(self, size):
        """A value of this size is going to be made."""
        if size > self.longest:
            raise OverflowError(f"it makes something longer than {self.longest} characters or items")

    def spend(self, count):
        self.left -= count
        if self.left < 0:
            self.sweep()

    def sweep(self):
        """Gives back what large values took that are gone; what they were made of may be alone only after them."""
        found = None
        while found != self.left:
            found = self.left
            used = [count > ALONE for count in references(self.large)]
            self.left += sum(cost for cost, kept in zip(self.costs, used, strict=True) if not kept)
            self.large = list(itertools.compress(self.large, used))
            self.costs = list(itertools.compress(self.costs, used))
        if self.left < self.memory // 8:
            raise OverflowError(f"it makes more than {self.memory} bytes")

    def take(self, value, item_bytes=8):
        """The value, which was made now; item_bytes of a container's items that may be new."""
        self.step()
        if isinstance(value, (str, bytes)):
            size, cost = len(value), 48 + len(value)
        elif isinstance(value, (list, tuple, Mapping)):
            size, cost = measure(value, self.longest), 64 + item_bytes * len(value)
        elif isinstance(value, int) and value.bit_length() > MAX_BITS:
            raise OverflowError(f"it makes an integer of more than {MAX_BITS} bits")
        else:
            return value
        self.demand(size)
        self.spend(cost)
        if cost >= LARGE:
            self.large.append(value)
            self.costs.append(cost)
        return value


def measure(value, most):
    """Characters and items of a value, counted to little more than `most`."""
    found, waiting = 0, [value]
    while waiting and found <= most:
        one = waiting.pop()
        found += 1
        if isinstance(one, (str, bytes)):
            found += len(one)
        elif isinstance(one, Mapping):
            waiting += one.keys()
            waiting += one.values()
        elif isinstance(one, (list, tuple, set, frozenset)):
            waiting += one
    return found


@contextlib.contextmanager
def within(budget):
    token = BUDGET.set(budget)
    try:
        yield
    finally:
        BUDGET.reset(token)


# ---- the environment ----

class Bounding(NodeTransformer):
    """Passes by the budget what the environment does not see by itself. Names with a space are in no template."""

    def passed(self, node, name, value=None):
        return nodes.Filter(node if value is None else value, name, [], [], None, None, lineno=node.lineno)

    def held(self, node):
        return self.passed(self.generic_visit(node), "a value")

    visit_Compare = visit_List = visit_Dict = held

    def visit_Tuple(self, node):
        return self.held(node) if node.ctx == "load" else self.generic_visit(node)

    def visit_Getitem(self, node):
        return self.held(node) if isinstance(node.arg, nodes.Slice) else self.generic_visit(node)

    def visit_Concat(self, node):
        self.generic_visit(node)
        return self.passed(node, "a text", nodes.List(node.nodes, lineno=node.lineno))

    def visit_TemplateData(self, node):         # text of the template, as the output of an expression
        return nodes.MarkSafeIfAutoescape(nodes.Const(node.data, lineno=node.lineno), lineno=node.lineno)

    def visit_For(self, node):
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(self.passed(node, "a value", nodes.Const(None, lineno=node.lineno)),
                                           lineno=node.lineno))
        return node


class Formatter(SandboxedFormatter):
    """'{}'.format() with every width and precision, and every field, against the budget."""

    def format_field(self, value, format_spec):
        for number in re.findall(r"\d+", format_spec):
            BUDGET.get().demand(int(number))
        return BUDGET.get().take(super().format_field(value, format_spec))


class EscapeFormatter(SandboxedEscapeFormatter, Formatter):
    pass


class Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "%", "**"))

    def _generate(self, source, *args, **kwargs):
        bounded = Bounding().visit(source)
        bounded.set_environment(self)
        return super()._generate(bounded, *args, **kwargs)

    def call_binop(self, context, operator, left, right):
        budget = BUDGET.get()
        if operator == "**":
            if not all(isinstance(one, (int, float)) and abs(one) <= MAX_POWER for one in (left, right)):
                raise OverflowError("the result of ** is too long")
        elif operator == "*":
            length, times = (left, right) if hasattr(left, "__len__") else (right, left)
            if hasattr(length, "__len__") and isinstance(times, int):
                budget.demand(len(length) * times)
        elif operator == "%" and isinstance(left, (str, bytes)):
            if isinstance(left, bytes) or "%" in CONVERSION.sub("", left):
                raise ValueError(f"conversions of {left!r:.80} are not known, or wider than 999")
            fields = left.count("%")
            times = fields if isinstance(right, Mapping) else 1
            budget.demand(len(left) + 1000 * fields + times * measure(right, budget.longest))
        return budget.take(super().call_binop(context, operator, left, right))

    def call(self, context, function, /, *args, **kwargs):
        budget = BUDGET.get()
        budget.step()
        text = getattr(function, "__self__", None)
        if isinstance(text, str) and args:
            name = function.__name__
            if name in ("center", "ljust", "rjust", "zfill") and isinstance(args[0], int):
                budget.demand(args[0])
            elif name == "replace" and len(args) > 1 and isinstance(args[0], str) and isinstance(args[1], str):
                budget.demand(len(text) + text.count(args[0]) * len(args[1]))
            elif name == "join":
                args = (list(args[0]), *args[1:])
                budget.demand(measure(args[0], budget.longest) + len(text) * len(args[0]))
        return budget.take(super().call(context, function, *args, **kwargs), 64)

    def is_safe_attribute(self, obj, attr, value):
        if not super().is_safe_attribute(obj, attr, value):
            return False
        if type(obj).__module__.startswith("jinja2.") or not callable(value):
            return True
        return any(attr in names for kind, names in METHODS.items() if isinstance(obj, kind))

    def getitem(self, obj, argument):
        BUDGET.get().step()
        return super().getitem(obj, argument)

    def wrap_str_format(self, value):
        text, name = getattr(value, "__self__", None), getattr(value, "__name__", None)
        if not isinstance(text, str) or name not in ("format", "format_map"):
            return None
        formatter = EscapeFormatter(self, escape=text.escape) if isinstance(text, Markup) else Formatter(self)

        def formatted(*args, **kwargs):
            if name == "format_map":
                args, (kwargs,) = (), args
            return type(text)(formatter.vformat(text, args, kwargs))

        return formatted


def bounded(function):
    @functools.wraps(function)
    def passed(*args, **kwargs):
        BUDGET.get().step()
        return BUDGET.get().take(function(*args, **kwargs), 64)
    return passed


@pass_context
def output(context, value):
    """What is written, in macros and blocks too."""
    text = value if isinstance(value, str) else str(value)
    BUDGET.get().step()
    BUDGET.get().spend(48 + len(text))
    return text


class Generation(Extension):
    """{% generation %} marks the assistant's text for training; rendering passes it through."""
    tags = {"generation"}

    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@functools.cache
def environment():
    """Jinja as Hugging Face's templates expect it: block trimming, loop controls, five names of their own."""
    made = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols], optimized=False,
                   finalize=output)
    own = (do_center, do_indent, do_replace, do_join, do_format, do_batch, do_slice, do_round, do_sum, do_tojson)
    all_filters = {name: made.filters[name] for name in FILTERS} | {one.__name__.removeprefix("do_"): one
                                                                    for one in own} \
        | {"a text": concatenated, "a value": lambda value: value}
    made.filters = {name: bounded(one) for name, one in all_filters.items()}
    made.tests = {name: bounded(one) for name, one in made.tests.items()}
    made.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now}
    del made.globals["lipsum"]
    return made


def raise_exception(text):
    raise Refused(text)


def strftime_now(form):
    import datetime
    if re.search(r"\d{3}", form):               # the C library knows widths
        raise OverflowError(f"strftime_now: {form!r:.80} has a width")
    return datetime.datetime.now().strftime(form)


# ---- filters that make much of little ----

@pass_context
def concatenated(context, values):
    """The operator ~."""
    BUDGET.get().demand(measure(values, BUDGET.get().longest))
    return (markup_join if context.eval_ctx.autoescape else str_join)(values)


def do_tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=width_of(indent), separators=separators,
                               sort_keys=sort_keys)
    return "".join(map(BUDGET.get().take, encoder.iterencode(value)))


def width_of(indent):
    BUDGET.get().demand(len(indent) if isinstance(indent, str) else indent or 0)
    return indent


def do_center(value, width=80):
    return filters.do_center(value, width_of(width))


def do_indent(s, width=4, first=False, blank=False):
    length = len(width_of(width)) if isinstance(width, str) else width_of(width)
    BUDGET.get().demand(len(s) + length * (len(s.splitlines()) + 1))
    return filters.do_indent(s, width, first, blank)


@pass_eval_context
def do_replace(eval_ctx, s, old, new, count=None):
    BUDGET.get().demand(len(str(s)) + str(s).count(str(old)) * len(str(new)))
    return filters.do_replace(eval_ctx, s, old, new, count)


@pass_eval_context
def do_join(eval_ctx, value, d="", attribute=None):
    values = list(value)
    BUDGET.get().demand(measure(values, BUDGET.get().longest) + len(str(d)) * len(values))
    return filters.sync_do_join(eval_ctx, values, d, attribute)


def do_format(value, *args, **kwargs):
    return environment().call_binop(None, "%", filters.soft_str(value), kwargs or args)


def do_batch(value, linecount, fill_with=None):
    BUDGET.get().demand(linecount)
    return filters.do_batch(value, linecount, fill_with)


def do_slice(value, slices, fill_with=None):
    BUDGET.get().demand(slices)
    return filters.sync_do_slice(value, slices, fill_with)


def do_round(value, precision=0, method="common"):
    if abs(precision) > MAX_PLACES:
        raise OverflowError(f"round: {precision} digits after the point")
    return filters.do_round(value, precision, method)


@pass_environment
def do_sum(environment, iterable, attribute=None, start=0):
    values = iterable if attribute is None else map(filters.make_attrgetter(environment, attribute), iterable)
    return functools.reduce(lambda one, other: environment.call_binop(None, "+", one, other), values, start)
