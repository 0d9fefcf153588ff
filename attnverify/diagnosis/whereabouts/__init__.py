"""Where a failure of unknown cause shows: in which stage, in which output, at which places."""
