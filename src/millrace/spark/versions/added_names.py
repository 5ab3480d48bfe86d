"""Names that PySpark got after 4.0, and the version that brought each of them."""

from __future__ import annotations

from typing import Final

from millrace.spark.versions.spark_versions import SparkVersion


def _since(version: SparkVersion, names: str) -> dict[str, SparkVersion]:
    return dict.fromkeys(names.split(), version)


FUNCTIONS: Final[dict[str, SparkVersion]] = {
    **_since(
        (4, 1),
        "arrow_udf arrow_udtf bitmap_and_agg chr current_time kll_sketch_agg_bigint "
        "kll_sketch_agg_double kll_sketch_agg_float kll_sketch_get_n_bigint "
        "kll_sketch_get_n_double kll_sketch_get_n_float kll_sketch_get_quantile_bigint "
        "kll_sketch_get_quantile_double kll_sketch_get_quantile_float "
        "kll_sketch_get_rank_bigint kll_sketch_get_rank_double kll_sketch_get_rank_float "
        "kll_sketch_merge_bigint kll_sketch_merge_double kll_sketch_merge_float "
        "kll_sketch_to_string_bigint kll_sketch_to_string_double "
        "kll_sketch_to_string_float make_time quote st_asbinary st_geogfromwkb "
        "st_geomfromwkb st_setsrid st_srid theta_difference theta_intersection "
        "theta_intersection_agg theta_sketch_agg theta_sketch_estimate theta_union "
        "theta_union_agg time_diff time_trunc to_time try_to_date try_to_time uuid",
    ),
    **_since(
        (4, 2),
        "current_path is_valid_variant kll_merge_agg_bigint kll_merge_agg_double "
        "kll_merge_agg_float time_bucket time_from_micros time_from_millis "
        "time_from_seconds time_to_micros time_to_millis time_to_seconds "
        "tuple_difference_double tuple_difference_integer tuple_difference_theta_double "
        "tuple_difference_theta_integer tuple_intersection_agg_double "
        "tuple_intersection_agg_integer tuple_intersection_double "
        "tuple_intersection_integer tuple_intersection_theta_double "
        "tuple_intersection_theta_integer tuple_sketch_agg_double "
        "tuple_sketch_agg_integer tuple_sketch_estimate_double "
        "tuple_sketch_estimate_integer tuple_sketch_summary_double "
        "tuple_sketch_summary_integer tuple_sketch_theta_double "
        "tuple_sketch_theta_integer tuple_union_agg_double tuple_union_agg_integer "
        "tuple_union_double tuple_union_integer tuple_union_theta_double "
        "tuple_union_theta_integer",
    ),
    **_since(
        (4, 3),
        "collect_union counter_diff from_base32 hmac jaro_winkler_similarity "
        "timestamp_nanos to_base32 try_variant_array_append try_variant_insert "
        "try_variant_set unix_nanos variant_array_append variant_delete variant_insert "
        "variant_set variant_strip_nulls vector_avg vector_cosine_similarity "
        "vector_inner_product vector_l2_distance vector_norm vector_normalize vector_sum",
    ),
}
"""Functions of `pyspark.sql.functions`."""

TYPES: Final[dict[str, SparkVersion]] = {
    **_since(
        (4, 1),
        "Geography GeographyType Geometry GeometryType TimeType",
    ),
}
"""Types of `pyspark.sql.types`."""

FRAME_METHODS: Final[dict[str, SparkVersion]] = {
    "repartitionById": (4, 1),
    **_since(
        (4, 2),
        "nearestByJoin zipWithIndex",
    ),
    "zip": (4, 3),
}
"""Methods of DataFrames."""
