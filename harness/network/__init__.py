"""Networks: links, fair shares and flows as data and arithmetic; `shaped` has links of the kernel's."""
