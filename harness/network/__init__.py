"""Networks as data and arithmetic: links, fair shares, flows. `shaped` makes real links whose rate the kernel
limits."""
