"""`[alerts]`: when to alert, where alerts are sent, and the URL of the heartbeat."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, SecretStr

from receiver.config.values import CLOSED, Duration, PrivateNetworks, check_url, duration_or
from receiver.contract.signing.presets.generic import STANDARD_WEBHOOKS

_SHARE = re.compile(r"(\d{1,3})\s*%")


def parse_share(value: Any) -> float:
    if value == "off":
        return 0.0
    if isinstance(value, str) and (match := _SHARE.fullmatch(value.strip())):
        value = int(match[1]) / 100
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1:
        return float(value)
    raise ValueError('not a share; write "20%", or "off"')


def _check_secret_url(value: SecretStr) -> SecretStr:
    check_url(value.get_secret_value())
    return value


def _check_secret(value: SecretStr) -> SecretStr:
    text = value.get_secret_value()
    try:
        if text:
            STANDARD_WEBHOOKS.key_of(text)
    except ValueError as error:
        raise ValueError(f'{error}; write "whsec_" and 24 to 64 random bytes in base64') from None
    return value


Share = Annotated[float, BeforeValidator(parse_share)]
SecretUrl = Annotated[SecretStr, AfterValidator(_check_secret_url)]
"""The URL of a channel: who has it can write there."""


class AlertRules(BaseModel):
    """When to alert. 0 and "off" turn a rule off."""

    model_config = CLOSED
    failing: Share = 0.5
    oldest_open: Annotated[float, duration_or("off")] = 3600.0
    refused_in_a_row: int = Field(default=20, ge=0)
    silent: dict[str, Duration] = {}
    """By store; "*" is every other store."""
    spooled: Annotated[float, duration_or("off")] = 60.0
    repair_failed: bool = True
    memory: Share = 0.9


class AlertTarget(BaseModel):
    """`[alerts.targets.NAME]`: where alerts are sent. `secret` signs those of the format "webhook"."""

    model_config = CLOSED
    url: Annotated[SecretUrl, Field(min_length=1)]
    format: Literal["webhook", "slack", "teams"] = "webhook"
    secret: Annotated[SecretStr, AfterValidator(_check_secret)] = SecretStr("")
    allow_private: PrivateNetworks = False


class AlertsSettings(BaseModel):
    model_config = CLOSED
    heartbeat_url: SecretUrl = SecretStr("")
    heartbeat_private: PrivateNetworks = False
    rules: AlertRules = AlertRules()
    targets: dict[str, AlertTarget] = {}
