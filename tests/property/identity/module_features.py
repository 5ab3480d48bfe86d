"""What a function finds in modules: by name, by text, when it is loaded or later."""

from __future__ import annotations

from tests.property.identity.features import feature

FEATURES = [
    feature(
        "module_of_the_same_name",
        "out.append(shop.rate.rate(x))",
        ("x + 11", "x + 12"),
        f="import shop.rate",
        rate="def rate(x):\n    return x + 11",
    ),
    feature(
        "deep_module",
        "out.append(deep_one.through(x))",
        ("x * 13", "x * 14"),
        f="from shop import deep_one",
        deep_one="from . import deep_two\n\ndef through(x):\n    return deep_two.end(x)",
        deep_two="def end(x):\n    return x * 13",
    ),
    feature(
        "import_module_by_name",
        "out.append(import_module('shop.plugged').plug(x))",
        ("x + 51", "x + 52"),
        f="from importlib import import_module\nimport shop.plugged",
        plugged="def plug(x):\n    return x + 51",
    ),
    feature(
        "sys_modules",
        "out.append(sys.modules['shop.listed'].listed(x))",
        ("x + 61", "x + 62"),
        f="import sys\nimport shop.listed",
        listed="def listed(x):\n    return x + 61",
    ),
    feature(
        "named_like_the_standard_library",
        "out.append(statistics.mean(x))",
        ("x - 71", "x - 72"),
        f="from shop import statistics",
        statistics="def mean(x):\n    return x - 71",
    ),
    feature(
        "getattr_with_a_computed_name",
        "out.append(getattr(looked, 'up' + str(x % 2))(x))",
        ("x + 81", "x + 82"),
        f="from shop import looked",
        looked="def up0(x):\n    return x + 81\n\ndef up1(x):\n    return x",
    ),
    feature(
        "attrgetter",
        "out.append(operator.attrgetter('taken.got')(shop)(x))",
        ("x + 91", "x + 92"),
        f="import operator\nimport shop.taken",
        taken="def got(x):\n    return x + 91",
    ),
    feature(
        "format_of_a_module",
        "out.append('{0.LIMIT}'.format(formed) * (x % 2))",
        ("LIMIT = 'p'", "LIMIT = 'q'"),
        f="from shop import formed",
        formed="LIMIT = 'p'",
    ),
    feature(
        "globals_by_name",
        "out.append(globals()['HID' + 'DEN'] + x)",
        ("HIDDEN = 101", "HIDDEN = 102"),
        f="HIDDEN = 101",
    ),
    feature(
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
    feature(
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
    feature(
        "patched_by_another_module",
        "out.append(victim.answer(x))",
        ("x + 121", "x + 122"),
        victim="def answer(x):\n    return x",
        patcher="import shop.victim\n\nshop.victim.answer = lambda x: x + 121",
        f="import shop.patcher\nfrom shop import victim",
    ),
    feature(
        "imported_when_it_runs",
        "from shop.later import late\nout.append(late(x))",
        ("x + 231", "x + 232"),
        later="def late(x):\n    return x + 231",
    ),
    feature(
        "star_import",
        "out.append(starred(x))",
        ("x + 241", "x + 242"),
        stars="def starred(x):\n    return x + 241",
        f="from shop.stars import *",
    ),
    feature(
        "module_given_to_a_helper",
        "out.append(apply(given, x))",
        ("x + 251", "x + 252"),
        given="def run(x):\n    return x + 251",
        f="from shop import given\n\ndef apply(module, x):\n    return module.run(x)",
    ),
    feature(
        "patched_builtin",
        "out.append(shop_total(x))",
        ("x + 261", "x + 262"),
        builtin="import builtins\n\nbuiltins.shop_total = lambda x: x + 261",
        f="import shop.builtin",
    ),
    feature(
        "data_made_at_import",
        "out.append(SQUARES[x % 5])",
        ("n * n for n", "n + n for n"),
        made="SQUARES = [n * n for n in range(5)]",
        f="from shop.made import SQUARES",
    ),
    feature(
        "data_changed_after_import",
        "out.append(settings.LIMIT + x)",
        ("settings.LIMIT = 271", "settings.LIMIT = 272"),
        settings="LIMIT = 1",
        f="from shop import settings\n\nsettings.LIMIT = 271",
    ),
    feature(
        "package_init",
        "out.append(shop.VERSION + x)",
        ("VERSION = 301", "VERSION = 302"),
        f="import shop",
        __init__="VERSION = 301",
    ),
    feature(
        "flag_read_by_a_helper",
        "out.append(helper_of_flags(x))",
        ("STRICT = True", "STRICT = False"),
        flags="STRICT = True\n\ndef helper_of_flags(x):\n    return x if STRICT else -x - 1",
        f="from shop.flags import helper_of_flags",
    ),
    feature(
        "pickled_bytes",
        "out.append(pickle.loads(BLOB)(x))",
        ("x + 331", "x + 332"),
        blobs="def thawed(x):\n    return x + 331",
        f="import pickle\nimport shop.blobs\n\nBLOB = pickle.dumps(shop.blobs.thawed)",
    ),
    feature(
        "code_as_text",
        "out.append(eval(FORMULA, {'x': x}))",
        ("'x + 341'", "'x + 342'"),
        f="FORMULA = 'x + 341'",
    ),
    feature(
        "conditional_import",
        "out.append(chosen(x))",
        ("x + 361", "x + 362"),
        choice="""
        try:
            import no_such_module
        except ImportError:
            from shop.plan_b import chosen
        """,
        plan_b="def chosen(x):\n    return x + 361",
        f="from shop.choice import chosen",
    ),
    feature(
        "module_of_its_own_class",
        "out.append(classy.worth + x)",
        ("return 381", "return 382"),
        f="from shop import classy",
        classy="""
        import sys
        from types import ModuleType

        class Classy(ModuleType):
            @property
            def worth(self):
                return 381

        sys.modules[__name__].__class__ = Classy
        """,
    ),
    feature(
        "own_module_of_a_library_name_at_the_top",
        "out.append(colorsys.shade(x))",
        ("x + 391", "x + 392"),
        f="from shop.paths import colorsys",
        paths="""
        import os
        import sys

        sys.path.insert(0, os.path.join(os.path.dirname(__file__), "vendored"))
        import colorsys
        """,
        **{"vendored/colorsys": "def shade(x):\n    return x + 391"},
    ),
]
