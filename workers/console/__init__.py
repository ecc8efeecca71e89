"""The operator's web app: what is wrong, why, and what to press. A process of its own, on a port of its own.

Law of this room: it shows what the operations read and does what the operations do, and has no rule of its own about
events. No GET changes anything. Text from outside is text: it never becomes markup, script or style. It loads no
plugin.
"""
