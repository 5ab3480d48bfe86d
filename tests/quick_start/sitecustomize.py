"""Has the Python processes that Spark starts load PySpark from its folder, compiled.

Else each takes it from a zip file, and compiles it again. `scripts/test` puts this folder on
Python's path.
"""

import sys

sys.path[:] = [place for place in sys.path if not place.endswith("pyspark.zip")]
