"""The other side's programs, as their own documentation would have one write them; each runs as its own process.

Law of this room: nothing here imports the product. Files for FastAPI, arq, celery, dramatiq and huey run in
benchmarks/.venv, the others in the product's environment, with the very Flask, gunicorn, RQ and redis it has.
"""
