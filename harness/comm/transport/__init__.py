"""Transports: how the messages of a collective travel, between processes or inside one."""
