"""What a function finds in functions, classes and values."""

from __future__ import annotations

from tests.property.identity.features import feature

_INSIDE_TRY = """\
        late = [4, 5][x % 9]
    except ZeroDivisionError:
        return -1
    except IndexError:
        return -2
"""
_INSIDE_ELSE = """\
    except ZeroDivisionError:
        return -1
    except IndexError:
        return -2
    else:
        late = [4, 5][x % 9]
"""

FEATURES = [
    feature(
        "class_attribute_set",
        "out.append(x in Allowed.numbers)",
        ("{1, 2, 900}", "{1, 7, 900}"),
        f="from shop.allowed import Allowed",
        allowed="class Allowed:\n    numbers = {1, 2, 900}",
    ),
    feature(
        "class_attribute_range",
        "out.append(x in Spread.numbers)",
        ("range(0, 8)", "range(0, 5)"),
        f="class Spread:\n    numbers = range(0, 8)",
    ),
    feature(
        "class_attribute_bytearray",
        "out.append(Raw.octets[x % 3])",
        ("b'abc'", "b'abd'"),
        f="class Raw:\n    octets = bytearray(b'abc')",
    ),
    feature(
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
    feature(
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
    feature(
        "enum_value",
        "out.append(Colour.RED.value + x)",
        ("RED = 3", "RED = 4"),
        f="import enum\n\nclass Colour(enum.Enum):\n    RED = 3\n    BLUE = 5",
    ),
    feature(
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
    feature(
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
    feature(
        "str_subclass",
        "out.append(Shout('a').loud() * (x % 3))",
        ("'!'", "'?'"),
        f="class Shout(str):\n    def loud(self):\n        return self.upper() + '!'",
    ),
    feature(
        "moved_from_try_to_else",
        "out.append(guarded(x))",
        (_INSIDE_TRY, _INSIDE_ELSE),
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
    feature(
        "function_attribute",
        "out.append(scaled.factor * x)",
        ("scaled.factor = 6", "scaled.factor = 9"),
        f="def scaled(x):\n    return x\n\nscaled.factor = 6",
    ),
    feature(
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
    feature(
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
    feature(
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
    feature(
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
    feature(
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
    feature(
        "closure",
        "out.append(adder(x))",
        ("make_adder(141)", "make_adder(142)"),
        makers="def make_adder(n):\n    def add(x):\n        return x + n\n    return add",
        f="from shop.makers import make_adder\n\nadder = make_adder(141)",
    ),
    feature(
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
    feature(
        "cached",
        "out.append(remembered(x))",
        ("x * 16", "x * 17"),
        f="import functools\n\n@functools.lru_cache\ndef remembered(x):\n    return x * 16",
    ),
    feature(
        "partial",
        "out.append(bound(x))",
        ("partial(pow, 3)", "partial(pow, 4)"),
        f="from functools import partial\n\nbound = partial(partial(pow, 3), 2)\n"
        "bound = lambda x, g=bound: g() + x",
    ),
    feature(
        "bound_method_of_a_dict",
        "out.append(look(x, 0))",
        ("7: 171", "7: 172"),
        f="look = {1: 5, 7: 171}.get",
    ),
    feature(
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
    feature(
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
    feature(
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
    feature(
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
    feature(
        "generator",
        "out.append(list(counting(x % 4)))",
        ("n * 22", "n * 23"),
        counters="def counting(n):\n    for step in range(n):\n        yield n * 22 + step",
        f="from shop.counters import counting",
    ),
    feature(
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
    feature(
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
    feature(
        "default_argument",
        "out.append(defaulted(x))",
        ("by=281", "by=282"),
        f="def defaulted(x, *, by=281):\n    return x + by",
    ),
    feature(
        "class_decorator",
        "out.append(Marked.sign + str(x))",
        ("'s'", "'t'"),
        marks="def marked(cls):\n    cls.sign = 's'\n    return cls",
        f="from shop.marks import marked\n\n@marked\nclass Marked:\n    pass",
    ),
    feature(
        "base_class_method",
        "out.append(Derived().step(x))",
        ("x + 291", "x + 292"),
        bases="class Root:\n    def step(self, x):\n        return x + 291",
        f="from shop.bases import Root\n\nclass Derived(Root):\n    pass",
    ),
    feature(
        "string_template",
        "out.append(TEMPLATE.substitute(x=x))",
        ("'got $x'", "'had $x'"),
        f="import string\n\nTEMPLATE = string.Template('got $x')",
    ),
    feature(
        "nested_containers",
        "out.append(NESTED['a'][0][1] + x)",
        ("(1, 311)", "(1, 312)"),
        f="NESTED = {'a': [(1, 311)], 'b': {'c': frozenset({1})}}",
    ),
    feature(
        "exception_class",
        "try:\n    fail(x)\nexcept ShopError as error:\n    out.append(error.code)",
        ("code = 321", "code = 322"),
        errors="class ShopError(Exception):\n    code = 321",
        f="from shop.errors import ShopError\n\ndef fail(x):\n    raise ShopError(x)",
    ),
    feature(
        "regular_expression",
        "out.append(bool(PATTERN.match('a' * (x % 4))))",
        ("'a{2}'", "'a{3}'"),
        f="import re\n\nPATTERN = re.compile('a{2}')",
    ),
    feature(
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
    feature(
        "ordered_dict_attribute",
        "out.append(ORDERED.extra + x)",
        ("ORDERED.extra = 351", "ORDERED.extra = 352"),
        f="from collections import OrderedDict\n\nORDERED = OrderedDict(a=1)\nORDERED.extra = 351",
    ),
    feature(
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
