"""Says what is wrong with a wheel and with what was installed of it: look_at_wheel.py WHEEL."""

import importlib.metadata
import os
import sys
import zipfile

import millrace
import pyspark_millrace
from millrace.keys import compiled_kernels

wheel = sys.argv[1]
names = set(zipfile.ZipFile(wheel).namelist())
tops = {name.split("/")[0] for name in names}
folder = os.path.dirname(millrace.__file__)
needed = {
    "millrace/py.typed",
    "millrace/keys/_kernels.c",
    "millrace/testing/pom.xml",
    "pyspark_millrace/__init__.py",
}
version = importlib.metadata.version("millrace")
is_plain = "-none-any" in os.path.basename(wheel)
complaints = [
    *(f"{name} is missing" for name in sorted(needed - names)),
    *(f"{name} does not belong in it" for name in sorted(names) if "/test_" in name),
    *(
        f"unknown folder {top}"
        for top in sorted(tops)
        if not top.startswith(("millrace", "pyspark_millrace"))
    ),
    *([f"millrace was found in {folder}"] if not folder.startswith(sys.prefix) else []),
    *([f"the version is {version}"] if version != millrace.__version__ else []),
    *(
        ["the kernel is there, or not, against its name"]
        if compiled_kernels.available() == is_plain
        else []
    ),
    *([] if pyspark_millrace.DefaultSource.name() == "millrace" else ["Spark does not find it"]),
]
if complaints:
    sys.exit("\n".join([f"{wheel}:", *complaints]))
print(f"{len(names)} files, all that is needed and no more; version {version}, in {folder}")
