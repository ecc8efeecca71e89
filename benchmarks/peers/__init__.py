"""The alternatives, written as their documentation recommends. Each runs as its own process.

Law of this room: nothing here imports the product. Files for FastAPI, arq, celery, dramatiq and huey run in
benchmarks/.venv, the others in the product's environment, with the same Flask, gunicorn, RQ and redis versions.
"""
