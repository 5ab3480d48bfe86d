"""Data at rest by key: what a map task wrote, for every reduce partition, outliving its application."""
