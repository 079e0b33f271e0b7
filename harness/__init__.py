"""The experiment harness: topologies, transports, collectives, parallelisms, trainer, reports."""

from gradwire.harness.runtime.packages import say_what_is_missing

say_what_is_missing()
