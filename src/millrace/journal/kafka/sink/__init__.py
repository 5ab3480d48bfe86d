"""Topics of others that rows of jobs go to: rows and place in one transaction of Kafka's."""
