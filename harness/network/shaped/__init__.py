"""`network=shaped`: real workers on links whose rate the kernel limits, all of them joined by one switch.

`network` makes the whole network and owns it, and measures what a link carries: `namespace` (one per worker
and one for the switch), `star` (the commands for interfaces, addresses, rates and queues, and their running),
`diagnose` (which rank's link has changed), `background` and `background_process` (background traffic on the
same links), and `check` (why it may not work here).

Namespaces have no names and are held by file descriptors alone, so two networks cannot collide. When the
processes end, for whatever reason, the kernel removes all of it. The workers inside run torch.distributed
over gloo, unchanged, so nothing here needs torch.
"""
