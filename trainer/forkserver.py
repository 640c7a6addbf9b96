"""Imported first by the fork server, and nowhere else: it dies with the main process, and its children die with it.

By itself it ends when the last process that knows it has ended. Its children know it, and so would keep it, and one
another, alive when the main process is killed.
"""

from trainer.signals import die_with_parent

die_with_parent()
