"""What goes on in memory without a thread: barriers of memory, tensor maps, and bulk copies."""
