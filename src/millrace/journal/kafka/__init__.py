"""The Kafka broker: journals as topics of a Kafka cluster. Only here is a Kafka client imported.

Importing this package imports no client; `kafka_broker` does.
"""
