"""`network=shaped`: real workers on links whose rate the kernel limits, all of them joined by one switch.

`network` makes the whole network, owns it, and measures a link's throughput. It uses `namespace` (one per
worker and one for the switch), `star` (runs the commands for interfaces, addresses, rates and queues),
`diagnose` (finds links that have changed), `background` and `background_process` (background traffic on the
same links), and `check` (whether it works on this machine).

Namespaces have no names and are only held by file descriptors, so two networks cannot collide. When the
processes end, for whatever reason, the kernel removes the whole network. The workers inside run
torch.distributed over gloo, unchanged, so nothing here needs torch.
"""
