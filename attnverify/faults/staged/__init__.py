"""The specification's attentions in replaceable stages, for faults."""
