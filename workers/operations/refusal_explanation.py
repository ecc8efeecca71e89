"""Refusal explanation: why a refused delivery is valid or not under the current config, and what is known of others."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from receiver.config import Config
from receiver.contract.diagnosis.explain import Explanation, explain
from receiver.contract.diagnosis.hints import Hint
from receiver.contract.diagnosis.search import find_signer
from receiver.contract.errors import NotFound
from receiver.contract.stores import Store
from receiver.spool import Refusal, Refusals
from workers.operations.release import ReleaseCheck, select_refusals, stores_with_secrets, with_open_headers

MAX_CHECKED = 2_000
"""How many other refused deliveries are checked."""


@dataclass(frozen=True)
class RefusalExplanation:
    store: Store
    explanation: Explanation


@dataclass
class OtherRefusals:
    """The stored refused deliveries of a store."""

    count: int = 0
    valid: int = 0
    """How many are valid with the current config."""
    signers: Counter[str] = field(default_factory=Counter)
    """By the fingerprint of the secret that signed them; empty where none is known."""

    @property
    def number(self) -> str:
        return f"{self.count:,}{' or more' if self.count >= MAX_CHECKED else ''}"


def explain_refusal(
    config: Config, found: Refusal, *, store_name: str | None = None, now: float | None = None
) -> RefusalExplanation:
    """Explain a refused delivery as of its arrival. Raises NotFound if its store is not known."""
    refusal = with_open_headers(config, found)
    stores = stores_with_secrets(config)
    check = ReleaseCheck(config)
    store = check.store_of(refusal) if store_name is None else stores[store_name]
    if store is None:
        missing = f"no store {refusal.named}" if refusal.named else "this delivery names no configured store"
        raise NotFound(f"{missing}; add [stores.NAME] to the config, or check it as another one: --store NAME")
    others = [other for other in stores.values() if other.name != store.name]
    explanation = explain(store, refusal.headers, refusal.body or b"", now or refusal.at, others=others)
    if store_name is None and check.unscanned_store(refusal):  # also if it is valid: the next one is refused, too
        explanation = replace(explanation, hints=(_unscanned(store), *explanation.hints))
    return RefusalExplanation(store, explanation)


def _unscanned(store: Store) -> Hint:
    what = f"POST /webhooks scans the begin and the end of a body for names, and did not find that of {store.name}"
    return Hint(what, f"have {store.name} send to its own URL, /webhooks/{store.name}")


def other_refusals(config: Config, refusals: Refusals, store: Store, *, most: int = MAX_CHECKED) -> OtherRefusals:
    """How many are stored for this store, which secret signed them, and how many are valid now."""
    check, others = ReleaseCheck(config), OtherRefusals()
    for batch in select_refusals(refusals, check, store=store.name):
        for refusal in batch:
            others.count += 1
            others.valid += check.is_valid(refusal)
            headers = with_open_headers(config, refusal).headers
            signer = find_signer(store.scheme, store.secrets, headers, refusal.body or b"", store.url)
            others.signers[signer.fingerprint if signer else ""] += 1
        if others.count >= most:
            break
    return others


def place_of_fix(config: Config, store: Store, fix: str) -> str:
    """The table of the config that a proposed setting belongs to; empty for a fix that is no setting."""
    if " = " not in fix or fix.startswith("set "):  # that names its own table
        return ""
    of_store = fix.startswith(("scheme = ", "[stores."))
    return (
        f"[stores.{store.name}], {config.place('stores', store.name)}" if of_store else config.scheme_table(store.name)
    )
