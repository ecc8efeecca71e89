"""Process: what every long-running process of ours does beside its work.

Law of this room: it imports `receiver.contract` and `receiver.logs` only. `start_checks` refuses a start that cannot
work, `standard_streams` opens those that are closed, `process_files` has the locked files of running processes, and
`service_manager` tells systemd how a process is.
"""
