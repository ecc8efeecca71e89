"""The names of the commands, in the sections of the help."""

from __future__ import annotations

from collections.abc import Mapping

SECTIONS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "Run": {
        "dev": ("dev", "Run everything: receiver, workers, console, sandbox store."),
        "web": ("run", "Run the receiver: the public HTTP endpoint."),
        "worker": ("run", "Run the workers and their housekeeper."),
        "console": ("run", "Run the operator's web app."),
        "sandbox": ("sandbox", "Run a sandbox store: an API, a shopper, signed webhooks."),
        "listen": ("listen", "Send new events to a local program, until Ctrl-C."),
        "init": ("init", "Write config.toml and plugins/hello.py in this folder."),
        "new-plugin": ("new_plugin", "Write a plugin package with tests into a new folder."),
        "completion": ("completion", "Print the completion script of bash, zsh or fish."),
    },
    "Look": {
        "doctor": ("doctor", "Check config, server, plugins, workers and stores."),
        "config": ("effective_config", "Show the config in use, and where each value is set."),
        "stats": ("stats", "Show event counts."),
        "size": ("size", "Show the memory, disk and processes that events need."),
        "topics": ("topics", "List the event names that stores send, and their handlers."),
        "audit": ("audit", "List what people did, newest first."),
        "alerts": ("alerts", "List alerts and their rules; send a test."),
        "verify": ("verify", "Explain why a delivery's signature is valid or not."),
        "send": ("send", "Send a signed event as the store would, and follow it."),
    },
    "Data": {
        "erase": ("erase", "Erase what is stored about a person; show receipts."),
        "export": ("export_import", "Write events, failures, marks and state to a file."),
        "import": ("export_import", "Write an export file into this server."),
    },
    "Nouns (without a command, each one lists)": {
        "events": ("events", "List, show, tail, replay and reread events."),
        "failures": ("failures", "List, show, replay and drop failures."),
        "refused": ("refused", "List, show, release and drop refused deliveries."),
        "hosts": ("hosts", "List and forget hosts, and accept that Redis was replaced."),
        "handlers": ("handlers", "List, explain, run, certify, pause and retire handlers."),
        "stores": ("stores", "List, show, add, pause, resume and remove stores."),
        "subscriptions": ("subscriptions", "List, plan, apply and rotate subscriptions at stores."),
        "scheme": ("scheme", "List, show and detect signing schemes."),
        "api": ("api", "Call the store's API."),
    },
}
"""Each command with its file and the first line of its help."""
COMMANDS: Mapping[str, tuple[str, str]] = {name: one for section in SECTIONS.values() for name, one in section.items()}
