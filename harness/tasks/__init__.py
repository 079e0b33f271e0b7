"""The tasks that are no studies, one module per `task=`."""
