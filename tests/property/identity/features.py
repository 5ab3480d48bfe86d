"""Ways in which a function's result can depend on code and data: what programs are made of.

Each feature has files of a package `shop`, lines of the function that use them, and an edit that
changes the function's result. `{f}` in a text is where the function itself lives.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """One way to depend on something."""

    name: str
    files: dict[str, str]
    """Texts of modules; "f" is the top of the module that the function is in."""
    use: str
    """Lines of the function, which appends to `out` what depends on `x`."""
    old: str
    new: str
    """The edit: a text that occurs once, and what stands there afterwards."""


def _feature(name: str, use: str, edit: tuple[str, str], **files: str) -> Feature:
    texts = {key: textwrap.dedent(text).lstrip("\n") for key, text in files.items()}
    return Feature(
        name=name, files=texts, use=textwrap.dedent(use).strip("\n"), old=edit[0], new=edit[1]
    )


FEATURES = [
    _feature(
        "module_of_the_same_name",
        "out.append(shop.rate.rate(x))",
        ("x + 11", "x + 12"),
        f="import shop.rate",
        rate="def rate(x):\n    return x + 11",
    ),
    _feature(
        "deep_module",
        "out.append(deep_one.through(x))",
        ("x * 13", "x * 14"),
        f="from shop import deep_one",
        deep_one="from . import deep_two\n\ndef through(x):\n    return deep_two.end(x)",
        deep_two="def end(x):\n    return x * 13",
    ),
    _feature(
        "class_attribute_set",
        "out.append(x in Allowed.numbers)",
        ("{1, 2, 900}", "{1, 7, 900}"),
        f="from shop.allowed import Allowed",
        allowed="class Allowed:\n    numbers = {1, 2, 900}",
    ),
    _feature(
        "class_attribute_range",
        "out.append(x in Spread.numbers)",
        ("range(0, 8)", "range(0, 5)"),
        f="class Spread:\n    numbers = range(0, 8)",
    ),
    _feature(
        "class_attribute_bytearray",
        "out.append(Raw.octets[x % 3])",
        ("b'abc'", "b'abd'"),
        f="class Raw:\n    octets = bytearray(b'abc')",
    ),
    _feature(
        "named_tuple_method",
        "out.append(Point(x, 2).size())",
        ("self.a + self.b", "self.a - self.b"),
        f="""
        from typing import NamedTuple

        class Point(NamedTuple):
            a: int
            b: int

            def size(self):
                return self.a + self.b
        """,
    ),
    _feature(
        "int_enum_method",
        "out.append(Level(x % 2).weight())",
        ("* 10", "* 11"),
        levels="""
        import enum

        class Level(enum.IntEnum):
            LOW = 0
            HIGH = 1

            def weight(self):
                return int(self) * 10 + 1
        """,
        f="from shop.levels import Level",
    ),
    _feature(
        "enum_value",
        "out.append(Colour.RED.value + x)",
        ("RED = 3", "RED = 4"),
        f="import enum\n\nclass Colour(enum.Enum):\n    RED = 3\n    BLUE = 5",
    ),
    _feature(
        "default_dict_factory",
        "out.append(dict.get(DEFAULTS, x) or DEFAULTS.default_factory())",
        ("return 21", "return 22"),
        f="""
        from collections import defaultdict

        def fallback():
            return 21

        DEFAULTS = defaultdict(fallback)
        """,
    ),
    _feature(
        "missing_of_a_dict",
        "out.append(TABLE[x])",
        ("key * 3", "key * 4"),
        tables="""
        class Table(dict):
            def __missing__(self, key):
                return key * 3

        TABLE = Table({1: 50})
        """,
        f="from shop.tables import TABLE",
    ),
    _feature(
        "str_subclass",
        "out.append(Shout('a').loud() * (x % 3))",
        ("'!'", "'?'"),
        f="class Shout(str):\n    def loud(self):\n        return self.upper() + '!'",
    ),
    _feature(
        "moved_from_try_to_else",
        "out.append(guarded(x))",
        (
            "        early = 10 // x\n        late = [4, 5][x % 9]\n    except ZeroDivisionError:\n"
            "        return -1\n    except IndexError:\n        return -2",
            "        early = 10 // x\n    except ZeroDivisionError:\n        return -1\n"
            "    except IndexError:\n        return -2\n    else:\n"
            "        late = [4, 5][x % 9]",
        ),
        f="""
        def guarded(x):
            try:
                early = 10 // x
                late = [4, 5][x % 9]
            except ZeroDivisionError:
                return -1
            except IndexError:
                return -2
            return early + late
        """,
    ),
    _feature(
        "function_attribute",
        "out.append(scaled.factor * x)",
        ("scaled.factor = 6", "scaled.factor = 9"),
        f="def scaled(x):\n    return x\n\nscaled.factor = 6",
    ),
    _feature(
        "property_setter",
        """
        box = Box()
        box.size = x
        out.append(box.kept)
        """,
        ("value + 1", "value + 2"),
        boxes="""
        class Box:
            @property
            def size(self):
                return self.kept

            @size.setter
            def size(self, value):
                self.kept = value + 1
        """,
        f="from shop.boxes import Box",
    ),
    _feature(
        "slots_of_a_base",
        "out.append(SLOTTED.amount + x)",
        ("Child(31)", "Child(32)"),
        f="""
        class Parent:
            __slots__ = ("amount",)

            def __init__(self, amount):
                self.amount = amount

        class Child(Parent):
            __slots__ = ()

        SLOTTED = Child(31)
        """,
    ),
    _feature(
        "metaclass",
        "out.append(Counted.total(x))",
        ("return x + 41", "return x + 42"),
        metas="""
        class Meta(type):
            def total(cls, x):
                return x + 41

        class Counted(metaclass=Meta):
            pass
        """,
        f="from shop.metas import Counted",
    ),
    _feature(
        "import_module_by_name",
        "out.append(import_module('shop.plugged').plug(x))",
        ("x + 51", "x + 52"),
        f="from importlib import import_module\nimport shop.plugged",
        plugged="def plug(x):\n    return x + 51",
    ),
    _feature(
        "sys_modules",
        "out.append(sys.modules['shop.listed'].listed(x))",
        ("x + 61", "x + 62"),
        f="import sys\nimport shop.listed",
        listed="def listed(x):\n    return x + 61",
    ),
    _feature(
        "named_like_the_standard_library",
        "out.append(statistics.mean(x))",
        ("x - 71", "x - 72"),
        f="from shop import statistics",
        statistics="def mean(x):\n    return x - 71",
    ),
    _feature(
        "getattr_with_a_computed_name",
        "out.append(getattr(looked, 'up' + str(x % 2))(x))",
        ("x + 81", "x + 82"),
        f="from shop import looked",
        looked="def up0(x):\n    return x + 81\n\ndef up1(x):\n    return x",
    ),
    _feature(
        "attrgetter",
        "out.append(operator.attrgetter('taken.got')(shop)(x))",
        ("x + 91", "x + 92"),
        f="import operator\nimport shop.taken",
        taken="def got(x):\n    return x + 91",
    ),
    _feature(
        "format_of_a_module",
        "out.append('{0.LIMIT}'.format(formed) * (x % 2))",
        ("LIMIT = 'p'", "LIMIT = 'q'"),
        f="from shop import formed",
        formed="LIMIT = 'p'",
    ),
    _feature(
        "globals_by_name",
        "out.append(globals()['HID' + 'DEN'] + x)",
        ("HIDDEN = 101", "HIDDEN = 102"),
        f="HIDDEN = 101",
    ),
    _feature(
        "module_getattr",
        "out.append(lazy.anything(x))",
        ("x + 111", "x + 112"),
        f="from shop import lazy",
        lazy="""
        def __getattr__(name):
            if name.startswith("__"):
                raise AttributeError(name)
            return lambda x: x + 111
        """,
    ),
    _feature(
        "registry_by_decorator",
        "out.append(HANDLERS['double'](x))",
        ("x * 2", "x * 5"),
        registry="""
        HANDLERS = {}

        def handler(name):
            def keep(function):
                HANDLERS[name] = function
                return function
            return keep
        """,
        handlers="""
        from shop.registry import handler

        @handler("double")
        def double(x):
            return x * 2
        """,
        f="import shop.handlers\nfrom shop.registry import HANDLERS",
    ),
    _feature(
        "patched_by_another_module",
        "out.append(victim.answer(x))",
        ("x + 121", "x + 122"),
        victim="def answer(x):\n    return x",
        patcher="import shop.victim\n\nshop.victim.answer = lambda x: x + 121",
        f="import shop.patcher\nfrom shop import victim",
    ),
    _feature(
        "dataclass_default",
        "out.append(Order(x).total())",
        ("price: int = 5", "price: int = 6"),
        f="""
        from dataclasses import dataclass

        @dataclass
        class Order:
            amount: int
            price: int = 5

            def total(self):
                return self.amount * self.price
        """,
    ),
    _feature(
        "dataclass_factory",
        "out.append(Basket().items[x % 2])",
        ("[131, 7]", "[132, 7]"),
        f="""
        import dataclasses

        @dataclasses.dataclass(frozen=True)
        class Basket:
            items: list = dataclasses.field(default_factory=lambda: [131, 7])
        """,
    ),
    _feature(
        "closure",
        "out.append(adder(x))",
        ("make_adder(141)", "make_adder(142)"),
        makers="def make_adder(n):\n    def add(x):\n        return x + n\n    return add",
        f="from shop.makers import make_adder\n\nadder = make_adder(141)",
    ),
    _feature(
        "decorator",
        "out.append(decorated(x))",
        ("+ 151", "+ 152"),
        wrappers="""
        import functools

        def plus(function):
            @functools.wraps(function)
            def call(x):
                return function(x) + 151
            return call
        """,
        f="from shop.wrappers import plus\n\n@plus\ndef decorated(x):\n    return x",
    ),
    _feature(
        "cached",
        "out.append(remembered(x))",
        ("x * 16", "x * 17"),
        f="import functools\n\n@functools.lru_cache\ndef remembered(x):\n    return x * 16",
    ),
    _feature(
        "partial",
        "out.append(bound(x))",
        ("partial(pow, 3)", "partial(pow, 4)"),
        f="from functools import partial\n\nbound = partial(partial(pow, 3), 2)\n"
        "bound = lambda x, g=bound: g() + x",
    ),
    _feature(
        "bound_method_of_a_dict",
        "out.append(look(x, 0))",
        ("7: 171", "7: 172"),
        f="look = {1: 5, 7: 171}.get",
    ),
    _feature(
        "descriptor",
        "out.append(Holder().field + x)",
        ("Field(181)", "Field(182)"),
        descriptors="""
        class Field:
            def __init__(self, start):
                self.start = start

            def __get__(self, instance, owner):
                return self.start + 1
        """,
        f="from shop.descriptors import Field\n\nclass Holder:\n    field = Field(181)",
    ),
    _feature(
        "init_subclass",
        "out.append(Sub.mark + x)",
        ("cls.mark = 191", "cls.mark = 192"),
        subclassed="""
        class Base:
            def __init_subclass__(cls, **kwargs):
                super().__init_subclass__(**kwargs)
                cls.mark = 191
        """,
        f="from shop.subclassed import Base\n\nclass Sub(Base):\n    pass",
    ),
    _feature(
        "single_dispatch",
        "out.append(shown(x))",
        ("value + 201", "value + 202"),
        dispatched="""
        import functools

        @functools.singledispatch
        def shown(value):
            return "other"

        @shown.register
        def shown_int(value: int):
            return value + 201
        """,
        f="from shop.dispatched import shown",
    ),
    _feature(
        "context_manager",
        "with lifted(x) as higher:\n    out.append(higher)",
        ("yield x + 211", "yield x + 212"),
        managers="""
        import contextlib

        @contextlib.contextmanager
        def lifted(x):
            yield x + 211
        """,
        f="from shop.managers import lifted",
    ),
    _feature(
        "generator",
        "out.append(list(counting(x % 4)))",
        ("n * 22", "n * 23"),
        counters="def counting(n):\n    for step in range(n):\n        yield n * 22 + step",
        f="from shop.counters import counting",
    ),
    _feature(
        "imported_when_it_runs",
        "from shop.later import late\nout.append(late(x))",
        ("x + 231", "x + 232"),
        later="def late(x):\n    return x + 231",
    ),
    _feature(
        "star_import",
        "out.append(starred(x))",
        ("x + 241", "x + 242"),
        stars="def starred(x):\n    return x + 241",
        f="from shop.stars import *",
    ),
    _feature(
        "module_given_to_a_helper",
        "out.append(apply(given, x))",
        ("x + 251", "x + 252"),
        given="def run(x):\n    return x + 251",
        f="from shop import given\n\ndef apply(module, x):\n    return module.run(x)",
    ),
    _feature(
        "patched_builtin",
        "out.append(shop_total(x))",
        ("x + 261", "x + 262"),
        builtin="import builtins\n\nbuiltins.shop_total = lambda x: x + 261",
        f="import shop.builtin",
    ),
    _feature(
        "match_statement",
        "out.append(matched(Pair(x, 3)))",
        ('__match_args__ = ("a", "b")', '__match_args__ = ("b", "a")'),
        f="""
        class Pair:
            __match_args__ = ("a", "b")

            def __init__(self, a, b):
                self.a = a
                self.b = b

        def matched(value):
            match value:
                case Pair(first, _):
                    return first
        """,
    ),
    _feature(
        "abstract_registered",
        "out.append(isinstance(Plain(), Sized) + x)",
        ("Sized.register(Plain)", "Sized.register(Other)"),
        f="""
        import abc

        class Sized(abc.ABC):
            pass

        class Plain:
            pass

        class Other:
            pass

        Sized.register(Plain)
        """,
    ),
    _feature(
        "data_made_at_import",
        "out.append(SQUARES[x % 5])",
        ("n * n for n", "n + n for n"),
        made="SQUARES = [n * n for n in range(5)]",
        f="from shop.made import SQUARES",
    ),
    _feature(
        "data_changed_after_import",
        "out.append(settings.LIMIT + x)",
        ("settings.LIMIT = 271", "settings.LIMIT = 272"),
        settings="LIMIT = 1",
        f="from shop import settings\n\nsettings.LIMIT = 271",
    ),
    _feature(
        "default_argument",
        "out.append(defaulted(x))",
        ("by=281", "by=282"),
        f="def defaulted(x, *, by=281):\n    return x + by",
    ),
    _feature(
        "class_decorator",
        "out.append(Marked.sign + str(x))",
        ("'s'", "'t'"),
        marks="def marked(cls):\n    cls.sign = 's'\n    return cls",
        f="from shop.marks import marked\n\n@marked\nclass Marked:\n    pass",
    ),
    _feature(
        "base_class_method",
        "out.append(Derived().step(x))",
        ("x + 291", "x + 292"),
        bases="class Root:\n    def step(self, x):\n        return x + 291",
        f="from shop.bases import Root\n\nclass Derived(Root):\n    pass",
    ),
    _feature(
        "package_init",
        "out.append(shop.VERSION + x)",
        ("VERSION = 301", "VERSION = 302"),
        f="import shop",
        __init__="VERSION = 301",
    ),
    _feature(
        "string_template",
        "out.append(TEMPLATE.substitute(x=x))",
        ("'got $x'", "'had $x'"),
        f="import string\n\nTEMPLATE = string.Template('got $x')",
    ),
    _feature(
        "nested_containers",
        "out.append(NESTED['a'][0][1] + x)",
        ("(1, 311)", "(1, 312)"),
        f="NESTED = {'a': [(1, 311)], 'b': {'c': frozenset({1})}}",
    ),
    _feature(
        "exception_class",
        "try:\n    fail(x)\nexcept ShopError as error:\n    out.append(error.code)",
        ("code = 321", "code = 322"),
        errors="class ShopError(Exception):\n    code = 321",
        f="from shop.errors import ShopError\n\ndef fail(x):\n    raise ShopError(x)",
    ),
    _feature(
        "regular_expression",
        "out.append(bool(PATTERN.match('a' * (x % 4))))",
        ("'a{2}'", "'a{3}'"),
        f="import re\n\nPATTERN = re.compile('a{2}')",
    ),
    _feature(
        "operator_overloaded",
        "out.append((Money(3) + x).cents)",
        ("self.cents + other", "self.cents - other"),
        money="""
        class Money:
            def __init__(self, cents):
                self.cents = cents

            def __add__(self, other):
                return Money(self.cents + other)
        """,
        f="from shop.money import Money",
    ),
    _feature(
        "flag_read_by_a_helper",
        "out.append(helper_of_flags(x))",
        ("STRICT = True", "STRICT = False"),
        flags="STRICT = True\n\ndef helper_of_flags(x):\n    return x if STRICT else -x - 1",
        f="from shop.flags import helper_of_flags",
    ),
    _feature(
        "pickled_bytes",
        "out.append(pickle.loads(BLOB)(x))",
        ("x + 331", "x + 332"),
        blobs="def thawed(x):\n    return x + 331",
        f="import pickle\nimport shop.blobs\n\nBLOB = pickle.dumps(shop.blobs.thawed)",
    ),
    _feature(
        "code_as_text",
        "out.append(eval(FORMULA, {'x': x}))",
        ("'x + 341'", "'x + 342'"),
        f="FORMULA = 'x + 341'",
    ),
    _feature(
        "ordered_dict_attribute",
        "out.append(ORDERED.extra + x)",
        ("ORDERED.extra = 351", "ORDERED.extra = 352"),
        f="from collections import OrderedDict\n\nORDERED = OrderedDict(a=1)\nORDERED.extra = 351",
    ),
    _feature(
        "conditional_import",
        "out.append(chosen(x))",
        ("x + 361", "x + 362"),
        choice="try:\n    import no_such_module\nexcept ImportError:\n    from shop.plan_b import chosen",
        plan_b="def chosen(x):\n    return x + 361",
        f="from shop.choice import chosen",
    ),
    _feature(
        "async_function",
        """
        async_call = waited(x)
        try:
            async_call.send(None)
        except StopIteration as end:
            out.append(end.value)
        """,
        ("x + 371", "x + 372"),
        waits="async def waited(x):\n    return x + 371",
        f="from shop.waits import waited",
    ),
]
