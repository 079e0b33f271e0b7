"""`network=shaped`: real workers on links whose rate the kernel limits, all of them joined by one switch.

`shaped` makes the whole network and owns it: `namespace` (one per worker and one for the switch),
`links` (the commands for interfaces, addresses, rates and queues), `commands` (running them),
`goodput` (what a link carries), `diagnose` and `changes` (which rank's link is no longer as it was made,
and hearing of it), `rivals` and `rival_process` (other jobs on the same links), `check` (why it may not
work here).

Nothing has a name outside, and namespaces are held by file descriptors alone: two networks cannot meet,
and when the processes are gone, however they went, the kernel removes all of it. What workers run
unchanged inside is torch.distributed over gloo, so nothing here knows torch.
"""
