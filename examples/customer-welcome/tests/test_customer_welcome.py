from pathlib import Path

import customer_welcome
import pytest
from customer_welcome import Settings, welcome

from storehooks import Drop
from storehooks.errors import ResourceNotFound
from storehooks.testing import make_context, make_event

ADA = {"id": 7, "name": "Ada", "metadata": {}}


def run(api, **settings):
    event = make_event("customer.created", {"id": 7})
    ctx = make_context(event, settings=Settings(**settings), api=api)
    return welcome(event, ctx), ctx


def test_a_new_customer_is_welcomed_by_name():
    result, ctx = run({"customers.get": ADA, "customers.update_metadata": ADA})
    assert result == "welcomed customer 7"
    assert ctx.api_calls[-1] == ("customers.update_metadata", ("7",), {"metadata": {"welcome": "Welcome, Ada!"}})


def test_a_customer_is_not_welcomed_twice():
    result, ctx = run({"customers.get": {**ADA, "metadata": {"welcome": "Hi"}}})
    assert result == "customer 7 was already welcomed"
    assert [name for name, _, _ in ctx.api_calls] == ["customers.get"]


def test_a_deleted_customer_is_dropped():
    with pytest.raises(Drop, match="was deleted"):
        run({"customers.get": ResourceNotFound("no such customer", status=404)})


def test_in_the_real_pipeline_it_waits_and_then_writes_to_the_store(system, store):
    system.start(Path(customer_welcome.__file__))
    sent = system.send("customer.created", {"id": 3}, wait=("open",))
    run = sent.run("welcome")
    assert run.status == "waiting"
    assert 590 < (run.due_at - sent.record.summary.received_at).total_seconds() <= 601
    assert store.writes() == []
    assert system.skip_delays(sent).run("welcome").result == "welcomed customer 3"
    assert store.writes() == ["PATCH /api/v3/app/customers/3/metadata"]
    without_email = system.send("customer.created", {"email": None}, wait=("open",))
    assert system.skip_delays(without_email).run("welcome").result == "skipped: email is there was false"
