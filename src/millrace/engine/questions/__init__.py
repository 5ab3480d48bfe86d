"""Questions that people ask in the engine's own SQL, over tables in memory."""
