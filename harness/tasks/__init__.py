"""The tasks other than studies, with one module for each `task=`."""
