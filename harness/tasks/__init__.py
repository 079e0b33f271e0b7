"""What `run.py` can do, one module per `task=`."""
