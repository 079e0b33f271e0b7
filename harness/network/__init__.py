"""Networks as data and arithmetic: links, fair shares, flows. `shaped` has links that the kernel limits."""
