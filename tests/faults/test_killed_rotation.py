"""A rotation that was killed: a check replaces what it lost before the receivers refuse what they cannot verify.

Slow: the store's lock has to expire first.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from receiver.inbox.keyring.keyring import CHANGE_SECONDS
from tests.faults.test_subscription_faults import is_announced
from tests.faults.test_subscription_load import TOPICS, hold, rotated, rotation
from tests.support.harness import eventually
from tests.support.sandbox_shop import plugin, running_shop
from tests.support.signed_traffic import Sending
from tests.workers.subscriptions.test_apply import MADE_BY_THE_STORE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
RATE = 20


def test_no_delivery_is_refused_because_a_rotation_was_killed(tmp_path: Path) -> None:
    with running_shop(tmp_path, check="1h", plugin=plugin(*TOPICS)) as shop:
        shop.system.config_file.write_text(shop.system.config_file.read_text() + MADE_BY_THE_STORE)
        shop.system.start("web", "worker", "housekeeper")
        eventually(lambda: shop.topics() == sorted(TOPICS), 40, what="the first check has made the subscriptions")
        shop.misbehave(slow=1, slow_by="1s")
        state = shop.system.config.data_dir / "sandbox-demo.sqlite3"
        sending = Sending(shop.system.config.known_stores["demo"], state, shop.system.port, RATE).start()
        process = rotation(shop)
        eventually(lambda: rotated(shop) >= 1 or not process.alive, 60, what="the first secret was rotated")
        process.kill()
        killed = time.monotonic()
        assert is_announced(shop)
        shop.misbehave(slow=0)
        eventually(lambda: not is_announced(shop), CHANGE_SECONDS, what="a check has replaced what was lost")
        print(f"\nrepaired {time.monotonic() - killed:.0f} s after the kill; answers {dict(sending.answers)}")
        sending.finish()
        assert sending.answers["503"] > 0, "the store used a secret that no receiver knew"
        hold(shop, sending)
