"""What a benchmark measures, among whom, and how the samples are taken and checked."""
