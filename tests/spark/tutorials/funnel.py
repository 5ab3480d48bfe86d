"""A funnel: how many users got from a view to a cart to a purchase, by country, in SQL."""

from pyspark.sql import DataFrame, SparkSession


def run(spark: SparkSession, folder: str) -> DataFrame:
    spark.read.parquet(f"{folder}/clicks").createOrReplaceTempView("clicks")
    spark.read.parquet(f"{folder}/customers").createOrReplaceTempView("customers")
    return spark.sql(
        """
        WITH steps AS (
          SELECT user,
                 min(CASE WHEN page = 'view' THEN ts END) AS viewed,
                 min(CASE WHEN page = 'cart' THEN ts END) AS carted,
                 min(CASE WHEN page = 'buy' THEN ts END) AS bought
          FROM clicks GROUP BY user
        )
        SELECT coalesce(c.city, 'unknown') AS city,
               count(viewed) AS viewed,
               count_if(carted > viewed) AS carted,
               count_if(bought > carted AND carted > viewed) AS bought
        FROM steps s LEFT JOIN customers c ON s.user = c.cust
        GROUP BY coalesce(c.city, 'unknown')
        HAVING count(viewed) > 0
        ORDER BY city
        """
    )
