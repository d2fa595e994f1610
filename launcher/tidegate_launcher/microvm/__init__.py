"""A virtual machine by QEMU as a boundary: a kernel of its own on a processor of its own."""
