"""Collectives: what codecs call, written once as coroutines over any transport."""
