"""Imported by nobody but an answer that was executed: says so in the report that sitecustomize.py keeps."""

import sitecustomize

sitecustomize.report("imported hostile_canary")
