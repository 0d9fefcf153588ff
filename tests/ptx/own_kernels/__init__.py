"""Our own kernels on the PTX machine: cases, both ways to launch, faults planted in them."""
